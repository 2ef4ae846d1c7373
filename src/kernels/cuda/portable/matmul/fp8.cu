#include "kernels/cuda/portable/matmul/launch.cuh"
#include "kernels/cuda/portable/matmul/launch.h"

namespace nibble::kernels::cuda {

Result<void> launch_portable_fp8_bf16(const DeviceMatMulArgs& args, device::Stream& stream) {
  return launch_portable<E4m3Weights, Bf16Activations>(args, ActivationForm::kBf16, stream);
}

Result<void> launch_portable_grouped_fp8_bf16(const DeviceGroupedMatMulArgs& args,
                                              device::Stream& stream) {
  return launch_portable<E4m3Weights, Bf16Activations>(args, ActivationForm::kBf16, stream);
}

Result<void> launch_portable_fp8_fp8(const DeviceMatMulArgs& args, device::Stream& stream) {
  return launch_portable<E4m3Weights, Fp8Activations>(args, ActivationForm::kFp8Rows, stream);
}

Result<void> launch_portable_grouped_fp8_fp8(const DeviceGroupedMatMulArgs& args,
                                             device::Stream& stream) {
  return launch_portable<E4m3Weights, Fp8Activations>(args, ActivationForm::kFp8Rows, stream);
}

}  // namespace nibble::kernels::cuda
