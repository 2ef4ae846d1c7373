#include "kernels/cuda/sm120/expert_matmul/launch.cuh"
#include "kernels/cuda/sm120/expert_matmul/launch.h"

namespace nibble::kernels::cuda {

static_assert(Mxfp4Slab::kStageBytes == slab_stage_bytes(quant::Format::kMxfp4).total());

Result<void> launch_mxfp4_experts_sm120(const DeviceGroupedMatMulArgs& args,
                                        device::Stream& stream) {
  if (args.slots.rows == 64) return launch_mxfp4_expert_tiles_sm120(args, stream);
  return launch_slab_experts<Mxfp4Slab>(args, stream);
}

}  // namespace nibble::kernels::cuda
