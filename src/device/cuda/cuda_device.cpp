// GPUs through the CUDA runtime: properties, memory, one stream per device.
#include <cuda_runtime_api.h>

#include <string>
#include <utility>

#include "base/log.h"
#include "device/cuda.h"
#include "device/cuda/cuda_try.h"
#include "device/cuda_generations.h"

namespace nibble::device {
namespace {

Result<DeviceInfo> describe(int32_t ordinal) {
  cudaDeviceProp properties{};
  CUDA_TRY(cudaGetDeviceProperties(&properties, ordinal));
  return DeviceInfo{.kind = DeviceKind::kCuda,
                    .name = properties.name,
                    .sm = properties.major * 10 + properties.minor,
                    .num_units = properties.multiProcessorCount,
                    .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
                    .shared_bytes = static_cast<int64_t>(properties.sharedMemPerBlockOptin)};
}

Result<int32_t> count_devices() {
  int count = 0;
  CUDA_TRY(cudaGetDeviceCount(&count));
  if (count == 0) return unavailable("no CUDA device on this machine");
  return count;
}

void release_device_memory(std::byte* data, int64_t num_bytes) {
  const cudaError_t status = cudaFree(data);
  if (status == cudaSuccess || status == cudaErrorCudartUnloading) return;
  log_warning("cudaFree of {} bytes: {}", num_bytes, cudaGetErrorString(status));
}

void release_pinned_memory(std::byte* data, int64_t num_bytes) {
  const cudaError_t status = cudaFreeHost(data);
  if (status == cudaSuccess || status == cudaErrorCudartUnloading) return;
  log_warning("cudaFreeHost of {} bytes: {}", num_bytes, cudaGetErrorString(status));
}

cudaStream_t native(const Stream& stream) { return static_cast<cudaStream_t>(stream.native); }

class CudaDevice final : public Device {
 public:
  CudaDevice(DeviceInfo info, int32_t ordinal, cudaStream_t stream)
      : info_(std::move(info)), ordinal_(ordinal), stream_{.native = stream} {}
  ~CudaDevice() override {
    const cudaError_t status = cudaStreamDestroy(native(stream_));
    if (status != cudaSuccess && status != cudaErrorCudartUnloading) {
      log_warning("cudaStreamDestroy: {}", cudaGetErrorString(status));
    }
  }
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  const DeviceInfo& info() const override { return info_; }
  // A thread launches on a stream of its current device only; a launch reports what fails here.
  Stream& stream() override {
    cudaSetDevice(ordinal_);
    return stream_;
  }
  Result<Buffer> allocate(int64_t num_bytes) override {
    if (num_bytes == 0) return Buffer{};
    CUDA_TRY(cudaSetDevice(ordinal_));
    void* data = nullptr;
    CUDA_TRY(cudaMalloc(&data, static_cast<size_t>(num_bytes)));
    Buffer buffer = Buffer::adopt(static_cast<std::byte*>(data), num_bytes, &release_device_memory);
    CUDA_TRY(cudaMemsetAsync(data, 0, static_cast<size_t>(num_bytes), native(stream_)));
    return buffer;
  }
  Result<Buffer> allocate_host(int64_t num_bytes) override {
    if (num_bytes == 0) return Buffer{};
    CUDA_TRY(cudaSetDevice(ordinal_));
    void* data = nullptr;
    CUDA_TRY(cudaHostAlloc(&data, static_cast<size_t>(num_bytes), cudaHostAllocDefault));
    return Buffer::adopt(static_cast<std::byte*>(data), num_bytes, &release_pinned_memory);
  }
  Result<int64_t> free_bytes() const override {
    CUDA_TRY(cudaSetDevice(ordinal_));
    size_t free = 0, total = 0;
    CUDA_TRY(cudaMemGetInfo(&free, &total));
    return static_cast<int64_t>(free);
  }
  Result<void> copy_in(void* device, const void* host, int64_t num_bytes) override {
    return copy_to_device(device, host, num_bytes, stream_);
  }
  Result<void> copy_out(void* host, const void* device, int64_t num_bytes) override {
    return copy_to_host(host, device, num_bytes, stream_);
  }
  Result<void> synchronize() override { return device::synchronize(stream_); }

 private:
  DeviceInfo info_;
  int32_t ordinal_;
  Stream stream_;
};

}  // namespace

bool has_cuda_backend() { return true; }

Result<std::vector<DeviceInfo>> list_cuda_devices() {
  TRY_ASSIGN(const int32_t count, count_devices());
  std::vector<DeviceInfo> devices;
  for (int32_t ordinal = 0; ordinal < count; ++ordinal) {
    TRY_ASSIGN(DeviceInfo info, describe(ordinal));
    devices.push_back(std::move(info));
  }
  return devices;
}

Result<std::unique_ptr<Device>> make_cuda_device(int32_t ordinal) {
  TRY_ASSIGN(const int32_t count, count_devices());
  if (ordinal < 0 || ordinal >= count) {
    return invalid_argument("CUDA device " + std::to_string(ordinal) + ", expected 0 to " +
                            std::to_string(count - 1));
  }
  TRY_ASSIGN(DeviceInfo info, describe(ordinal));
  if (!has_code_for(NIBBLE_CUDA_ARCHS, info.sm)) {
    Error error = unsupported(info.name + " is sm_" + std::to_string(info.sm) +
                              ": this build has code for " NIBBLE_CUDA_ARCHS
                              "; build with the preset cuda-all");
    error.reason = "Q-K2";
    return error;
  }
  CUDA_TRY(cudaSetDevice(ordinal));
  cudaStream_t stream = nullptr;
  CUDA_TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(std::move(info), ordinal, stream));
}

Result<void> copy_to_device(void* device, const void* host, int64_t num_bytes, Stream& stream) {
  CUDA_TRY(cudaMemcpyAsync(
      device, host, static_cast<size_t>(num_bytes), cudaMemcpyHostToDevice, native(stream)));
  return {};
}

Result<void> copy_to_host(void* host, const void* device, int64_t num_bytes, Stream& stream) {
  CUDA_TRY(cudaMemcpyAsync(
      host, device, static_cast<size_t>(num_bytes), cudaMemcpyDeviceToHost, native(stream)));
  return {};
}

Result<void> fill_device(void* device, uint8_t byte, int64_t num_bytes, Stream& stream) {
  CUDA_TRY(cudaMemsetAsync(device, byte, static_cast<size_t>(num_bytes), native(stream)));
  return {};
}

Result<void> synchronize(Stream& stream) {
  CUDA_TRY(cudaStreamSynchronize(native(stream)));
  CUDA_TRY(cudaGetLastError());
  return {};
}

}  // namespace nibble::device
