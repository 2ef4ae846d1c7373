// The reference form of every op of a GPU step but products, attention and selection: scalar, one
// thread, on the memory of the emulated GPU. They state what the argument blocks of
// kernels/device_args.h mean.
#pragma once

#include "base/result.h"
#include "device/device.h"
#include "kernels/device_args.h"

namespace nibble::kernels::reference {

Result<void> device_plan(const DevicePlanArgs& args, device::Stream& stream);
Result<void> device_copy_rows(const DeviceCopyRowsArgs& args, device::Stream& stream);
Result<void> device_make_slots(const DeviceMakeSlotsArgs& args, device::Stream& stream);
Result<void> device_embed(const DeviceEmbedArgs& args, device::Stream& stream);
Result<void> device_stream_update(const DeviceStreamUpdateArgs& args, device::Stream& stream);
Result<void> device_stream_turn(const DeviceStreamTurnArgs& args, device::Stream& stream);
Result<void> device_stream_mix(const DeviceStreamMixArgs& args, device::Stream& stream);
Result<void> device_rms_norm(const DeviceRmsNormArgs& args, device::Stream& stream);
Result<void> device_join_mtp(const DeviceJoinMtpArgs& args, device::Stream& stream);
Result<void> device_latents(const DeviceLatentsArgs& args, device::Stream& stream);
Result<void> device_queries(const DeviceQueriesArgs& args, device::Stream& stream);
Result<void> device_attended(const DeviceAttendedArgs& args, device::Stream& stream);
Result<void> device_select_experts(const DeviceSelectExpertsArgs& args, device::Stream& stream);
Result<void> device_quantize(const DeviceQuantizeArgs& args, device::Stream& stream);
Result<void> device_sample(const DeviceSampleArgs& args, device::Stream& stream);

}  // namespace nibble::kernels::reference
