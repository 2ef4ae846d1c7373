#include "kernels/cuda/sm90/panel_matmul/launch.cuh"

namespace nibble::kernels::cuda {

Result<void> launch_fp8_matmul_sm90(const DeviceMatMulArgs& args, device::Stream& stream) {
  DCHECK(args.weight->k / args.splits <= kPanelMaxScales * kFp8TileK) << args.weight->k;
  return args.m <= 8 ? launch_panels<8, PanelMath::kFp8>(args, stream)
                     : launch_panels<16, PanelMath::kFp8>(args, stream);
}

}  // namespace nibble::kernels::cuda
