// A GPU that is not there: kind kCuda, sm 0, memory of the host. Its kernels are the scalar
// reference rows over the arguments of kernels/device_args.h, so that everything that surrounds
// GPU kernels runs, and is tested, on any machine.
#pragma once

#include <memory>

#include "base/result.h"
#include "device/device.h"

namespace nibble::device {

inline constexpr int32_t kEmulatedSm = 0;

// num_threads 0: physical cores. Errors of make_host_device().
Result<std::unique_ptr<Device>> make_emulated_gpu(int32_t num_threads = 0);

}  // namespace nibble::device
