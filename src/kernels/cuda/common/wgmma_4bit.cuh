// Warpgroup products of 4-bit weights beyond those of wgmma.cuh, whose conventions hold: E4M3 by
// E4M3, E5M2 by E4M3 with 64 columns, and FP16. Device code only. Source: PTX ISA 9.0,
// "wgmma.mma_async".
#pragma once

#include <cstdint>

#include "kernels/cuda/common/wgmma.cuh"

namespace nibble::kernels::cuda {

// clang-format off
// Four accumulators as operands.
#define NIBBLE_D4(constraint, i) \
  constraint(d[i]), constraint(d[(i) + 1]), constraint(d[(i) + 2]), constraint(d[(i) + 3])

// D = A B and D += A B (add).   A: E4M3 in registers
__device__ __forceinline__ void wgmma_e4m3_rs(float (&d)[4], const uint32_t* a, uint64_t b) {
  asm volatile(
      "{\n\t.reg .pred accumulate;\n\tsetp.ne.b32 accumulate, 0, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {"
      "%0,%1,%2,%3}, "
      "{%4,%5,%6,%7}, %8, accumulate, 1, 1;\n\t}"
      : NIBBLE_D4("=f", 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wgmma_e4m3_rs_add(float (&d)[4], const uint32_t* a, uint64_t b) {
  asm volatile(
      "{\n\t.reg .pred accumulate;\n\tsetp.ne.b32 accumulate, 1, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {"
      "%0,%1,%2,%3}, "
      "{%4,%5,%6,%7}, %8, accumulate, 1, 1;\n\t}"
      : NIBBLE_D4("+f", 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wgmma_e4m3_rs(float (&d)[8], const uint32_t* a, uint64_t b) {
  asm volatile(
      "{\n\t.reg .pred accumulate;\n\tsetp.ne.b32 accumulate, 0, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {"
      "%0,%1,%2,%3,%4,%5,%6,%7}, "
      "{%8,%9,%10,%11}, %12, accumulate, 1, 1;\n\t}"
      : NIBBLE_D4("=f", 0), NIBBLE_D4("=f", 4)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// What d held counts as read, so that it keeps its registers.
__device__ __forceinline__ void wgmma_e4m3_rs(float (&d)[32], const uint32_t* a, uint64_t b) {
  asm volatile(
      "{\n\t.reg .pred accumulate;\n\tsetp.ne.b32 accumulate, 0, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
      "{%32,%33,%34,%35}, %36, accumulate, 1, 1;\n\t}"
      : NIBBLE_D4("+f", 0), NIBBLE_D4("+f", 4), NIBBLE_D4("+f", 8), NIBBLE_D4("+f", 12),
        NIBBLE_D4("+f", 16), NIBBLE_D4("+f", 20), NIBBLE_D4("+f", 24), NIBBLE_D4("+f", 28)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// D = A B (first) and D += A B (add).   A: E5M2 in registers
__device__ __forceinline__ void wgmma_e5m2_e4m3_first(float (&d)[32], const uint32_t* a, uint64_t b) {
  asm volatile(
      "{\n\t.reg .pred accumulate;\n\tsetp.ne.b32 accumulate, 0, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n64k32.f32.e5m2.e4m3 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
      "{%32,%33,%34,%35}, %36, accumulate, 1, 1;\n\t}"
      : NIBBLE_D4("=f", 0), NIBBLE_D4("=f", 4), NIBBLE_D4("=f", 8), NIBBLE_D4("=f", 12),
        NIBBLE_D4("=f", 16), NIBBLE_D4("=f", 20), NIBBLE_D4("=f", 24), NIBBLE_D4("=f", 28)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wgmma_e5m2_e4m3_add(float (&d)[32], const uint32_t* a, uint64_t b) {
  asm volatile(
      "{\n\t.reg .pred accumulate;\n\tsetp.ne.b32 accumulate, 1, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n64k32.f32.e5m2.e4m3 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
      "{%32,%33,%34,%35}, %36, accumulate, 1, 1;\n\t}"
      : NIBBLE_D4("+f", 0), NIBBLE_D4("+f", 4), NIBBLE_D4("+f", 8), NIBBLE_D4("+f", 12),
        NIBBLE_D4("+f", 16), NIBBLE_D4("+f", 20), NIBBLE_D4("+f", 24), NIBBLE_D4("+f", 28)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// D = A B (first) and D += A B (add) over 16 k.   A: FP16 in registers; per thread a[0] row g k 2t,
// 2t + 1, a[1] row g + 8, a[2] row g k 8 + 2t, 8 + 2t + 1, a[3] row g + 8
__device__ __forceinline__ void wgmma_f16_first(float (&d)[32], const uint32_t* a, uint64_t b) {
  asm volatile(
      "{\n\t.reg .pred accumulate;\n\tsetp.ne.b32 accumulate, 0, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
      "{%32,%33,%34,%35}, %36, accumulate, 1, 1, 0;\n\t}"
      : NIBBLE_D4("=f", 0), NIBBLE_D4("=f", 4), NIBBLE_D4("=f", 8), NIBBLE_D4("=f", 12),
        NIBBLE_D4("=f", 16), NIBBLE_D4("=f", 20), NIBBLE_D4("=f", 24), NIBBLE_D4("=f", 28)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wgmma_f16_add(float (&d)[32], const uint32_t* a, uint64_t b) {
  asm volatile(
      "{\n\t.reg .pred accumulate;\n\tsetp.ne.b32 accumulate, 1, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
      "{%32,%33,%34,%35}, %36, accumulate, 1, 1, 0;\n\t}"
      : NIBBLE_D4("+f", 0), NIBBLE_D4("+f", 4), NIBBLE_D4("+f", 8), NIBBLE_D4("+f", 12),
        NIBBLE_D4("+f", 16), NIBBLE_D4("+f", 20), NIBBLE_D4("+f", 24), NIBBLE_D4("+f", 28)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef NIBBLE_D4
// clang-format on

}  // namespace nibble::kernels::cuda
