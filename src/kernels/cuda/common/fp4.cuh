// Expanding 4-bit weights in registers. Device code only.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

#include "kernels/cuda/common/fp8.cuh"
#include "kernels/cuda/common/ptx.cuh"

namespace nibble::kernels::cuda {

// The table bytes of E5M2 for the magnitudes 0, .5, 1, 1.5, 2, 3, 4, 6 times 2^(scale - 13). Adding
// to the exponent is exact for scale bytes 0 .. 26; zero stays zero because its byte is not added
// to.
struct E5m2Table {
  uint32_t low;
  uint32_t high;
};
__device__ __forceinline__ E5m2Table e5m2_table(uint32_t scale) {
  constexpr uint32_t kBias = 13;
  constexpr uint32_t kLowStep = 0x04040400U, kHighStep = 0x04040404U;
  return {scale * kLowStep + (0x3E3C3800U - kBias * kLowStep),
          scale * kHighStep + (0x46444240U - kBias * kHighStep)};
}

// E4M3 of -8 / 4, -1 / 4 .. -7 / 4 for three bits, four bytes each. The magnitudes of these but the
// first share no bit with it, so that a mask makes zero of -8 and clears the others' signs. Kernels
// read tables from shared memory: the compiler would load constants again for every use.
struct Int4Table {
  uint32_t low;
  uint32_t high;
};

// NVFP4's codes need no table: E2M1's bits are those of the E4M3 code of 2^-6 of the value, zero
// and 0.5 included.
struct PlacedE2m1 {};
inline constexpr float kPlacedE2m1Factor = 64;

// Decodes a word of kernels/panel64.h: v0 .. v3 to `first`, v4 .. v7 to `second`, four E4M3 each.
// NVFP4's codes:
__device__ __forceinline__ void decode_panel_word(uint32_t word,
                                                  PlacedE2m1 /*table*/,
                                                  uint32_t& first,
                                                  uint32_t& second) {
  first = word & 0x9C9C9C9CU;
  second = ((word << 2) & 0x8C8C8C8CU) | ((word >> 2) & 0x10101010U);
  keep_in_register(first);  // or they are made behind the fence of the products that read them
  keep_in_register(second);
}
// INT4 codes (sign and magnitude, where minus zero is -8), to a quarter of their value:
__device__ __forceinline__ void decode_panel_word(uint32_t word,
                                                  const Int4Table& table,
                                                  uint32_t& first,
                                                  uint32_t& second) {
  constexpr uint32_t kPlus = 0x3F3F3F3FU;
  const uint32_t codes = word & 0x77777777U;
  first = select_bytes(table.low, table.high, codes) & (sign_bytes(word) | kPlus);
  second = select_bytes(table.low, table.high, codes >> 16) & (sign_bytes(word << 4) | kPlus);
}

// E2M1 codes with MXFP4's scale, to E5M2:
__device__ __forceinline__ void decode_panel_word(uint32_t word,
                                                  E5m2Table table,
                                                  uint32_t& first,
                                                  uint32_t& second) {
  const uint32_t magnitudes = word & 0x77777777U;
  first = select_bytes(table.low, table.high, magnitudes) | (word & 0x80808080U);
  second = select_bytes(table.low, table.high, magnitudes >> 16) | ((word << 4) & 0x80808080U);
}

// Four E4M3 codes of NVFP4, each times `scale`, as two pairs of FP16. The product of E2M1 and E4M3
// has at most six significant bits and lies between 2^-10 and 2688: FP16 holds 2^-6 of it.
__device__ __forceinline__ void scale_to_f16(uint32_t codes,
                                             __half2 scale,
                                             uint32_t& first,
                                             uint32_t& second) {
  const auto times_scale = [&](uint32_t pair) {
    __half2 values;
    memcpy(&values, &pair, sizeof(pair));
    values = __hmul2(values, scale);
    memcpy(&pair, &values, sizeof(pair));
    return pair;
  };
  uint32_t low, high;
  e4m3x4_to_f16x4(codes, low, high);
  first = times_scale(low);
  second = times_scale(high);
}

}  // namespace nibble::kernels::cuda
