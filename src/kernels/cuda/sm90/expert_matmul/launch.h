// Routed experts with MXFP4 weights on sm_90a: y[pair, :] = W_expert(pair) x[row(pair), :] for
// every (token, choice) pair, in E5M2 x E4M3 on tensor cores. Weights are exact, activations are
// E4M3 codes; scales are applied in f32.
#pragma once

#include "device/device.h"
#include "kernels/device_args.h"

namespace nibble::kernels::cuda {

// Rows per slot that the kernels are compiled for. One is for a single token, whose experts are all
// different.
inline constexpr int32_t kOneSlotRow = 1;
inline constexpr int32_t kSmallSlotRows = 8;
inline constexpr int32_t kLargeSlotRows = 16;

// How a launch fills the machine. The order of sums depends on `warpgroups` only, and that on k.
struct ExpertMatMulShape {
  int32_t warpgroups = 0;       // that split k: 1, 2 or 4
  int32_t blocks_per_unit = 0;  // blocks per multiprocessor: 1 or 2
  int32_t ring_stages = 0;      // weight stages in flight per block, a multiple of warpgroups
};
ExpertMatMulShape expert_matmul_shape(const DeviceGroupedMatMulArgs& args);

// Limits: n a multiple of 64, k of 256 and at most 4096.
Result<void> launch_expert_matmul_sm90(const DeviceGroupedMatMulArgs& args, device::Stream& stream);
// With a shape of one's own, for measuring.
Result<void> launch_expert_matmul_sm90_shaped(const DeviceGroupedMatMulArgs& args,
                                              const ExpertMatMulShape& shape,
                                              device::Stream& stream);

}  // namespace nibble::kernels::cuda
