// What a warp does with one stage of a slab (kernels/slab16.h): 16 rows x 256 k of weights times
// up to kTiles * 8 columns of activations. Products of codes are exact; sums of 128 k (NVFP4: 16 k)
// start at zero on the tensor cores and are added in f32. Device code only.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/common/mma_fp8.cuh"

namespace nibble::kernels::cuda {

inline constexpr int kSlabStage = 256;  // k of a stage

// acc of lane 4 g + t: tile i's rows g, g + 8 and columns 8 i + 2 t, 8 i + 2 t + 1, as mma.sync's
// D.
template <int kTiles>
using SlabAccumulators = float[kTiles][4];

// MXFP4 x E4M3 by block-scaled products: the scales are operands of the instruction.
// Activations (`x`): codes(tile, k) gives 8 codes of this lane's column 8 tile + g from k on,
// scale_byte(tile, k) the exponent of that column's scale.
struct Mxfp4Slab {
  static constexpr int kStageBytes = 2048 + 128;

  // Codes of a word's low and high nibbles in the 8-bit containers of the instruction.
  static __device__ __forceinline__ uint32_t low_codes(uint32_t word) {
    return (word << 2) & 0x3C3C3C3CU;
  }
  static __device__ __forceinline__ uint32_t high_codes(uint32_t word) {
    return (word >> 2) & 0x3C3C3C3CU;
  }

  //   first_k: of the stage
  template <int kTiles, class X>
  static __device__ __forceinline__ void multiply(
      const uint8_t* stage, const X& x, int first_k, int lane, SlabAccumulators<kTiles>& acc) {
    const int g = lane / 4, t = lane % 4;
    const uint2 row_scales = *reinterpret_cast<const uint2*>(stage + 2048 + 8 * (g + 8 * (t % 2)));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int k = first_k + half * 128;
      const uint32_t scales = half == 0 ? row_scales.x : row_scales.y;
      uint2 b[kTiles][4];
      uint32_t scale_b[kTiles];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        scale_b[tile] = x.scale_byte(tile, k);
#pragma unroll
        for (int step = 0; step < 4; ++step) b[tile][step] = x.codes(tile, k + step * 32 + 8 * t);
      }
      float d[kTiles][4] = {};
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const uint4 words =
            *reinterpret_cast<const uint4*>(stage + (2 * half + step / 2) * 512 + lane * 16);
        const uint32_t top = step % 2 == 0 ? words.x : words.z;
        const uint32_t bottom = step % 2 == 0 ? words.y : words.w;
        const uint32_t a[4] = {
            low_codes(top), low_codes(bottom), high_codes(top), high_codes(bottom)};
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          mma_e2m1_e4m3(d[tile], a, b[tile][step], scales >> (8 * step), scale_b[tile]);
        }
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[tile][i] += d[tile][i];
      }
    }
  }
};

// NVFP4 x BF16: codes are widened to BF16, the scale of 16 k multiplies the sum of its products.
// Activations: values(tile, k) gives 4 BF16 of this lane's column 8 tile + g from k on.
struct Nvfp4Slab {
  static constexpr int kStageBytes = 2048 + 256;

  // The pairs of a word's nibbles, magnitudes by look-up: pairs[j] = (v_2j, v_(2j+1)).
  static __device__ __forceinline__ void widen(uint32_t word, uint32_t (&pairs)[4]) {
    // BF16 of 0, .5, 1, 1.5, 2, 3, 4, 6: low bytes and high bytes.
    constexpr uint32_t kLow[2] = {0xC0800000U, 0xC0804000U};
    constexpr uint32_t kHigh[2] = {0x3F3F3F00U, 0x40404040U};
    const uint32_t even = word & 0x7777U, odd = (word >> 16) & 0x7777U;
    const uint32_t even_low = __byte_perm(kLow[0], kLow[1], even);
    const uint32_t even_high = __byte_perm(kHigh[0], kHigh[1], even);
    const uint32_t odd_low = __byte_perm(kLow[0], kLow[1], odd);
    const uint32_t odd_high = __byte_perm(kHigh[0], kHigh[1], odd);
#pragma unroll
    for (int two = 0; two < 2; ++two) {
      // Values 2j and 2j + 2 of the word as BF16 each, then their odd neighbours.
      const uint32_t selector = two == 0 ? 0x5140U : 0x7362U;
      const uint32_t evens = __byte_perm(even_low, even_high, selector);
      const uint32_t odds = __byte_perm(odd_low, odd_high, selector);
      pairs[2 * two] = __byte_perm(evens, odds, 0x5410);
      pairs[2 * two + 1] = __byte_perm(evens, odds, 0x7632);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) pairs[j] |= (word << (12 - 4 * j)) & 0x80008000U;
  }

  template <int kTiles, class X>
  static __device__ __forceinline__ void multiply(
      const uint8_t* stage, const X& x, int first_k, int lane, SlabAccumulators<kTiles>& acc) {
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int chunk = 0; chunk < 4; ++chunk) {
      const int k = first_k + chunk * 64;
      uint2 b[kTiles][4];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int step = 0; step < 4; ++step) b[tile][step] = x.values(tile, k + step * 16 + 4 * t);
      }
      // The four scales of this chunk, rows g and g + 8.
      const auto* const scales = reinterpret_cast<const uint32_t*>(stage + 2048 + chunk * 4);
      const uint32_t top_scales = scales[g * 4], bottom_scales = scales[(g + 8) * 4];
      const uint4 words = *reinterpret_cast<const uint4*>(stage + chunk * 512 + lane * 16);
#pragma unroll
      for (int group = 0; group < 2; ++group) {
        uint32_t top[4], bottom[4];
        widen(group == 0 ? words.x : words.z, top);
        widen(group == 0 ? words.y : words.w, bottom);
        const float2 s_top = e4m3x2_to_f32((top_scales >> (16 * group)) & 0xFFFFU);
        const float2 s_bottom = e4m3x2_to_f32((bottom_scales >> (16 * group)) & 0xFFFFU);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t a[4] = {
              top[2 * half], bottom[2 * half], top[2 * half + 1], bottom[2 * half + 1]};
          const float first = half == 0 ? s_top.x : s_top.y;
          const float second = half == 0 ? s_bottom.x : s_bottom.y;
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) {
            float d[4] = {};
            const uint2 column = b[tile][2 * group + half];
            mma_bf16(d, a, column.x, column.y);
            acc[tile][0] = fmaf(first, d[0], acc[tile][0]);
            acc[tile][1] = fmaf(first, d[1], acc[tile][1]);
            acc[tile][2] = fmaf(second, d[2], acc[tile][2]);
            acc[tile][3] = fmaf(second, d[3], acc[tile][3]);
          }
        }
      }
    }
  }
};

// FP8 128x128 x E4M3: the scales of weights and activations multiply the sums of 128 k.
// Activations: codes() as of Mxfp4Slab; scales(tile, k) gives those of columns 8 tile + 2 t and
// 8 tile + 2 t + 1.
struct Fp8Slab {
  static constexpr int kStageBytes = 4096 + 16;

  template <int kTiles, class X>
  static __device__ __forceinline__ void multiply(
      const uint8_t* stage, const X& x, int first_k, int lane, SlabAccumulators<kTiles>& acc) {
    const int t = lane % 4;
    const float4 weight_scales = *reinterpret_cast<const float4*>(stage + 4096);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int k = first_k + half * 128;
      const float top = half == 0 ? weight_scales.x : weight_scales.y;
      const float bottom = half == 0 ? weight_scales.z : weight_scales.w;
      uint2 b[kTiles][4];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int step = 0; step < 4; ++step) b[tile][step] = x.codes(tile, k + step * 32 + 8 * t);
      }
      float d[kTiles][4] = {};
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const uint4 words =
            *reinterpret_cast<const uint4*>(stage + (4 * half + step) * 512 + lane * 16);
        const uint32_t a[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) mma_e4m3(d[tile], a, b[tile][step]);
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const float2 scale = x.scales(tile, k);
        acc[tile][0] = fmaf(top * scale.x, d[tile][0], acc[tile][0]);
        acc[tile][1] = fmaf(top * scale.y, d[tile][1], acc[tile][1]);
        acc[tile][2] = fmaf(bottom * scale.x, d[tile][2], acc[tile][2]);
        acc[tile][3] = fmaf(bottom * scale.y, d[tile][3], acc[tile][3]);
      }
    }
  }
};

}  // namespace nibble::kernels::cuda
