#include "kernels/cuda/sm90/expert_matmul/formats.h"
#include "kernels/cuda/sm90/expert_matmul/variants.cuh"

namespace nibble::kernels::cuda {

static_assert(4 * Nvfp4Panels::kSlabBytes == panel_stage_bytes(quant::Format::kNvfp4));

Result<void> launch_nvfp4_experts(const DeviceGroupedMatMulArgs& args, device::Stream& stream) {
  return launch_format<Nvfp4Panels>(args, stream);
}

}  // namespace nibble::kernels::cuda
