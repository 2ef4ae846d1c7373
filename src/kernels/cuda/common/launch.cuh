// Starting kernels: grid, shared memory, dependence on the stream's last kernel.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "device/cuda/cuda_try.h"
#include "device/device.h"

namespace nibble::kernels::cuda {

// Where the blocks of clusters go that may start beside those of another launch.
enum class ClusterPlacement {
  kDefault,
  kBalanced,  // to the multiprocessors with most room: one of each launch where two fit
};

struct LaunchShape {
  uint32_t grid = 1;
  uint32_t block = 1;
  int32_t shared_bytes = 0;   // dynamic
  bool is_dependent = false;  // may start before the stream's last kernel ends: the kernel waits
  uint32_t cluster = 1;       // blocks that share a GPC and each other's shared memory: up to 16
  uint32_t grid_y = 1;
  ClusterPlacement placement = ClusterPlacement::kDefault;
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
  constexpr uint32_t kPortableCluster = 8;
  if (shape.cluster > kPortableCluster) {
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  }
  cudaLaunchAttribute attributes[3]{};
  uint32_t num_attributes = 0;
  if (shape.is_dependent) {
    cudaLaunchAttribute& dependence = attributes[num_attributes++];
    dependence.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    dependence.val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    cudaLaunchAttribute& cluster = attributes[num_attributes++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {shape.cluster, 1, 1};
    if (shape.placement == ClusterPlacement::kBalanced) {
      cudaLaunchAttribute& placement = attributes[num_attributes++];
      placement.id = cudaLaunchAttributeClusterSchedulingPolicyPreference;
      placement.val.clusterSchedulingPolicyPreference = cudaClusterSchedulingPolicyLoadBalancing;
    }
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(shape.grid, shape.grid_y);
  config.blockDim = dim3(shape.block);
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = static_cast<cudaStream_t>(stream.native);
  config.attrs = attributes;
  config.numAttrs = num_attributes;
  CUDA_TRY(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
  return {};
}

}  // namespace nibble::kernels::cuda
