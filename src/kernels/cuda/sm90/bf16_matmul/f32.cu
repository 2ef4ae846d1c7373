#include "kernels/cuda/sm90/bf16_matmul/launch.cuh"
#include "kernels/cuda/sm90/bf16_matmul/launch.h"

namespace nibble::kernels::cuda {

Result<void> launch_bf16_matmul_f32_sm90(const DeviceMatMulArgs& args, device::Stream& stream) {
  return launch_bf16_terms<3>(args.x.f32, args, stream);
}

}  // namespace nibble::kernels::cuda
