// Dense products with FP8 128x128 weights for many tokens on sm_90a, over the layout of the product
// for few: E4M3 x E4M3 on tensor cores, scales applied in f32 per 128 values of k.
#pragma once

#include "device/device.h"
#include "kernels/device_args.h"

namespace nibble::kernels::cuda {

// Limits of both: n / groups a multiple of 64, k / splits of 128. Results are f32 sums.

// Up to 128 tokens.
Result<void> launch_fp8_batch_matmul_sm90(const DeviceMatMulArgs& args, device::Stream& stream);
// Any number of tokens, made for more than 128.
Result<void> launch_fp8_prefill_matmul_sm90(const DeviceMatMulArgs& args, device::Stream& stream);

}  // namespace nibble::kernels::cuda
