// Dense products for few tokens on sm_90a, by tensor cores: FP8 128x128 weights with E4M3
// activations, scales applied in f32 per 128 values of k; BF16 weights with f32 activations, exact
// products summed in f32; two products in a launch, of the same tokens or one after the other.
#pragma once

#include "device/device.h"
#include "kernels/device_args.h"

namespace nibble::kernels::cuda {

// Tokens that the kernels are compiled for.
inline constexpr int32_t kMaxPanelTokens = 16;

// Limits: m at most 16; n a multiple of 64; k / splits a multiple of 256 and at most 8192.
Result<void> launch_fp8_matmul_sm90(const DeviceMatMulArgs& args, device::Stream& stream);
// Limits: m at most 16; n a multiple of 64; k / splits a multiple of 256.
Result<void> launch_bf16_terms_matmul_sm90(const DeviceMatMulArgs& args, device::Stream& stream);
// An FP8 product and another one within these limits, with the bits that they have alone.
Result<void> launch_matmul_pair_sm90(const DeviceMatMulPairArgs& args, device::Stream& stream);
// An FP8 product and one of its results, each with the bits that it has alone. m: at most 8.
Result<void> launch_matmul_chain_sm90(const DeviceMatMulChainArgs& args, device::Stream& stream);

}  // namespace nibble::kernels::cuda
