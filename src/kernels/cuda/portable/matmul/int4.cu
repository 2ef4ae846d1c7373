#include "kernels/cuda/portable/matmul/launch.cuh"
#include "kernels/cuda/portable/matmul/launch.h"

namespace nibble::kernels::cuda {

Result<void> launch_portable_int4_bf16(const DeviceMatMulArgs& args, device::Stream& stream) {
  return launch_portable<Int4Weights, Bf16Activations>(args, ActivationForm::kBf16, stream);
}

Result<void> launch_portable_grouped_int4_bf16(const DeviceGroupedMatMulArgs& args,
                                               device::Stream& stream) {
  return launch_portable<Int4Weights, Bf16Activations>(args, ActivationForm::kBf16, stream);
}

}  // namespace nibble::kernels::cuda
