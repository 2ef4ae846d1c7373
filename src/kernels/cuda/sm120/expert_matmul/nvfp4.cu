#include "kernels/cuda/sm120/expert_matmul/launch.cuh"
#include "kernels/cuda/sm120/expert_matmul/launch.h"

namespace nibble::kernels::cuda {

static_assert(Nvfp4Slab::kStageBytes == slab_stage_bytes(quant::Format::kNvfp4).total());

Result<void> launch_nvfp4_experts_sm120(const DeviceGroupedMatMulArgs& args,
                                        device::Stream& stream) {
  return launch_slab_experts<Nvfp4Slab>(args, stream);
}

}  // namespace nibble::kernels::cuda
