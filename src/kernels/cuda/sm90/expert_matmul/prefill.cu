#include "kernels/cuda/sm90/expert_matmul/formats.h"
#include "kernels/cuda/sm90/expert_matmul/prefill_variants.cuh"

namespace nibble::kernels::cuda {

Result<void> launch_expert_prefill_sm90(const DeviceGroupedMatMulArgs& args,
                                        device::Stream& stream) {
  switch (args.weight->format) {
    case quant::Format::kNvfp4:
      return launch_nvfp4_prefill(args, stream);
    case quant::Format::kInt4Group32:
      return launch_prefill<Int4Prefill, 3, 64>(args, stream);
    default:
      DCHECK(args.weight->format == quant::Format::kMxfp4);
  }
  switch (args.slots.rows) {
    case 64:
      return launch_prefill<Mxfp4Prefill, 4, 64>(args, stream);
    case 128:
      return launch_prefill<Mxfp4Prefill, 3, 128>(args, stream);
    default:
      return launch_prefill<Mxfp4Prefill, 2, 256>(args, stream);
  }
}

}  // namespace nibble::kernels::cuda
