#include <algorithm>
#include <numbers>

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/sm90/sparse_attention/cluster_kernel.cuh"
#include "kernels/cuda/sm90/sparse_attention/launch.h"
#include "kernels/cuda/sm90/sparse_attention/warpgroup_kernel.cuh"
#include "quant/fp8_key.h"

namespace nibble::kernels::cuda {
namespace {

constexpr quant::Fp8KeyLayout kLayout{.num_codes = kFp8Codes, .num_rotary = kKeyWidth - kFp8Codes};
static_assert(kLayout.row_bytes() == kFp8RowBytes && kLayout.scales_offset() == 8 * kFp8ScaleChunk);

using Kernel = void (*)(SparseAttentionParams);

SparseAttentionParams params_of(const DeviceSparseAttentionArgs& args) {
  DCHECK(args.rotation.num_rotary <= 2 * kRotaryPairs) << args.rotation.num_rotary;
  const auto list = [](const DeviceKeyRows& rows) {
    return KeyList{.pool = static_cast<const uint8_t*>(rows.pool),
                   .rows = rows.rows,
                   .counts = rows.counts,
                   .max_rows = rows.max_rows,
                   .ready_counts = rows.ready_counts};
  };
  return {.q = static_cast<const uint16_t*>(args.q),
          .window = list(args.window),
          .entries = list(args.entries),
          .sink = args.sink,
          .scale_log2 = args.scale * std::numbers::log2e_v<float>,
          .q_sums = args.q_sums,
          .eps = args.eps,
          .positions = args.positions,
          .rotation = args.rotation,
          .out = args.out,
          .m = args.m,
          .heads = args.heads,
          .num_items = args.m * (args.heads / kBlockHeads)};
}

template <int kSplits, int kTileKeys>
Result<void> launch_cluster(const DeviceSparseAttentionArgs& args, device::Stream& stream) {
  using Shape = ClusterAttention<kSplits, kTileKeys>;
  const Kernel kernel = args.kv_dtype == DType::kBf16
                            ? &sparse_attention_cluster<kSplits, kTileKeys, false>
                            : &sparse_attention_cluster<kSplits, kTileKeys, true>;
  return launch_kernel(
      kernel,
      {.grid = static_cast<uint32_t>(args.m * (args.heads / kClusterHeads) * kSplits),
       .block = Shape::kThreads,
       .shared_bytes = Shape::kBytes,
       .is_dependent = args.is_dependent,
       .cluster = kSplits},
      stream,
      params_of(args));
}

template <int kSplits>
Result<void> launch_warpgroups(const DeviceSparseAttentionArgs& args, device::Stream& stream) {
  using Shape = WarpgroupAttention;
  const Kernel kernel = args.kv_dtype == DType::kBf16 ? &sparse_attention_warpgroups<kSplits, false>
                                                      : &sparse_attention_warpgroups<kSplits, true>;
  const SparseAttentionParams params = params_of(args);
  const int32_t blocks =
      kSplits == 1 ? std::min(params.num_items, args.num_units) : params.num_items * kSplits;
  return launch_kernel(kernel,
                       {.grid = static_cast<uint32_t>(blocks),
                        .block = Shape::kThreads,
                        .shared_bytes = Shape::kBytes + Shape::kAlignment,
                        .is_dependent = args.is_dependent,
                        .cluster = kSplits},
                       stream,
                       params);
}

}  // namespace

SparseAttentionShape sparse_attention_shape(const DeviceSparseAttentionArgs& args) {
  using Kernel = SparseAttentionShape::Kernel;
  // Clusters of 16 blocks for more than two tokens would not find room at once.
  constexpr int32_t kFewTokens = 2, kSomeTokens = 4;
  if (args.m <= kFewTokens || args.heads % kBlockHeads != 0) {
    return {.kernel = Kernel::kCluster, .splits = 16};
  }
  if (args.m <= kSomeTokens) return {.kernel = Kernel::kCluster, .splits = 8};
  // As many blocks as find room at once: clusters do not fit every GPC evenly.
  const int32_t items = args.m * (args.heads / kBlockHeads);
  int32_t splits = 1;
  if (items <= 12) {
    splits = 8;
  } else if (items <= 30) {
    splits = 4;
  } else if (items <= 64) {
    splits = 2;
  }
  return {.kernel = Kernel::kWarpgroups, .splits = splits};
}

Result<void> launch_sparse_attention_sm90(const DeviceSparseAttentionArgs& args,
                                          device::Stream& stream) {
  return launch_sparse_attention_sm90_shaped(args, sparse_attention_shape(args), stream);
}

Result<void> launch_sparse_attention_sm90_fixed(const DeviceSparseAttentionArgs& args,
                                                device::Stream& stream) {
  return launch_sparse_attention_sm90_shaped(args, SparseAttentionShape{}, stream);
}

Result<void> launch_sparse_attention_sm90_shaped(const DeviceSparseAttentionArgs& args,
                                                 const SparseAttentionShape& shape,
                                                 device::Stream& stream) {
  DCHECK(args.kv_dtype == DType::kBf16 || args.kv_dtype == DType::kF8E4m3);
  DCHECK(args.heads % kClusterHeads == 0) << args.heads;
  if (shape.kernel == SparseAttentionShape::Kernel::kCluster) {
    return shape.splits == 8 ? launch_cluster<8, 48>(args, stream)
                             : launch_cluster<16, 48>(args, stream);
  }
  DCHECK(args.heads % kBlockHeads == 0 && args.q != nullptr) << args.heads;
  switch (shape.splits) {
    case 8:
      return launch_warpgroups<8>(args, stream);
    case 4:
      return launch_warpgroups<4>(args, stream);
    case 2:
      return launch_warpgroups<2>(args, stream);
    default:
      return launch_warpgroups<1>(args, stream);
  }
}

}  // namespace nibble::kernels::cuda
