// Sparse latent attention on sm_90a in BF16, keys in BF16 or FP8, for one token and for thousands
// (decode and prefill): products exact, sums in f32, probabilities rounded to BF16.
#pragma once

#include "device/device.h"
#include "kernels/device_args.h"

namespace nibble::kernels::cuda {

// How a launch fills the machine. A token's bits depend on the shape and on its own data.
struct SparseAttentionShape {
  enum class Kernel { kCluster, kWarpgroups };
  Kernel kernel = Kernel::kCluster;
  int32_t splits = 16;  // blocks per token and group of heads: kCluster 8 or 16, else 1, 2, 4 or 8
};
SparseAttentionShape sparse_attention_shape(const DeviceSparseAttentionArgs& args);

// Limits: heads a multiple of 16, at most 64 rotary columns; queries as sums for up to kFewTokens.
Result<void> launch_sparse_attention_sm90(const DeviceSparseAttentionArgs& args,
                                          device::Stream& stream);
// The same with one shape for every m, so that a token has the same bits in every batch.
Result<void> launch_sparse_attention_sm90_fixed(const DeviceSparseAttentionArgs& args,
                                                device::Stream& stream);
// With a shape of one's own, for measuring. kWarpgroups: heads a multiple of 64.
Result<void> launch_sparse_attention_sm90_shaped(const DeviceSparseAttentionArgs& args,
                                                 const SparseAttentionShape& shape,
                                                 device::Stream& stream);

}  // namespace nibble::kernels::cuda
