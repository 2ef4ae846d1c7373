#include "kernels/cuda/sm90/bf16_matmul/launch.cuh"
#include "kernels/cuda/sm90/bf16_matmul/launch.h"

namespace nibble::kernels::cuda {

Result<void> launch_bf16_matmul_sm90(const DeviceMatMulArgs& args, device::Stream& stream) {
  const Bf16MatMulParams params = bf16_params(args.x.bf16_blocks, args);
  if (args.m <= 8) return launch_bf16<8, 1>(params, args, stream);
  if (args.m <= 16) return launch_bf16<16, 1>(params, args, stream);
  if (args.m <= 32) return launch_bf16<32, 1>(params, args, stream);
  if (args.m <= 64) return launch_bf16<64, 1>(params, args, stream);
  return launch_bf16<128, 1>(params, args, stream);
}

}  // namespace nibble::kernels::cuda
