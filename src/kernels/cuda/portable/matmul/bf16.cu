#include "kernels/cuda/portable/matmul/launch.cuh"
#include "kernels/cuda/portable/matmul/launch.h"

namespace nibble::kernels::cuda {

Result<void> launch_portable_bf16_bf16(const DeviceMatMulArgs& args, device::Stream& stream) {
  return launch_portable<Bf16Weights, Bf16Activations>(args, ActivationForm::kBf16, stream);
}

Result<void> launch_portable_grouped_bf16_bf16(const DeviceGroupedMatMulArgs& args,
                                               device::Stream& stream) {
  return launch_portable<Bf16Weights, Bf16Activations>(args, ActivationForm::kBf16, stream);
}

Result<void> launch_portable_bf16_f32(const DeviceMatMulArgs& args, device::Stream& stream) {
  return launch_portable<Bf16Weights, F32Activations>(args, ActivationForm::kF32, stream);
}

}  // namespace nibble::kernels::cuda
