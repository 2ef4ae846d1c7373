#include <cuda_runtime_api.h>

#include "base/log.h"
#include "device/cuda/cuda_try.h"
#include "device/graph.h"

namespace nibble::device {
namespace {

cudaStream_t native(const Stream& stream) { return static_cast<cudaStream_t>(stream.native); }

// A handle that is destroyed with its owner; failures of the destruction are logged.
template <class Handle, cudaError_t (*kDestroy)(Handle)>
struct UniqueHandle {
  Handle handle = nullptr;

  UniqueHandle() = default;
  UniqueHandle(const UniqueHandle&) = delete;
  UniqueHandle& operator=(const UniqueHandle&) = delete;
  ~UniqueHandle() {
    if (handle == nullptr) return;
    const cudaError_t status = kDestroy(handle);
    if (status != cudaSuccess && status != cudaErrorCudartUnloading) {
      log_warning("release of a CUDA handle: {}", cudaGetErrorString(status));
    }
  }
};

}  // namespace

Result<Graph> Graph::capture(Stream& stream, const std::function<Result<void>()>& enqueue) {
  UniqueHandle<cudaGraph_t, &cudaGraphDestroy> recording;
  CUDA_TRY(cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeThreadLocal));
  const Result<void> enqueued = enqueue();
  const cudaError_t ended = cudaStreamEndCapture(native(stream), &recording.handle);
  TRY(enqueued);
  CUDA_TRY(ended);
  cudaGraphExec_t executable = nullptr;
  CUDA_TRY(cudaGraphInstantiate(&executable, recording.handle, 0));
  Graph graph(executable);
  CUDA_TRY(cudaGraphUpload(executable, native(stream)));
  return graph;
}

Result<void> Graph::launch(Stream& stream) const {
  CUDA_TRY(cudaGraphLaunch(static_cast<cudaGraphExec_t>(native_), native(stream)));
  return {};
}

Graph::~Graph() {
  UniqueHandle<cudaGraphExec_t, &cudaGraphExecDestroy> executable;
  executable.handle = static_cast<cudaGraphExec_t>(native_);
}

Result<double> elapsed_us(Stream& stream, const std::function<Result<void>()>& enqueue) {
  UniqueHandle<cudaEvent_t, &cudaEventDestroy> begin, end;
  CUDA_TRY(cudaEventCreate(&begin.handle));
  CUDA_TRY(cudaEventCreate(&end.handle));
  CUDA_TRY(cudaEventRecord(begin.handle, native(stream)));
  TRY(enqueue());
  CUDA_TRY(cudaEventRecord(end.handle, native(stream)));
  CUDA_TRY(cudaEventSynchronize(end.handle));
  float milliseconds = 0;
  CUDA_TRY(cudaEventElapsedTime(&milliseconds, begin.handle, end.handle));
  return static_cast<double>(milliseconds) * 1e3;
}

}  // namespace nibble::device
