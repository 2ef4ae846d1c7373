// Selection of the k best scores of each row, exact, on any GPU since sm_80, for any k and any
// number of scores.
#pragma once

#include "device/device.h"
#include "kernels/kernel.h"

namespace nibble::kernels::cuda {

// The workspace is not used.
Result<void> launch_portable_top_k(const DeviceTopKArgs& args, device::Stream& stream);

}  // namespace nibble::kernels::cuda
