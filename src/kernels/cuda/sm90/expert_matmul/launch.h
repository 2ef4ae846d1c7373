// Routed experts on sm_90a: y[pair, :] = W_expert(pair) x[row(pair), :] for every (token, choice)
// pair, on tensor cores with E4M3 activations. Weights: MXFP4, NVFP4 or INT4 with groups of 32 in
// PackedLayout::kPanel64, exact; scales are applied in f32, or in FP16 where that is exact.
#pragma once

#include "device/device.h"
#include "kernels/device_args.h"

namespace nibble::kernels::cuda {

// Rows per slot that the kernels for few rows are compiled for. One is for a single token, whose
// experts are all different; it reads x.bf16, where that is not null, and quantises it, and takes
// DeviceGroupedMatMulArgs::down.
inline constexpr int32_t kOneSlotRow = 1;
inline constexpr int32_t kSmallSlotRows = 8;
inline constexpr int32_t kLargeSlotRows = 16;

// Rows per slot of the kernel for many rows; NVFP4 and INT4 have the first only.
inline constexpr int32_t kPrefillSlotRows[] = {64, 128, 256};

// Limits: n a multiple of 64, k of 256 and at most 7168.
Result<void> launch_expert_matmul_sm90(const DeviceGroupedMatMulArgs& args, device::Stream& stream);
// k of any multiple of 256.
Result<void> launch_expert_prefill_sm90(const DeviceGroupedMatMulArgs& args,
                                        device::Stream& stream);

}  // namespace nibble::kernels::cuda
