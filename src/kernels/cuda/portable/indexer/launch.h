// The indexer's scores on any GPU since sm_80: any number of heads, widths that are multiples of 16
// up to 256. Products are exact, sums in f32.
#pragma once

#include "device/device.h"
#include "kernels/kernel.h"

namespace nibble::kernels::cuda {

Result<void> launch_portable_indexer_score(const DeviceIndexerScoreArgs& args,
                                           device::Stream& stream);

}  // namespace nibble::kernels::cuda
