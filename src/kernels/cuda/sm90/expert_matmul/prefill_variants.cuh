// The launch of the expert product for many rows.
#pragma once

#include "kernels/cuda/sm90/expert_matmul/prefill_kernel.cuh"
#include "kernels/cuda/sm90/expert_matmul/variants.cuh"

namespace nibble::kernels::cuda {

template <class Format, int kPanels, int kMaxRows>
Result<void> launch_prefill(const DeviceGroupedMatMulArgs& args, device::Stream& stream) {
  using Layout = PrefillLayout<Format, kPanels, kMaxRows>;
  DCHECK(args.slots.rows == kMaxRows) << args.slots.rows;
  return launch_kernel(&expert_prefill<Format, kPanels, kMaxRows>,
                       {.grid = static_cast<uint32_t>(args.num_units),
                        .block = Layout::kThreads,
                        .shared_bytes = Layout::kBytes,
                        .is_dependent = args.is_dependent},
                       stream,
                       expert_params(args));
}

}  // namespace nibble::kernels::cuda
