// Activations of a unit of 32 values of k as BF16 or FP16 operands. Device code only.
//
// A lane holds eight values of a token's row: those that weights.cuh gives it of a weight's row.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/portable/matmul/weights.cuh"

namespace nibble::kernels::cuda {

// Each form says how to fetch values `first` to first + 3 and `second` to second + 3 of a row, and
// how to make pairs of them; the sum of a pair's terms is what is multiplied.
struct Bf16Activations {
  static constexpr int kBytes = 2, kTerms = 1;
  static constexpr bool kHasScales = false, kIsF16 = false;
  struct Raw {
    uint2 half[2];
  };

  static __device__ __forceinline__ Raw load(const uint8_t* row, int first, int second) {
    return {{__ldcg(reinterpret_cast<const uint2*>(row + 2 * first)),
             __ldcg(reinterpret_cast<const uint2*>(row + 2 * second))}};
  }
  static __device__ __forceinline__ Raw load(const uint8_t* row, int first) {
    const uint4 v = __ldcg(reinterpret_cast<const uint4*>(row + 2 * first));
    return {{{v.x, v.y}, {v.z, v.w}}};
  }
  static __device__ __forceinline__ void expand(const Raw& raw, uint32_t (&pairs)[kTerms][4]) {
    pairs[0][0] = raw.half[0].x;
    pairs[0][1] = raw.half[0].y;
    pairs[0][2] = raw.half[1].x;
    pairs[0][3] = raw.half[1].y;
  }
};

// E4M3 codes, which FP16 has exactly; the scale of a row's 128 values is applied to sums.
struct Fp8Activations {
  static constexpr int kBytes = 1, kTerms = 1;
  static constexpr bool kHasScales = true, kIsF16 = true;
  struct Raw {
    uint32_t half[2];
  };

  static __device__ __forceinline__ Raw load(const uint8_t* row, int first, int second) {
    return {{__ldcg(reinterpret_cast<const uint32_t*>(row + first)),
             __ldcg(reinterpret_cast<const uint32_t*>(row + second))}};
  }
  static __device__ __forceinline__ Raw load(const uint8_t* row, int first) {
    const uint2 v = __ldcg(reinterpret_cast<const uint2*>(row + first));
    return {{v.x, v.y}};
  }
  template <bool kIsInterleaved>
  static __device__ __forceinline__ void expand(const Raw& raw, uint32_t (&pairs)[kTerms][4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t codes = kIsInterleaved ? __byte_perm(raw.half[i], 0, 0x3120) : raw.half[i];
      pairs[0][2 * i] = e4m3x2_to_f16x2(codes);
      pairs[0][2 * i + 1] = e4m3x2_to_f16x2(codes >> 16);
    }
  }
};

// An f32 is the sum of three BF16: exactly, unless the last one is below the smallest normal.
struct F32Activations {
  static constexpr int kBytes = 4, kTerms = 3;
  static constexpr bool kHasScales = false, kIsF16 = false;
  struct Raw {
    float4 half[2];
  };

  static __device__ __forceinline__ Raw load(const uint8_t* row, int first, int second) {
    return {{__ldcg(reinterpret_cast<const float4*>(row + 4 * first)),
             __ldcg(reinterpret_cast<const float4*>(row + 4 * second))}};
  }
  static __device__ __forceinline__ Raw load(const uint8_t* row, int first) {
    return load(row, first, first + 4);
  }
  static __device__ __forceinline__ void expand(const Raw& raw, uint32_t (&pairs)[kTerms][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4& v = raw.half[i / 2];
      float low = i % 2 == 0 ? v.x : v.z, high = i % 2 == 0 ? v.y : v.w;
#pragma unroll
      for (int term = 0; term < kTerms; ++term) {
        pairs[term][i] = pack_bf16x2(low, high);
        low -= low_bf16(pairs[term][i]);
        high -= high_bf16(pairs[term][i]);
      }
    }
  }
};

}  // namespace nibble::kernels::cuda
