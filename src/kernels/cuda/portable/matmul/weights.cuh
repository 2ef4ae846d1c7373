// Weight codes of kRowMajor rows as BF16 operands, exactly, or as FP16 operands where activations
// are FP8. Device code only.
//
// A unit is 32 values of k. Lane 4 g + t of a warp decodes eight codes of rows g and g + 8 of a
// unit: values 8 t to 8 t + 7, or, where a scale covers 16 values, 4 t to 4 t + 3 of either half.
// pairs[i] holds values 2 i and 2 i + 1, the first in the lower half; where a code needs more than
// eight significant bits, the sum of its terms is the value. FP16 pairs are the value over
// kF16Scale; interleaved, pairs 2 i and 2 i + 1 hold values 4 i, 4 i + 2 and 4 i + 1, 4 i + 3.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/common/fp8.cuh"
#include "kernels/cuda/common/mma.cuh"

namespace nibble::kernels::cuda {

inline constexpr uint32_t kBf16x2MinusZero = 0x80008000U;

// Four E4M3 codes as BF16. Sign and magnitude bits are moved in place, which gives the value times
// 2^-120, subnormal codes included.
__device__ __forceinline__ void decode_e4m3x4(uint32_t codes, uint32_t& first, uint32_t& second) {
  constexpr uint32_t kTwoTo120 = 0x7B807B80U;
  const uint32_t low = __byte_perm(codes, 0, 0x1404), high = __byte_perm(codes, 0, 0x3424);
  first = (low & 0x80008000U) | ((low >> 4) & 0x07F007F0U);
  second = (high & 0x80008000U) | ((high >> 4) & 0x07F007F0U);
  first = fma_bf16x2(first, kTwoTo120, kBf16x2MinusZero);
  second = fma_bf16x2(second, kTwoTo120, kBf16x2MinusZero);
  const uint32_t is_nan = ((codes & 0x7F7F7F7FU) + 0x01010101U) & 0x80808080U;
  if (is_nan != 0) {
    first |= ((is_nan & 0x80U) != 0 ? 0x7FC0U : 0) | ((is_nan & 0x8000U) != 0 ? 0x7FC00000U : 0);
    second |=
        ((is_nan & 0x800000U) != 0 ? 0x7FC0U : 0) | ((is_nan & 0x80000000U) != 0 ? 0x7FC00000U : 0);
  }
}

struct E2m1Weights {
  static constexpr int kBits = 4, kTerms = 1;
  static constexpr bool kHasScales = true;
  using Word = uint32_t;

  // Magnitude bits at 8 .. 6 of a BF16 are the value times 2^-126.
  static __device__ __forceinline__ void decode(Word word, uint32_t (&pairs)[kTerms][4]) {
    constexpr uint32_t kTwoTo126 = 0x7E807E80U;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // Both nibbles to bits 9 .. 6 of their half.
      const uint32_t spread = __byte_perm(word, 0, 0x4440 + i) * 0x00040040U;
      const uint32_t tiny = ((spread << 6) & 0x80008000U) | (spread & 0x01C001C0U);
      pairs[0][i] = fma_bf16x2(tiny, kTwoTo126, kBf16x2MinusZero);
    }
  }

  // Magnitude bits at 11 .. 9 of an FP16 are the value times 2^-14.
  static constexpr float kF16Scale = 0x1p14F;
  static constexpr bool kIsF16Interleaved = true;
  static __device__ __forceinline__ void decode_f16(Word word, uint32_t (&pairs)[kTerms][4]) {
    const uint32_t even = ((word << 1) & 0x0E0E0E0EU) | ((word << 4) & 0x80808080U);
    const uint32_t odd = ((word >> 3) & 0x0E0E0E0EU) | (word & 0x80808080U);
    pairs[0][0] = __byte_perm(even, 0, 0x1404);
    pairs[0][1] = __byte_perm(odd, 0, 0x1404);
    pairs[0][2] = __byte_perm(even, 0, 0x3424);
    pairs[0][3] = __byte_perm(odd, 0, 0x3424);
  }
};

struct Mxfp4Weights : E2m1Weights {
  static constexpr bool kIsScaledPer16 = false;
};
struct Nvfp4Weights : E2m1Weights {
  static constexpr bool kIsScaledPer16 = true;
};

struct Int4Weights {
  static constexpr int kBits = 4, kTerms = 1;
  static constexpr bool kHasScales = true, kIsScaledPer16 = false;
  using Word = uint32_t;

  // A nibble in the mantissa of 128 makes 128 + nibble; the value is nibble - 8.
  static __device__ __forceinline__ void decode(Word word, uint32_t (&pairs)[kTerms][4]) {
    constexpr uint32_t k128 = 0x43004300U, kOne = 0x3F803F80U, kMinus136 = 0xC308C308U;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t spread = __byte_perm(word, 0, 0x4440 + i) * 0x1001U;
      pairs[0][i] = fma_bf16x2((spread & 0x000F000FU) | k128, kOne, kMinus136);
    }
  }
};

struct E4m3Weights {
  static constexpr int kBits = 8, kTerms = 1;
  static constexpr bool kHasScales = true, kIsScaledPer16 = false;
  using Word = uint2;

  static __device__ __forceinline__ void decode(const Word& word, uint32_t (&pairs)[kTerms][4]) {
    decode_e4m3x4(word.x, pairs[0][0], pairs[0][1]);
    decode_e4m3x4(word.y, pairs[0][2], pairs[0][3]);
  }

  static constexpr float kF16Scale = 1;
  static constexpr bool kIsF16Interleaved = false;
  static __device__ __forceinline__ void decode_f16(const Word& word,
                                                    uint32_t (&pairs)[kTerms][4]) {
    pairs[0][0] = e4m3x2_to_f16x2(word.x);
    pairs[0][1] = e4m3x2_to_f16x2(word.x >> 16);
    pairs[0][2] = e4m3x2_to_f16x2(word.y);
    pairs[0][3] = e4m3x2_to_f16x2(word.y >> 16);
  }
};

struct Bf16Weights {
  static constexpr int kBits = 16, kTerms = 1;
  static constexpr bool kHasScales = false, kIsScaledPer16 = false;
  using Word = uint4;

  static __device__ __forceinline__ void decode(const Word& word, uint32_t (&pairs)[kTerms][4]) {
    pairs[0][0] = word.x;
    pairs[0][1] = word.y;
    pairs[0][2] = word.z;
    pairs[0][3] = word.w;
  }
};

// Eleven significant bits: the nearest BF16 and what is left.
struct F16Weights {
  static constexpr int kBits = 16, kTerms = 2;
  static constexpr bool kHasScales = false, kIsScaledPer16 = false;
  using Word = uint4;

  static __device__ __forceinline__ void decode(const Word& word, uint32_t (&pairs)[kTerms][4]) {
    const uint32_t words[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float low = __half2float(__ushort_as_half(static_cast<uint16_t>(words[i])));
      const float high = __half2float(__ushort_as_half(static_cast<uint16_t>(words[i] >> 16)));
      pairs[0][i] = pack_bf16x2(low, high);
      pairs[1][i] = pack_bf16x2(low - low_bf16(pairs[0][i]), high - high_bf16(pairs[0][i]));
    }
  }
};

}  // namespace nibble::kernels::cuda
