#include <algorithm>

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/sm90/fp8_bulk_matmul/kernel.cuh"
#include "kernels/cuda/sm90/fp8_bulk_matmul/launch.h"
#include "kernels/fp8_panel64.h"

namespace nibble::kernels::cuda {
namespace {

static_assert(kBulkTileBytes == kernels::kFp8TileBytes);

// Of a multiprocessor's 228 KB, less the 1 KB that the system takes of each block and the barriers.
template <int kBlocks>
constexpr int32_t kRingBytes = (228 << 10) / kBlocks - (1 << 10) - kBulkBarriers * 8;

template <int kColumns, bool kIsPrefill, int kBlocks>
Result<void> launch(Fp8BulkParams params, const DeviceMatMulArgs& args, device::Stream& stream) {
  constexpr int32_t kStage = Fp8BulkShape<kColumns, kIsPrefill>::kStageBytes;
  params.ring_stages = std::min(kRingBytes<kBlocks> / kStage, kBulkMaxStages);
  return launch_kernel(&fp8_bulk_matmul<kColumns, kIsPrefill, kBlocks>,
                       {.grid = static_cast<uint32_t>(args.num_units) / kBulkCluster * kBulkCluster,
                        .block = bulk_threads(kBlocks),
                        .shared_bytes = params.ring_stages * kStage,
                        .is_dependent = args.is_dependent,
                        .cluster = kBulkCluster},
                       stream,
                       params);
}

Fp8BulkParams params_of(const DeviceMatMulArgs& args) {
  const PackedWeight& weight = *args.weight;
  DCHECK(weight.layout == PackedLayout::kFp8Panel64);
  DCHECK(args.m >= 1 && args.y != nullptr) << args.m;
  DCHECK(weight.k % (kFp8TileK * args.splits) == 0) << weight.k;
  DCHECK(weight.n % (kFp8PanelRows * args.groups) == 0) << weight.n;
  const auto panels = static_cast<int>(weight.n / kFp8PanelRows);
  return {.x = reinterpret_cast<const uint8_t*>(args.x.fp8_blocks),
          .m = args.m,
          .weights = reinterpret_cast<const uint8_t*>(weight.codes),
          .weight_scales = reinterpret_cast<const float*>(weight.scales),
          .panels = panels,
          .panels_per_group = panels / args.groups,
          .tiles = static_cast<int>(weight.k / kFp8TileK),
          .splits = args.splits,
          .y = args.y,
          .ring_stages = 0};
}

}  // namespace

Result<void> launch_fp8_batch_matmul_sm90(const DeviceMatMulArgs& args, device::Stream& stream) {
  DCHECK(args.m <= 128) << args.m;
  const Fp8BulkParams params = params_of(args);
  if (args.m <= 32) return launch<32, false, 2>(params, args, stream);
  // One block's ring is twice as long and fills while the small launch before runs: at 64 tokens
  // that outweighs what products behind each other lose.
  if (args.m <= 64) return launch<64, false, 1>(params, args, stream);
  return launch<128, false, 1>(params, args, stream);
}

Result<void> launch_fp8_prefill_matmul_sm90(const DeviceMatMulArgs& args, device::Stream& stream) {
  return launch<128, true, 1>(params_of(args), args, stream);
}

}  // namespace nibble::kernels::cuda
