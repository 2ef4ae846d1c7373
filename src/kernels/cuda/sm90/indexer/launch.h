// The indexer's scores on sm_90a with keys in BF16: products exact, sums in f32.
#pragma once

#include "device/device.h"
#include "kernels/device_args.h"

namespace nibble::kernels::cuda {

// The most columns of a launch that selects.
inline constexpr int64_t kIndexerMaxSelectColumns = 16384;

// Limits: 64 heads of width 128; a power of two of entries per page.
Result<void> launch_indexer_score_sm90(const DeviceIndexerScoreArgs& args, device::Stream& stream);

}  // namespace nibble::kernels::cuda
