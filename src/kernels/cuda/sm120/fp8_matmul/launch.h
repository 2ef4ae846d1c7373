// Dense products with FP8 128x128 weights on sm_120: E4M3 x E4M3 on tensor cores, scales applied in
// f32 per 128 values of k.
#pragma once

#include "device/device.h"
#include "kernels/device_args.h"

namespace nibble::kernels::cuda {

// Limits: m at most 16; n / groups a multiple of 16, or of 128 for results in FP8; k of 256.
Result<void> launch_fp8_matmul_sm120(const DeviceMatMulArgs& args, device::Stream& stream);
// Any m, results in f32 only. Limits: n / groups a multiple of 64; k of 256.
Result<void> launch_fp8_tile_matmul_sm120(const DeviceMatMulArgs& args, device::Stream& stream);

}  // namespace nibble::kernels::cuda
