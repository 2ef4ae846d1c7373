// What stands around the expert products on a GPU: quantised rows, the sum of a token's experts.
// Any architecture.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "kernels/device_args.h"

namespace nibble::kernels::cuda {

// Rows to E4M3 codes with one power-of-two scale per 128 values: max(|x|, 1e-4) / 448 rounded up.
//   x: [rows, k] bf16; codes: [rows, k]; scales: [rows, k / 128]; k a multiple of 128
struct QuantizeRowsArgs {
  const void* x = nullptr;
  int64_t rows = 0;
  int64_t k = 0;
  std::byte* codes = nullptr;
  float* scales = nullptr;
  bool is_dependent = false;
};
Result<void> launch_quantize_rows(const QuantizeRowsArgs& args, device::Stream& stream);

// y[t, :] = shared[t, :] + sum_j experts[t * choices + j, :] in slot order, as CombineExpertsArgs.
//   f32; shared may be null (0) or alias y
struct CombinePairsArgs {
  const float* experts = nullptr;
  const float* shared = nullptr;
  int64_t tokens = 0;
  int32_t choices = 0;
  int64_t n = 0;  // a multiple of 4
  float* y = nullptr;
  bool is_dependent = false;
};
Result<void> launch_combine_pairs(const CombinePairsArgs& args, device::Stream& stream);

}  // namespace nibble::kernels::cuda
