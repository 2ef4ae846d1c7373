// The small ops of a step on a GPU, over the arguments of kernels/device_args.h. Any generation
// since sm_80.
#pragma once

#include "device/device.h"
#include "kernels/device_args.h"

namespace nibble::kernels::cuda {

Result<void> launch_plan(const DevicePlanArgs& args, device::Stream& stream);
Result<void> launch_copy_rows(const DeviceCopyRowsArgs& args, device::Stream& stream);
Result<void> launch_embed(const DeviceEmbedArgs& args, device::Stream& stream);

// Limits: hc_mult at most 4, hidden a multiple of 4 and at most 8192; parts of at most 128 columns.
Result<void> launch_stream_update(const DeviceStreamUpdateArgs& args, device::Stream& stream);
Result<void> launch_stream_mix(const DeviceStreamMixArgs& args, device::Stream& stream);
Result<void> launch_rms_norm(const DeviceRmsNormArgs& args, device::Stream& stream);
Result<void> launch_join_mtp(const DeviceJoinMtpArgs& args, device::Stream& stream);

// Limits: q_rank and head_dim at most 2048; heads and entries of at most 512 values; an even number
// of rotary dimensions that begin at an even one.
Result<void> launch_latents(const DeviceLatentsArgs& args, device::Stream& stream);
Result<void> launch_queries(const DeviceQueriesArgs& args, device::Stream& stream);
Result<void> launch_attended(const DeviceAttendedArgs& args, device::Stream& stream);

// Limits: at most 512 experts and 32 choices; slots of at most 1024 experts.
Result<void> launch_select_experts(const DeviceSelectExpertsArgs& args, device::Stream& stream);
Result<void> launch_make_expert_slots(const DeviceMakeSlotsArgs& args, device::Stream& stream);
Result<void> launch_quantize(const DeviceQuantizeArgs& args, device::Stream& stream);

Result<void> launch_sample(const DeviceSampleArgs& args, device::Stream& stream);

}  // namespace nibble::kernels::cuda
