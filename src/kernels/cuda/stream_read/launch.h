// Reads memory and does nothing else: the rate that every kernel bound by memory is held against.
#pragma once

#include <cstdint>

#include "device/device.h"

namespace nibble::kernels::cuda {

// Reads `num_bytes` at `data` (device memory; a multiple of 8192, aligned to 128) once, by bulk
// copies, two blocks on each of `num_units` multiprocessors. `sink`: 4 bytes of device memory,
// which keep the compiler from leaving the reads out.
Result<void> launch_stream_read(const std::byte* data,
                                int64_t num_bytes,
                                int32_t num_units,
                                uint32_t* sink,
                                device::Stream& stream);

}  // namespace nibble::kernels::cuda
