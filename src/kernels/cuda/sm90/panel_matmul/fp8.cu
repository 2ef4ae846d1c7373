#include "kernels/cuda/sm90/panel_matmul/cluster_kernel.cuh"
#include "kernels/cuda/sm90/panel_matmul/launch.cuh"
#include "kernels/fp8_clusters.h"

namespace nibble::kernels::cuda {
namespace {

ClusterWeights cluster_weights(const PackedWeight& weight, int32_t num_units) {
  const Fp8Clusters shape = choose_fp8_clusters(weight.n, weight.k, num_units);
  ClusterWeights weights{.codes = reinterpret_cast<const uint8_t*>(weight.codes),
                         .units = static_cast<int>(weight.n / kUnitRows),
                         .tiles = static_cast<int>(weight.k / kFp8TileK),
                         .log_blocks = 0,
                         .clusters = shape.clusters};
  while (1 << weights.log_blocks < shape.blocks) ++weights.log_blocks;
  return weights;
}

// Shared memory of a block.
struct BlockMemory {
  ClusterMatMulMemory parts;
  int ring_stages;

  BlockMemory(const ClusterWeights& weights, int m, int block_bytes)
      : parts(ClusterMatMulMemory::of(
            m, block_bytes, weights.tiles >> weights.log_blocks, weights.log_blocks)) {
    constexpr int kStaticBytes = (2 * kPanelMaxStages + kClusterBarriers) * 8 + 128;
    const int ring_bytes = kPanelBlockBytes - kStaticBytes - parts.x_bytes - parts.sum_bytes;
    ring_stages = std::min(ring_bytes / kPanelTileBytes, kPanelMaxStages) / 2 * 2;
  }
  int bytes() const { return parts.x_bytes + ring_stages * kPanelTileBytes + parts.sum_bytes; }
};

// Activations come in up to kXParts parts of at least 4 KB, of an even number of tiles.
int x_part_tiles(int own_tiles, int block_bytes) {
  const int least = std::max((own_tiles + kXParts - 1) / kXParts, 4096 / block_bytes);
  return (least + 1) / 2 * 2;
}

template <int kColumns>
Result<void> launch_clusters(const DeviceMatMulArgs& args, device::Stream& stream) {
  ClusterMatMulParams params{};
  params.x = reinterpret_cast<const uint8_t*>(args.x.fp8_blocks);
  params.m = args.m;
  params.block_bytes = static_cast<int>(fp8_block_bytes(args.m));
  params.weights = cluster_weights(*args.weight, args.num_units);
  params.weight_scales = reinterpret_cast<const float*>(args.weight->scales);
  params.units_per_group = params.weights.units / args.groups;
  params.y_fp8 = reinterpret_cast<uint8_t*>(args.y_fp8);
  const int log_blocks = params.weights.log_blocks;
  params.x_part_tiles = x_part_tiles(params.weights.tiles >> log_blocks, params.block_bytes);
  const BlockMemory memory(params.weights, args.m, params.block_bytes);
  // A warpgroup waits for two tiles before it frees either, and there are two.
  DCHECK(memory.ring_stages >= 2 * kPanelWarpgroups) << memory.ring_stages;
  params.ring_stages = memory.ring_stages;
  return launch_kernel(&fp8_cluster_matmul<kColumns>,
                       {.grid = static_cast<uint32_t>(params.weights.clusters << log_blocks),
                        .block = kPanelThreads,
                        .shared_bytes = memory.bytes(),
                        .is_dependent = args.is_dependent,
                        .cluster = 1U << log_blocks},
                       stream,
                       params);
}

// What quantises its results: all of them of 128 outputs meet in a cluster.
Result<void> launch_clusters(const DeviceMatMulArgs& args, device::Stream& stream) {
  const PackedWeight& weight = *args.weight;
  DCHECK(weight.layout == PackedLayout::kFp8Panel64);
  DCHECK(args.m >= 1 && args.m <= kMaxPanelTokens && args.splits == 1) << args.m;
  DCHECK(weight.n % (kUnitRows * args.groups) == 0 && weight.k % kFp8TileK == 0) << weight.n;
  return args.m <= 8 ? launch_clusters<8>(args, stream) : launch_clusters<16>(args, stream);
}

}  // namespace

Result<void> launch_fp8_matmul_sm90(const DeviceMatMulArgs& args, device::Stream& stream) {
  if (args.y_fp8 != nullptr) return launch_clusters(args, stream);
  DCHECK(args.weight->k / args.splits <= kPanelMaxScales * kFp8TileK) << args.weight->k;
  return args.m <= 8 ? launch_panels<8, PanelMath::kFp8>(args, stream)
                     : launch_panels<16, PanelMath::kFp8>(args, stream);
}

}  // namespace nibble::kernels::cuda
