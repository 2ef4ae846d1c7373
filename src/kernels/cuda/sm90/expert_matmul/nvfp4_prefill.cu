#include "kernels/cuda/sm90/expert_matmul/formats.h"
#include "kernels/cuda/sm90/expert_matmul/prefill_variants.cuh"

namespace nibble::kernels::cuda {

Result<void> launch_nvfp4_prefill(const DeviceGroupedMatMulArgs& args, device::Stream& stream) {
  return launch_prefill<Nvfp4Prefill, 3, 64>(args, stream);
}

}  // namespace nibble::kernels::cuda
