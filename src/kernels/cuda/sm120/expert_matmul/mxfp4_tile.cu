#include "kernels/cuda/sm120/expert_matmul/launch.cuh"
#include "kernels/cuda/sm120/expert_matmul/tile_kernel.cuh"

namespace nibble::kernels::cuda {

Result<void> launch_mxfp4_expert_tiles_sm120(const DeviceGroupedMatMulArgs& args,
                                             device::Stream& stream) {
  DCHECK(args.slots.rows == kTileColumns) << args.slots.rows;
  return launch_kernel(
      args.swiglu ? &slab_expert_tile_matmul<true> : &slab_expert_tile_matmul<false>,
      {.grid = static_cast<uint32_t>(args.num_units),
       .block = ExpertTileMemory::kThreads,
       .shared_bytes = ExpertTileMemory::kBytes,
       .is_dependent = args.is_dependent},
      stream,
      slab_expert_params(args));
}

}  // namespace nibble::kernels::cuda
