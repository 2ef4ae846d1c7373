// The small ops between products on a GPU, for f32 tensors: the argument blocks of op_args.h with
// every pointer and span in device memory. Any GPU generation.
#pragma once

#include "device/device.h"
#include "kernels/op_args.h"

namespace nibble::kernels::cuda {

Result<void> launch_rms_norm(const RmsNormArgs& args, device::Stream& stream);
Result<void> launch_rope(const RopeArgs& args, device::Stream& stream);

// Limits: hc_mult at most 8.
Result<void> launch_hyper_pre(const HyperPreArgs& args, device::Stream& stream);
Result<void> launch_hyper_post(const HyperPostArgs& args, device::Stream& stream);
Result<void> launch_hyper_head(const HyperHeadArgs& args, device::Stream& stream);

// Limits: at most 512 experts and 32 choices.
Result<void> launch_select_experts(const SelectExpertsArgs& args, device::Stream& stream);

}  // namespace nibble::kernels::cuda
