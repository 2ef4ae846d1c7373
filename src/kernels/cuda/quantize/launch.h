// Between two products on a GPU: adds the partial sums of the one and quantises them for the other.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "kernels/device_args.h"

namespace nibble::kernels::cuda {

// Adds `splits` partial sums in order and quantises the result as blocks
// (ActivationForms::fp8_blocks). With swiglu the sums are w1 x over w3 x and the result is
// silu(min(g, limit)) * clamp(u, -limit, limit), limit 0 meaning none.
//   sums: [splits, m, n] f32; y: n, with swiglu n / 2, columns, a multiple of 128
struct QuantizeSumsArgs {
  const float* sums = nullptr;
  int32_t splits = 1;
  int64_t m = 0;
  int64_t n = 0;
  bool swiglu = false;
  float limit = 0;
  std::byte* y = nullptr;
  bool is_dependent = false;
};
Result<void> launch_quantize_sums(const QuantizeSumsArgs& args, device::Stream& stream);

}  // namespace nibble::kernels::cuda
