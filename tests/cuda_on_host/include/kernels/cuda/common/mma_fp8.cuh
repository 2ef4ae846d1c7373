// Stands in for kernels/cuda/common/mma_fp8.cuh on the host. Source of fragments and of the lanes
// that give scales: PTX ISA 9.0, "mma.m16n8k32", "block scaling".
#pragma once

#include "cuda_on_host/cuda_on_host.h"

namespace nibble::kernels::cuda {

// d += sum over k of a(row, k) b(k, column) * scale(row, column).
template <class A, class Scale>
void mma_k32(float (&d)[4],
             const cuda_on_host::WarpWords& all,
             const A& a_value,
             const Scale& scale) {
  const size_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  for (size_t i = 0; i < 4; ++i) {
    const size_t row = g + 8 * (i / 2), column = 2 * t + i % 2;
    double sum = 0;
    for (size_t k = 0; k < 32; ++k) {
      const size_t quad = k % 16 / 4, shift = k % 4 * 8;
      const uint32_t from_a = all[row % 8 * 4 + quad][row / 8 + 2 * (k / 16)];
      const uint32_t from_b = all[column * 4 + quad][4 + k / 16];
      sum += static_cast<double>(a_value(from_a >> shift & 0xFFU)) *
             cuda_on_host::e4m3(from_b >> shift);
    }
    d[i] = static_cast<float>(d[i] + sum * scale(row, column));
  }
}

inline void mma_e4m3(float (&d)[4], const uint32_t (&a)[4], uint2 b) {
  const auto all = cuda_on_host::show({a[0], a[1], a[2], a[3], b.x, b.y});
  mma_k32(d, all, &cuda_on_host::e4m3, [](size_t, size_t) { return 1.0; });
}

inline double e8m0(uint32_t byte) {
  byte &= 0xFFU;
  return byte == 255 ? std::nan("") : std::ldexp(1.0, static_cast<int>(byte) - 127);
}

inline void mma_e2m1_e4m3(
    float (&d)[4], const uint32_t (&a)[4], uint2 b, uint32_t scale_a, uint32_t scale_b) {
  const auto all = cuda_on_host::show({a[0], a[1], a[2], a[3], b.x, b.y, scale_a, scale_b});
  const auto container = [](uint32_t byte) {
    CHECK((byte & 0xC3U) == 0) << "bits outside of the code's container";
    return cuda_on_host::e2m1(byte >> 2);
  };
  mma_k32(d, all, container, [&all](size_t row, size_t column) {
    return e8m0(all[row % 8 * 4 + row / 8][6]) * e8m0(all[column * 4][7]);
  });
}

inline float2 e4m3x2_to_f32(uint32_t codes) {
  return {cuda_on_host::e4m3(codes), cuda_on_host::e4m3(codes >> 8)};
}

}  // namespace nibble::kernels::cuda
