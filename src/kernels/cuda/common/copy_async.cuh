// Copies of 4, 8 or 16 bytes per thread from global to shared memory that need no registers. Device
// code only. Source: PTX ISA 9.0, "cp.async".
#pragma once

#include <cstdint>

namespace nibble::kernels::cuda {

// Copies 16 bytes, or writes zeros when not `is_present`. `source` must be a valid address anyway.
__device__ __forceinline__ void copy_async_16(uint32_t destination,
                                              const void* source,
                                              bool is_present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination),
               "l"(source),
               "r"(is_present ? 16 : 0)
               : "memory");
}
// The same with 8 bytes.
__device__ __forceinline__ void copy_async_8(uint32_t destination,
                                             const void* source,
                                             bool is_present) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(destination),
               "l"(source),
               "r"(is_present ? 8 : 0)
               : "memory");
}
// The same with 4 bytes.
__device__ __forceinline__ void copy_async_4(uint32_t destination,
                                             const void* source,
                                             bool is_present) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(destination),
               "l"(source),
               "r"(is_present ? 4 : 0)
               : "memory");
}
// Ends a group of this thread's copies.
__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most `kPending` groups are on their way.
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
// Waits for all copies of this thread.
__device__ __forceinline__ void copy_async_wait_all() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}
// Asks for `num_bytes` (a multiple of 16, aligned to 16) to be brought into the L2 cache.
__device__ __forceinline__ void prefetch_bulk(const void* source, int32_t num_bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(source), "r"(num_bytes)
               : "memory");
}
// The same of the line that holds `address`. Its translation is known here afterwards, too.
__device__ __forceinline__ void prefetch_line(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address) : "memory");
}

}  // namespace nibble::kernels::cuda
