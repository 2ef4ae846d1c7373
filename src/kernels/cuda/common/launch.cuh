// Starting kernels: grid, shared memory, dependence on the stream's last kernel.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "device/cuda/cuda_try.h"
#include "device/device.h"

namespace nibble::kernels::cuda {

struct LaunchShape {
  uint32_t grid = 1;
  uint32_t block = 1;
  int32_t shared_bytes = 0;   // dynamic
  bool is_dependent = false;  // may start before the stream's last kernel ends: the kernel waits
};

template <class... Params, class... Args>
Result<void> launch_kernel(void (*kernel)(Params...),
                           const LaunchShape& shape,
                           device::Stream& stream,
                           const Args&... args) {
  constexpr int32_t kSharedWithoutAsking = 40 << 10;  // of 48 KB, which static arrays share
  if (shape.shared_bytes > kSharedWithoutAsking) {
    CUDA_TRY(cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shape.shared_bytes));
  }
  cudaLaunchAttribute dependence{};
  dependence.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  dependence.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(shape.grid);
  config.blockDim = dim3(shape.block);
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = static_cast<cudaStream_t>(stream.native);
  config.attrs = &dependence;
  config.numAttrs = shape.is_dependent ? 1 : 0;
  CUDA_TRY(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
  return {};
}

}  // namespace nibble::kernels::cuda
