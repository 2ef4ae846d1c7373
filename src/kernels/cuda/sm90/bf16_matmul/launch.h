// Dense products with BF16 weights on sm_90a for any number of tokens, by tensor cores in BF16 with
// sums in f32.
#pragma once

#include "device/device.h"
#include "kernels/device_args.h"

namespace nibble::kernels::cuda {

// Limits of both: n / groups and k / splits multiples of 64. Results are f32 sums.

// Activations in BF16, as blocks.
Result<void> launch_bf16_matmul_sm90(const DeviceMatMulArgs& args, device::Stream& stream);
// Activations in f32, as terms: multiplied exactly.
Result<void> launch_bf16_matmul_f32_sm90(const DeviceMatMulArgs& args, device::Stream& stream);

}  // namespace nibble::kernels::cuda
