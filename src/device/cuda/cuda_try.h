// Turns a status of the CUDA runtime into a Result. Only for device/ and kernels/cuda/.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "base/result.h"

namespace nibble::device {

// kExhausted for memory, kUnavailable for everything else, with the call's text and the driver's
// words.
inline Result<void> cuda_result(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return {};
  std::string message =
      std::string(call) + ": " + cudaGetErrorString(status) + " (" + cudaGetErrorName(status) + ")";
  if (status == cudaErrorMemoryAllocation) return exhausted(std::move(message));
  return unavailable(std::move(message));
}

}  // namespace nibble::device

#define CUDA_TRY(call) TRY(::nibble::device::cuda_result((call), #call))
