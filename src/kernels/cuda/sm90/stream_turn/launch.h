// The update of the residual streams and the read behind it in one launch, on sm_90a.
#pragma once

#include "device/device.h"
#include "kernels/device_args.h"

namespace nibble::kernels::cuda {

// Limits: four streams, hidden a multiple of 128 and at most 8192.
Result<void> launch_stream_turn_sm90(const DeviceStreamTurnArgs& args, device::Stream& stream);

}  // namespace nibble::kernels::cuda
