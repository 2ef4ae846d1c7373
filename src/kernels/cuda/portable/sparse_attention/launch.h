// Sparse attention on any GPU since sm_80: any number of heads, widths that are multiples of 16 up
// to 512.
#pragma once

#include "device/device.h"
#include "kernels/kernel.h"

namespace nibble::kernels::cuda {

Result<void> launch_portable_sparse_attention(const DeviceSparseAttentionArgs& args,
                                              device::Stream& stream);

}  // namespace nibble::kernels::cuda
