#include "kernels/cuda/sm90/expert_matmul/formats.h"
#include "kernels/cuda/sm90/expert_matmul/variants.cuh"

namespace nibble::kernels::cuda {

static_assert(4 * Int4Panels::kSlabBytes == panel_stage_bytes(quant::Format::kInt4Group32));

Result<void> launch_int4_experts(const DeviceGroupedMatMulArgs& args, device::Stream& stream) {
  return launch_format<Int4Panels>(args, stream);
}

}  // namespace nibble::kernels::cuda
