#include <cuda_runtime_api.h>

#include "base/log.h"
#include "device/cuda/cuda_try.h"
#include "device/event.h"

namespace nibble::device {

Result<void> Event::record(Stream& stream) {
  if (stream.native == nullptr) return {};
  if (native_ == nullptr) {
    cudaEvent_t event = nullptr;
    CUDA_TRY(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    native_ = event;
  }
  CUDA_TRY(
      cudaEventRecord(static_cast<cudaEvent_t>(native_), static_cast<cudaStream_t>(stream.native)));
  return {};
}

Result<void> Event::wait() const {
  if (native_ == nullptr) return {};
  CUDA_TRY(cudaEventSynchronize(static_cast<cudaEvent_t>(native_)));
  return {};
}

Event::~Event() {
  if (native_ == nullptr) return;
  const cudaError_t status = cudaEventDestroy(static_cast<cudaEvent_t>(native_));
  if (status != cudaSuccess && status != cudaErrorCudartUnloading) {
    log_warning("cudaEventDestroy: {}", cudaGetErrorString(status));
  }
}

}  // namespace nibble::device
