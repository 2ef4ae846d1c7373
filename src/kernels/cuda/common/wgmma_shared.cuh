// Warpgroup matrix products of sm_90a with B, and mostly A, in shared memory: D[64, N] (+)= A B
// with A [64, 32] and B [32, N] in E4M3, or [64, 16] and [16, N] in BF16: 32 bytes along k. Device
// code only. Source: PTX ISA 9.0, "wgmma.mma_async". D and the rules: see common/wgmma.cuh.
//
// X_first(d, a, b) is D = A B, X_add is D += A B; N is twice the size of d. a, b: descriptors of
// tiles whose rows run along k.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/wgmma.cuh"

namespace nibble::kernels::cuda {

// clang-format off
#define NIBBLE_FOUR(a, b, c, d) "%" #a ",%" #b ",%" #c ",%" #d
#define NIBBLE_NAMES_4 NIBBLE_FOUR(0, 1, 2, 3)
#define NIBBLE_NAMES_8 NIBBLE_NAMES_4 "," NIBBLE_FOUR(4, 5, 6, 7)
#define NIBBLE_NAMES_16 NIBBLE_NAMES_8 "," NIBBLE_FOUR(8, 9, 10, 11) "," NIBBLE_FOUR(12, 13, 14, 15)
#define NIBBLE_NAMES_32                                                                   \
  NIBBLE_NAMES_16 "," NIBBLE_FOUR(16, 17, 18, 19) "," NIBBLE_FOUR(20, 21, 22, 23) ","     \
  NIBBLE_FOUR(24, 25, 26, 27) "," NIBBLE_FOUR(28, 29, 30, 31)
#define NIBBLE_NAMES_64                                                                   \
  NIBBLE_NAMES_32 "," NIBBLE_FOUR(32, 33, 34, 35) "," NIBBLE_FOUR(36, 37, 38, 39) ","     \
  NIBBLE_FOUR(40, 41, 42, 43) "," NIBBLE_FOUR(44, 45, 46, 47) ","                         \
  NIBBLE_FOUR(48, 49, 50, 51) "," NIBBLE_FOUR(52, 53, 54, 55) ","                         \
  NIBBLE_FOUR(56, 57, 58, 59) "," NIBBLE_FOUR(60, 61, 62, 63)

#define NIBBLE_OUT(i) "=f"(d[i])
#define NIBBLE_INOUT(i) "+f"(d[i])
#define NIBBLE_LIST_4(X, i) X(i), X((i) + 1), X((i) + 2), X((i) + 3)
#define NIBBLE_LIST_8(X, i) NIBBLE_LIST_4(X, i), NIBBLE_LIST_4(X, (i) + 4)
#define NIBBLE_LIST_16(X, i) NIBBLE_LIST_8(X, i), NIBBLE_LIST_8(X, (i) + 8)
#define NIBBLE_LIST_32(X, i) NIBBLE_LIST_16(X, i), NIBBLE_LIST_16(X, (i) + 16)
#define NIBBLE_LIST_64(X, i) NIBBLE_LIST_32(X, i), NIBBLE_LIST_32(X, (i) + 32)

// What ends the instruction: factors of 1, and for BF16 that neither operand is transposed.
#define NIBBLE_TAIL_e4m3 ", accumulate, 1, 1;\n\t}"
#define NIBBLE_TAIL_bf16 ", accumulate, 1, 1, 0, 0;\n\t}"

// `accumulate`: the number that decides; a, b: the descriptors' places after d's
#define NIBBLE_WGMMA(name, accumulate, type, k, n, count, list, a_place, b_place)               \
  __device__ __forceinline__ void name(float(&d)[count], uint64_t a, uint64_t b) {              \
    asm volatile(                                                                               \
        "{\n\t.reg .pred accumulate;\n\tsetp.ne.b32 accumulate, " #accumulate ", 0;\n\t"        \
        "wgmma.mma_async.sync.aligned.m64n" #n "k" #k ".f32." #type "." #type " {"              \
        NIBBLE_NAMES_##count "}, %" #a_place ", %" #b_place NIBBLE_TAIL_##type                  \
        : NIBBLE_LIST_##count(list, 0) : "l"(a), "l"(b));                                       \
  }
#define NIBBLE_WGMMA_PAIR(type, k, n, count, a_place, b_place)                                  \
  NIBBLE_WGMMA(wgmma_##type##_first, 0, type, k, n, count, NIBBLE_OUT, a_place, b_place)        \
  NIBBLE_WGMMA(wgmma_##type##_add, 1, type, k, n, count, NIBBLE_INOUT, a_place, b_place)

NIBBLE_WGMMA_PAIR(e4m3, 32, 8, 4, 4, 5)
NIBBLE_WGMMA_PAIR(e4m3, 32, 16, 8, 8, 9)
NIBBLE_WGMMA_PAIR(e4m3, 32, 32, 16, 16, 17)
NIBBLE_WGMMA_PAIR(e4m3, 32, 64, 32, 32, 33)
NIBBLE_WGMMA_PAIR(e4m3, 32, 128, 64, 64, 65)
// The same with A in registers, as common/wgmma.cuh says. What d held counts as read, so that it keeps
// its registers.
#define NIBBLE_WGMMA_REGISTERS(name, accumulate)                                          \
  __device__ __forceinline__ void name(float(&d)[32], const uint32_t(&a)[4], uint64_t b) {      \
    asm volatile(                                                                               \
        "{\n\t.reg .pred accumulate;\n\tsetp.ne.b32 accumulate, " #accumulate ", 0;\n\t"        \
        "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {" NIBBLE_NAMES_32 "}, "          \
        "{%32,%33,%34,%35}, %36" NIBBLE_TAIL_e4m3                                               \
        : NIBBLE_LIST_32(NIBBLE_INOUT, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));        \
  }
NIBBLE_WGMMA_REGISTERS(wgmma_e4m3_first, 0)
NIBBLE_WGMMA_REGISTERS(wgmma_e4m3_add, 1)
NIBBLE_WGMMA_PAIR(bf16, 16, 8, 4, 4, 5)
NIBBLE_WGMMA_PAIR(bf16, 16, 16, 8, 8, 9)
NIBBLE_WGMMA_PAIR(bf16, 16, 32, 16, 16, 17)
NIBBLE_WGMMA_PAIR(bf16, 16, 64, 32, 32, 33)
NIBBLE_WGMMA_PAIR(bf16, 16, 128, 64, 64, 65)

#undef NIBBLE_WGMMA_PAIR
#undef NIBBLE_WGMMA_REGISTERS
#undef NIBBLE_WGMMA
// clang-format on

}  // namespace nibble::kernels::cuda
