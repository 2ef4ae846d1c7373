#include "kernels/cuda/launchers.h"
#include "kernels/cuda/sm120/expert_matmul/launch.h"
#include "kernels/cuda/sm120/fp8_matmul/launch.h"

namespace nibble::kernels::cuda {

std::span<const NamedLaunch> sm120_launchers() {
  static constexpr NamedLaunch kLaunchers[] = {
      {"grouped_matmul.mxfp4.fp8.sm_120.tensor_core.decode", &launch_mxfp4_experts_sm120},
      {"grouped_matmul.mxfp4.fp8.sm_120.tensor_core", &launch_mxfp4_experts_sm120},
      {"grouped_matmul.nvfp4.bf16.sm_120.tensor_core", &launch_nvfp4_experts_sm120},
      {"matmul.fp8_block128x128.fp8.sm_120.tensor_core.decode", &launch_fp8_matmul_sm120},
      {"matmul.fp8_block128x128.fp8.sm_120.tensor_core", &launch_fp8_tile_matmul_sm120},
  };
  return kLaunchers;
}

}  // namespace nibble::kernels::cuda
