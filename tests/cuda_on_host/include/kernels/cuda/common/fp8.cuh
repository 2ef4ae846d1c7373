// Stands in for kernels/cuda/common/fp8.cuh on the host.
#pragma once

#include "cuda_on_host/cuda_on_host.h"

namespace nibble::kernels::cuda {

inline uint32_t e4m3_scale_exponent(float amax) {
  const uint32_t ratio = __float_as_uint(std::max(amax, 1e-4f) / 448.0f);
  return (ratio >> 23) + ((ratio & 0x7FFFFFU) != 0 ? 1 : 0);
}
inline float power_of_two(uint32_t exponent) { return __uint_as_float(exponent << 23); }
inline float inverse_power_of_two(uint32_t exponent) {
  return __uint_as_float((254 - exponent) << 23);
}
inline uint32_t to_e4m3x4(const float (&v)[4], float factor) {
  return cuda_on_host::to_e4m3x2(v[0] * factor, v[1] * factor) |
         cuda_on_host::to_e4m3x2(v[2] * factor, v[3] * factor) << 16;
}
inline float warp_max(float value) {
  for (int step = 16; step > 0; step /= 2) {
    value = std::max(value, __shfl_xor_sync(~0U, value, step));
  }
  return value;
}

}  // namespace nibble::kernels::cuda
