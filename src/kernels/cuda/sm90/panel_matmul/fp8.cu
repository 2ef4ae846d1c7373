#include "kernels/cuda/sm90/panel_matmul/cluster_kernel.cuh"
#include "kernels/cuda/sm90/panel_matmul/launch.cuh"
#include "kernels/fp8_clusters.h"

namespace nibble::kernels::cuda {
namespace {

// Stages of the ring beside the sums in a block's shared memory.
int32_t num_cluster_stages(int32_t stage_bytes, int32_t sum_bytes) {
  constexpr int32_t kStaticBytes = (2 * kPanelMaxStages + kClusterBarriers) * 8 + 128;
  return std::min((kPanelBlockBytes - kStaticBytes - sum_bytes) / stage_bytes, kPanelMaxStages);
}

template <int kColumns, int kBlocks>
Result<void> launch_clusters(const DeviceMatMulArgs& args,
                             int32_t clusters,
                             device::Stream& stream) {
  const PackedWeight& weight = *args.weight;
  ClusterMatMulParams params{};
  params.x = reinterpret_cast<const uint8_t*>(args.x.fp8_blocks);
  params.m = args.m;
  params.block_bytes = static_cast<int>(fp8_block_bytes(args.m));
  params.weights = {.codes = reinterpret_cast<const uint8_t*>(weight.codes),
                    .units = static_cast<int>(weight.n / kUnitRows),
                    .tiles = static_cast<int>(weight.k / kFp8TileK),
                    .clusters = clusters};
  params.weight_scales = reinterpret_cast<const float*>(weight.scales);
  params.units_per_group = params.weights.units / args.groups;
  params.y_fp8 = reinterpret_cast<uint8_t*>(args.y_fp8);
  const int32_t stage_bytes = cluster_stage_bytes<kColumns>(params.block_bytes, args.m);
  constexpr int32_t kSumBytes = ClusterSums<kColumns, kBlocks>::kBytes;
  params.ring_stages = num_cluster_stages(stage_bytes, kSumBytes);
  DCHECK(params.ring_stages >= 2) << params.ring_stages;
  return launch_kernel(&fp8_cluster_matmul<kColumns, kBlocks>,
                       {.grid = static_cast<uint32_t>(clusters * kBlocks),
                        .block = kPanelThreads,
                        .shared_bytes = params.ring_stages * stage_bytes + kSumBytes,
                        .is_dependent = args.is_dependent,
                        .cluster = kBlocks,
                        .placement = ClusterPlacement::kBalanced},
                       stream,
                       params);
}

template <int kBlocks>
Result<void> launch_clusters(const DeviceMatMulArgs& args,
                             int32_t clusters,
                             device::Stream& stream) {
  return args.m <= 8 ? launch_clusters<8, kBlocks>(args, clusters, stream)
                     : launch_clusters<16, kBlocks>(args, clusters, stream);
}

// What quantises its results: all of them of 128 outputs meet in a cluster.
Result<void> launch_clusters(const DeviceMatMulArgs& args, device::Stream& stream) {
  const PackedWeight& weight = *args.weight;
  DCHECK(weight.layout == PackedLayout::kFp8Panel64);
  DCHECK(args.m >= 1 && args.m <= kMaxPanelTokens && args.splits == 1) << args.m;
  DCHECK(weight.n % (kUnitRows * args.groups) == 0 && weight.k % kFp8TileK == 0) << weight.n;
  const Fp8Clusters shape = choose_fp8_clusters(weight.n, weight.k, args.num_units);
  switch (shape.blocks) {
    case 1:
      return launch_clusters<1>(args, shape.clusters, stream);
    case 2:
      return launch_clusters<2>(args, shape.clusters, stream);
    case 4:
      return launch_clusters<4>(args, shape.clusters, stream);
    default:
      return launch_clusters<8>(args, shape.clusters, stream);
  }
}

}  // namespace

Result<void> launch_fp8_matmul_sm90(const DeviceMatMulArgs& args, device::Stream& stream) {
  if (args.y_fp8 != nullptr) return launch_clusters(args, stream);
  DCHECK(args.weight->k / args.splits <= kPanelMaxScales * kFp8TileK) << args.weight->k;
  return args.m <= 8 ? launch_panels<8, PanelMath::kFp8>(args, stream)
                     : launch_panels<16, PanelMath::kFp8>(args, stream);
}

}  // namespace nibble::kernels::cuda
