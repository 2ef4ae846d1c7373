// The CUDA backend as the rest of the program sees it: plain C++, in every build. A build without
// the backend answers kUnsupported with what to do.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "device/device.h"

namespace nibble::device {

// Whether this build has the backend (CMake option NIBBLE_CUDA).
bool has_cuda_backend();

// The GPUs of this machine in the driver's order. kUnavailable with the driver's words when there
// is no driver or no GPU; kUnsupported in a build without the backend.
Result<std::vector<DeviceInfo>> list_cuda_devices();

// GPU `ordinal` of list_cuda_devices(); kUnsupported where the build has no code for it. Its
// stream's `native` is a cudaStream_t. Buffers it
// allocates are device memory: only kernels and the copies below may touch their bytes.
Result<std::unique_ptr<Device>> make_cuda_device(int32_t ordinal);

// Copies of `num_bytes` between host and device memory, ordered in `stream`. The host side must
// stay alive until synchronize(); pageable host memory makes the call wait.
Result<void> copy_to_device(void* device, const void* host, int64_t num_bytes, Stream& stream);
Result<void> copy_to_host(void* host, const void* device, int64_t num_bytes, Stream& stream);
Result<void> fill_device(void* device, uint8_t byte, int64_t num_bytes, Stream& stream);

// Waits for all work of the stream. kUnavailable names the first failed operation since the last
// call; the device is then lost to this process.
Result<void> synchronize(Stream& stream);

}  // namespace nibble::device
