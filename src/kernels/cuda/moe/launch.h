// Quantised rows between the expert products of tests and benchmarks. Any architecture.
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

}  // namespace nibble::kernels::cuda
