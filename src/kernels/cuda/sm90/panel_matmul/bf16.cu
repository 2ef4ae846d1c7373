#include "kernels/cuda/sm90/panel_matmul/launch.cuh"

namespace nibble::kernels::cuda {

Result<void> launch_bf16_terms_matmul_sm90(const DeviceMatMulArgs& args, device::Stream& stream) {
  return args.m <= 8 ? launch_panels<8, PanelMath::kBf16Terms>(args, stream)
                     : launch_panels<16, PanelMath::kBf16Terms>(args, stream);
}

}  // namespace nibble::kernels::cuda
