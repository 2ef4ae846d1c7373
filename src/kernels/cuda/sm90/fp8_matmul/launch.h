// Dense products with FP8 128x128 weights for few tokens on sm_90a: E4M3 x E4M3 on tensor cores,
// scales applied in f32 per 128 values of k.
#pragma once

#include "device/device.h"
#include "kernels/device_args.h"

namespace nibble::kernels::cuda {

// Tokens that the kernels are compiled for.
inline constexpr int32_t kMaxFp8Tokens = 16;

// Limits: m at most 16; n a multiple of 64, or of 128 for results in FP8; k / splits a multiple of
// 256 and at most 8192.
Result<void> launch_fp8_matmul_sm90(const DeviceMatMulArgs& args, device::Stream& stream);

}  // namespace nibble::kernels::cuda
