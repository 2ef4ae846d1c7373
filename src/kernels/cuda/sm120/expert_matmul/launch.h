// Routed experts with 4-bit weights on sm_120: y[pair, :] = W_expert(pair) x[row(pair), :] for
// every (token, choice) pair. MXFP4 weights multiply E4M3 activations in block-scaled products,
// NVFP4 weights BF16 activations.
#pragma once

#include "device/device.h"
#include "kernels/device_args.h"

namespace nibble::kernels::cuda {

// Limits: n a multiple of 16, k of 256; slots of 1, 8 or 16 rows, MXFP4 also of 64.
Result<void> launch_mxfp4_experts_sm120(const DeviceGroupedMatMulArgs& args,
                                        device::Stream& stream);
// Slots of 64 rows alone.
Result<void> launch_mxfp4_expert_tiles_sm120(const DeviceGroupedMatMulArgs& args,
                                             device::Stream& stream);
Result<void> launch_nvfp4_experts_sm120(const DeviceGroupedMatMulArgs& args,
                                        device::Stream& stream);

}  // namespace nibble::kernels::cuda
