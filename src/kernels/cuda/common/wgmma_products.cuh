// Warpgroup matrix products of sm_90a: D[64, N] (+)= A B with A [64, 32] and B [32, N] of 8-bit
// numbers, or [64, 16] and [16, N] of 16-bit ones: 32 bytes along k. Device code only. Source: PTX
// ISA 9.0, "wgmma.mma_async". D and the rules: see common/wgmma.cuh.
//
// X_first(d, a, b) is D = A B, X_add is D += A B; N is twice the size of d. b: descriptor of a tile
// whose rows run along k. a: such a descriptor, or four registers; those of FP16 are, per thread,
// a[0] row g k 2t, 2t + 1, a[1] row g + 8, a[2] row g k 8 + 2t, 8 + 2t + 1, a[3] row g + 8.
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
NIBBLE_WGMMA_PAIR(bf16, 16, 8, 4, 4, 5)
NIBBLE_WGMMA_PAIR(bf16, 16, 16, 8, 8, 9)
NIBBLE_WGMMA_PAIR(bf16, 16, 32, 16, 16, 17)
NIBBLE_WGMMA_PAIR(bf16, 16, 64, 32, 32, 33)
NIBBLE_WGMMA_PAIR(bf16, 16, 128, 64, 64, 65)


// The same with A in registers.   shape: of the instruction, with its types
#define NIBBLE_REGISTERS_4 "{" NIBBLE_FOUR(4, 5, 6, 7) "}, %8"
#define NIBBLE_REGISTERS_8 "{" NIBBLE_FOUR(8, 9, 10, 11) "}, %12"
#define NIBBLE_REGISTERS_32 "{" NIBBLE_FOUR(32, 33, 34, 35) "}, %36"
#define NIBBLE_TAIL_f16 ", accumulate, 1, 1, 0;\n\t}"
#define NIBBLE_WGMMA_REGISTERS(name, accumulate, shape, count, list, tail)                      \
  __device__ __forceinline__ void name(float(&d)[count], const uint32_t* a, uint64_t b) {       \
    asm volatile(                                                                               \
        "{\n\t.reg .pred accumulate;\n\tsetp.ne.b32 accumulate, " #accumulate ", 0;\n\t"        \
        "wgmma.mma_async.sync.aligned." shape " {" NIBBLE_NAMES_##count "}, "                   \
        NIBBLE_REGISTERS_##count tail                                                           \
        : NIBBLE_LIST_##count(list, 0)                                                          \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                  \
  }
#define NIBBLE_WGMMA_REGISTERS_PAIR(name, shape, count, tail)                                   \
  NIBBLE_WGMMA_REGISTERS(name##_first, 0, shape, count, NIBBLE_OUT, tail)                       \
  NIBBLE_WGMMA_REGISTERS(name##_add, 1, shape, count, NIBBLE_INOUT, tail)

NIBBLE_WGMMA_REGISTERS_PAIR(wgmma_e4m3, "m64n8k32.f32.e4m3.e4m3", 4, NIBBLE_TAIL_e4m3)
NIBBLE_WGMMA_REGISTERS_PAIR(wgmma_e4m3, "m64n16k32.f32.e4m3.e4m3", 8, NIBBLE_TAIL_e4m3)
// What d held counts as read, so that it keeps its registers.
NIBBLE_WGMMA_REGISTERS(wgmma_e4m3_first, 0, "m64n64k32.f32.e4m3.e4m3", 32, NIBBLE_INOUT, NIBBLE_TAIL_e4m3)
NIBBLE_WGMMA_REGISTERS(wgmma_e4m3_add, 1, "m64n64k32.f32.e4m3.e4m3", 32, NIBBLE_INOUT, NIBBLE_TAIL_e4m3)
NIBBLE_WGMMA_REGISTERS_PAIR(wgmma_e5m2_e4m3, "m64n8k32.f32.e5m2.e4m3", 4, NIBBLE_TAIL_e4m3)
NIBBLE_WGMMA_REGISTERS_PAIR(wgmma_e5m2_e4m3, "m64n16k32.f32.e5m2.e4m3", 8, NIBBLE_TAIL_e4m3)
NIBBLE_WGMMA_REGISTERS_PAIR(wgmma_e5m2_e4m3, "m64n64k32.f32.e5m2.e4m3", 32, NIBBLE_TAIL_e4m3)
NIBBLE_WGMMA_REGISTERS_PAIR(wgmma_f16, "m64n64k16.f32.f16.f16", 32, NIBBLE_TAIL_f16)

#undef NIBBLE_WGMMA_REGISTERS_PAIR
#undef NIBBLE_WGMMA_REGISTERS
#undef NIBBLE_WGMMA_PAIR
#undef NIBBLE_WGMMA
// clang-format on

// D = A B over 128 k of E4M3.   a_step, b_step: of the descriptors, from 32 k to 32 k
template <int kCount>
__device__ __forceinline__ void wgmma_e4m3_128(
    float (&d)[kCount], uint64_t a, uint64_t b, uint64_t a_step, uint32_t b_step) {
  wgmma_e4m3_first(d, a, b);
  wgmma_e4m3_add(d, a + a_step, b + b_step);
  wgmma_e4m3_add(d, a + 2 * a_step, b + 2 * b_step);
  wgmma_e4m3_add(d, a + 3 * a_step, b + 3 * b_step);
}

}  // namespace nibble::kernels::cuda
