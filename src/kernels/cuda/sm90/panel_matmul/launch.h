// Dense products for few tokens on sm_90a, by tensor cores: FP8 128x128 weights with E4M3
// activations, scales applied in f32 per 128 values of k; BF16 weights with f32 activations, exact
// products summed in f32; two products of the same tokens in a launch.
#pragma once

#include "device/device.h"
#include "kernels/device_args.h"

namespace nibble::kernels::cuda {

// Tokens that the kernels are compiled for.
inline constexpr int32_t kMaxPanelTokens = 16;

// Limits: m at most 16; n a multiple of 64; k / splits a multiple of 256 and at most 8192. With
// y_fp8: n / groups and k multiples of 128, k at most 8192.
Result<void> launch_fp8_matmul_sm90(const DeviceMatMulArgs& args, device::Stream& stream);
// Limits: m at most 16; n a multiple of 64; k / splits a multiple of 256.
Result<void> launch_bf16_terms_matmul_sm90(const DeviceMatMulArgs& args, device::Stream& stream);
// A product of FP8 weights and another one, of FP8 or BF16 weights. Limits: m at most 16; n
// multiples of 64; k / splits multiples of 256, of FP8 weights at most 8192.
Result<void> launch_matmul_pair_sm90(const DeviceMatMulPairArgs& args, device::Stream& stream);

}  // namespace nibble::kernels::cuda
