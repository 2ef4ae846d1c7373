#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/sm120/fp8_matmul/kernel.cuh"
#include "kernels/cuda/sm120/fp8_matmul/launch.h"
#include "kernels/slab16.h"

namespace nibble::kernels::cuda {
namespace {

static_assert(Fp8Slab::kStageBytes ==
              slab_stage_bytes(quant::Format::kFp8E4m3Block128x128).total());

constexpr int kRingStages = 2;  // 33 KB in flight per block

template <int kTiles, bool kQuantize>
Result<void> launch(const SlabFp8Params& params,
                    const DeviceMatMulArgs& args,
                    device::Stream& stream) {
  using Memory = SlabBlockMemory<Fp8Slab, kTiles, kRingStages>;
  constexpr int32_t kSharedBytes = Memory::kBytes + (kQuantize ? Memory::kColumns * 128 * 4 : 0);
  static_assert(kSharedBytes * kSlabBlocksPerUnit <= 98 << 10);
  return launch_kernel(&slab_fp8_matmul<kTiles, kRingStages, kQuantize>,
                       {.grid = static_cast<uint32_t>(args.num_units * kSlabBlocksPerUnit),
                        .block = kSlabThreads,
                        .shared_bytes = kSharedBytes,
                        .is_dependent = args.is_dependent},
                       stream,
                       params);
}

}  // namespace

Result<void> launch_fp8_matmul_sm120(const DeviceMatMulArgs& args, device::Stream& stream) {
  const PackedWeight& weight = *args.weight;
  const bool quantize = args.y_fp8 != nullptr;
  DCHECK(weight.layout == PackedLayout::kSlab16);
  DCHECK(args.m >= 1 && args.m <= 16) << args.m;
  DCHECK(weight.k % kSlabStageK == 0) << weight.k;
  DCHECK(weight.n % (kSlabRows * (quantize ? 8 : 1) * args.groups) == 0) << weight.n;
  DCHECK(!quantize || args.splits == 1) << args.splits;
  const SlabFp8Params params{.x = reinterpret_cast<const uint8_t*>(args.x.fp8_blocks),
                             .m = args.m,
                             .block_bytes = static_cast<int>(fp8_block_bytes(args.m)),
                             .groups = args.groups,
                             .weights = reinterpret_cast<const uint8_t*>(weight.codes),
                             .n = static_cast<int>(weight.n),
                             .k = static_cast<int>(weight.k),
                             .splits = args.splits,
                             .y = args.y,
                             .y_fp8 = reinterpret_cast<uint8_t*>(args.y_fp8)};
  if (args.m <= 8) {
    return quantize ? launch<1, true>(params, args, stream)
                    : launch<1, false>(params, args, stream);
  }
  return quantize ? launch<2, true>(params, args, stream) : launch<2, false>(params, args, stream);
}

}  // namespace nibble::kernels::cuda
