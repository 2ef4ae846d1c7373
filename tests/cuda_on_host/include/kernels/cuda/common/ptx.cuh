// Stands in for kernels/cuda/common/ptx.cuh on the host.
#pragma once

#include <thread>

#include "cuda_on_host/cuda_on_host.h"

namespace nibble::kernels::cuda {

inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(static_cast<const uint8_t*>(pointer) - memory);
}
inline cuda_on_host::CopyBarrier& barrier_at(uint32_t address) {
  CHECK(address % 8 == 0);
  return cuda_on_host::block().barriers[address / 8];
}
inline void barrier_init(uint32_t barrier, int32_t arrivals) {
  CHECK(arrivals == 1 && barrier_at(barrier).completed == 0);
}
inline void fence_barrier_init() {}
inline void barrier_arrive_expect(uint32_t barrier, int32_t num_bytes) {
  CHECK(barrier_at(barrier).missing_bytes.exchange(num_bytes) == 0) << "a phase is still open";
}
// As of the hardware: cannot tell a phase from the one before the last.
inline void barrier_wait(uint32_t barrier, uint32_t parity) {
  while (barrier_at(barrier).completed.load() % 2 == parity) std::this_thread::yield();
}
inline uint64_t evict_first_policy() { return 0; }
inline uint64_t evict_last_policy() { return 0; }
inline void bulk_copy_to_shared(
    uint32_t destination, const void* source, int32_t num_bytes, uint32_t barrier, uint64_t) {
  CHECK(destination % 16 == 0 && num_bytes % 16 == 0);
  CHECK(reinterpret_cast<uintptr_t>(source) % 16 == 0);
  std::memcpy(memory + destination, source, static_cast<size_t>(num_bytes));
  cuda_on_host::CopyBarrier& phase = barrier_at(barrier);
  if (phase.missing_bytes.fetch_sub(num_bytes) == num_bytes) ++phase.completed;
}
inline void wait_for_predecessors() {}
inline void launch_dependents() {}

}  // namespace nibble::kernels::cuda
