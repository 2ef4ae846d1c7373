#include "kernels/cuda/sm90/expert_matmul/formats.h"
#include "kernels/cuda/sm90/expert_matmul/launch.h"

namespace nibble::kernels::cuda {

Result<void> launch_expert_matmul_sm90(const DeviceGroupedMatMulArgs& args,
                                       device::Stream& stream) {
  switch (args.weight->format) {
    case quant::Format::kNvfp4:
      return launch_nvfp4_experts(args, stream);
    case quant::Format::kInt4Group32:
      return launch_int4_experts(args, stream);
    default:
      return launch_mxfp4_experts(args, stream);
  }
}

}  // namespace nibble::kernels::cuda
