#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/sm120/fp8_matmul/launch.h"
#include "kernels/cuda/sm120/fp8_matmul/tile_kernel.cuh"
#include "kernels/slab16.h"

namespace nibble::kernels::cuda {

Result<void> launch_fp8_tile_matmul_sm120(const DeviceMatMulArgs& args, device::Stream& stream) {
  const PackedWeight& weight = *args.weight;
  DCHECK(weight.layout == PackedLayout::kSlab16 && args.y_fp8 == nullptr);
  DCHECK(weight.k % kSlabStageK == 0) << weight.k;
  DCHECK(weight.n % (kSlabRows * kFp8TileWarps * args.groups) == 0) << weight.n;
  const SlabFp8Params params{.x = reinterpret_cast<const uint8_t*>(args.x.fp8_blocks),
                             .m = args.m,
                             .block_bytes = 0,  // of a slice, which the kernel tells
                             .groups = args.groups,
                             .weights = reinterpret_cast<const uint8_t*>(weight.codes),
                             .n = static_cast<int>(weight.n),
                             .k = static_cast<int>(weight.k),
                             .splits = args.splits,
                             .y = args.y,
                             .y_fp8 = nullptr};
  return launch_kernel(&slab_fp8_tile_matmul,
                       {.grid = static_cast<uint32_t>(args.num_units),
                        .block = Fp8TileMemory::kThreads,
                        .shared_bytes = Fp8TileMemory::kBytes,
                        .is_dependent = args.is_dependent},
                       stream,
                       params);
}

}  // namespace nibble::kernels::cuda
