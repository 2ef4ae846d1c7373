// Stands in for kernels/cuda/common/copy_async.cuh on the host: a copy is complete when it was
// started.
#pragma once

#include "cuda_on_host/cuda_on_host.h"

namespace nibble::kernels::cuda {

inline void copy_async(uint32_t destination, const void* source, size_t size, bool is_present) {
  CHECK(destination % size == 0 && reinterpret_cast<uintptr_t>(source) % size == 0);
  if (is_present) {
    std::memcpy(memory + destination, source, size);
  } else {
    std::memset(memory + destination, 0, size);
  }
}
inline void copy_async_16(uint32_t destination, const void* source, bool is_present) {
  copy_async(destination, source, 16, is_present);
}
inline void copy_async_4(uint32_t destination, const void* source, bool is_present) {
  copy_async(destination, source, 4, is_present);
}
inline void copy_async_commit() {}
inline void copy_async_wait_all() {}

}  // namespace nibble::kernels::cuda
