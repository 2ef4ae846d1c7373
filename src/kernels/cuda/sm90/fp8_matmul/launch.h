// Dense products with FP8 128x128 weights for few tokens on sm_90a: E4M3 x E4M3 on tensor cores,
// scales applied in f32 per 128 values of k.
#pragma once

#include "device/device.h"
#include "kernels/op_args.h"

namespace nibble::kernels::cuda {

// Tokens that the kernels are compiled for.
inline constexpr int32_t kMaxFp8Tokens = 16;

// How many parts k is best split into for f32 results: the fewest that give every multiprocessor
// work. Of the shape alone, so that sums do not depend on the load.
int32_t fp8_matmul_splits(int64_t n, int64_t k, int32_t num_units);

// Limits: m at most 16; n a multiple of 64, or of 128 for results in FP8; k / splits a multiple of
// 256 and at most 8192.
Result<void> launch_fp8_matmul_sm90(const DeviceMatMulArgs& args, device::Stream& stream);

}  // namespace nibble::kernels::cuda
