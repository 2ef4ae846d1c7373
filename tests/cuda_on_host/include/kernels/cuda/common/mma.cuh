// Stands in for kernels/cuda/common/mma.cuh on the host. Source of fragments: PTX ISA 9.0,
// "mma.m16n8k16".
#pragma once

#include "cuda_on_host/cuda_on_host.h"
#include "quant/numeric.h"

namespace nibble::kernels::cuda {

inline float half_of(uint32_t pair, size_t half) {
  return __uint_as_float(half == 0 ? pair << 16 : pair & 0xFFFF0000U);
}

inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const cuda_on_host::WarpWords all = cuda_on_host::show({a[0], a[1], a[2], a[3], b0, b1});
  const size_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  for (size_t i = 0; i < 4; ++i) {
    const size_t row = g + 8 * (i / 2), column = 2 * t + i % 2;
    double sum = d[i];
    for (size_t k = 0; k < 16; ++k) {
      const uint32_t from_a = all[row % 8 * 4 + k % 8 / 2][row / 8 + 2 * (k / 8)];
      const uint32_t from_b = all[column * 4 + k % 8 / 2][4 + k / 8];
      sum += static_cast<double>(half_of(from_a, k % 2)) * half_of(from_b, k % 2);
    }
    d[i] = static_cast<float>(sum);
  }
}

inline uint32_t pack_bf16x2(float low, float high) {
  return quant::f32_to_bf16(low) | static_cast<uint32_t>(quant::f32_to_bf16(high)) << 16;
}

}  // namespace nibble::kernels::cuda
