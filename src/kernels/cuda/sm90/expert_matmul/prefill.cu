#include "kernels/cuda/sm90/expert_matmul/prefill_kernel.cuh"
#include "kernels/cuda/sm90/expert_matmul/variants.cuh"

namespace nibble::kernels::cuda {
namespace {

template <class Format, int kPanels, int kMaxRows>
Result<void> launch(const DeviceGroupedMatMulArgs& args, device::Stream& stream) {
  using Layout = PrefillLayout<Format, kPanels, kMaxRows>;
  return launch_kernel(&expert_prefill<Format, kPanels, kMaxRows>,
                       {.grid = static_cast<uint32_t>(args.num_units),
                        .block = Layout::kThreads,
                        .shared_bytes = Layout::kBytes,
                        .is_dependent = args.is_dependent},
                       stream,
                       expert_params(args));
}

}  // namespace

Result<void> launch_expert_prefill_sm90(const DeviceGroupedMatMulArgs& args,
                                        device::Stream& stream) {
  switch (args.weight->format) {
    case quant::Format::kNvfp4:
      DCHECK(args.slots.rows == 64) << args.slots.rows;
      return launch<ScaledPrefill<Nvfp4Prefill>, 3, 64>(args, stream);
    case quant::Format::kInt4Group32:
      DCHECK(args.slots.rows == 64) << args.slots.rows;
      return launch<ScaledPrefill<Int4Prefill>, 3, 64>(args, stream);
    default:
      DCHECK(args.weight->format == quant::Format::kMxfp4);
  }
  switch (args.slots.rows) {
    case 64:
      return launch<Mxfp4Prefill, 4, 64>(args, stream);
    case 128:
      return launch<Mxfp4Prefill, 3, 128>(args, stream);
    default:
      DCHECK(args.slots.rows == 256) << args.slots.rows;
      return launch<Mxfp4Prefill, 2, 256>(args, stream);
  }
}

}  // namespace nibble::kernels::cuda
