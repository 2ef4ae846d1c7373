// Selection of the k best scores of each row, exact, on GPUs with clusters (sm_90 and later).
#pragma once

#include <cstdint>

#include "device/device.h"
#include "kernels/device_args.h"

namespace nibble::kernels::cuda {

// The longest row and the largest k that can be selected.
inline constexpr int64_t kTopKMaxColumns = 262144;
inline constexpr int32_t kTopKMaxSelected = 1024;

// Bytes of DeviceTopKArgs::workspace for rows of `columns` scores.
int64_t top_k_workspace_bytes(int32_t m, int32_t k, int64_t columns);

// Limits: columns <= kTopKMaxColumns, k <= kTopKMaxSelected.
Result<void> launch_top_k(const DeviceTopKArgs& args, device::Stream& stream);

}  // namespace nibble::kernels::cuda
