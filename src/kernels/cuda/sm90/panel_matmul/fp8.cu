#include "kernels/cuda/sm90/panel_matmul/launch.cuh"

namespace nibble::kernels::cuda {

Result<void> launch_fp8_matmul_sm90(const DeviceMatMulArgs& args, device::Stream& stream) {
  constexpr auto kMath = PanelMath::kFp8;
  const PackedWeight& weight = *args.weight;
  const bool quantize = args.y_fp8 != nullptr;
  DCHECK(weight.k / args.splits <= kPanelMaxScales * kFp8TileK) << weight.k;
  DCHECK(!quantize || (args.splits == 1 && weight.n % (2 * kFp8PanelRows * args.groups) == 0))
      << weight.n;
  if (args.m <= 8) {
    return quantize ? launch_panels<8, kMath, true>(args, stream)
                    : launch_panels<8, kMath, false>(args, stream);
  }
  return quantize ? launch_panels<16, kMath, true>(args, stream)
                  : launch_panels<16, kMath, false>(args, stream);
}

}  // namespace nibble::kernels::cuda
