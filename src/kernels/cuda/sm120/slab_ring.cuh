// How one warp streams its weights: a ring of stages of kernels/slab16.h in shared memory, filled
// by bulk copies that lane 0 starts. No other warp touches it. Device code only.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/ptx.cuh"

namespace nibble::kernels::cuda {

// An equal share of `count` things for the index-th of `parts`, contiguous.
struct Share {
  int begin;
  int end;
};
__device__ __forceinline__ Share share_of(int count, int index, int parts) {
  return {static_cast<int>(static_cast<long long>(count) * index / parts),
          static_cast<int>(static_cast<long long>(count) * (index + 1) / parts)};
}

template <int kStageBytes_, int kStages>
class SlabRing {
 public:
  static constexpr int kStageBytes = kStageBytes_;
  static constexpr int kBytes = kStages * kStageBytes;
  static constexpr int kBarrierBytes = kStages * 8;

  // Of this warp: kBytes at `stages` (aligned to 16), kBarrierBytes at `barriers` (aligned to 8).
  __device__ __forceinline__ SlabRing(uint8_t* stages, uint8_t* barriers)
      : stages_(stages), barriers_(shared_address(barriers)) {}

  // Lane 0, before anybody waits.
  __device__ __forceinline__ void init() const {
    for (int i = 0; i < kStages; ++i) barrier_init(barriers_ + 8 * i, 1);
    fence_barrier_init();
  }
  // Lane 0: starts copies until the ring is full. next() gives the source of the next stage, null
  // after the last.
  template <class Next>
  __device__ __forceinline__ void fill(Next& next, uint64_t policy) {
    for (int i = 0; i < kStages; ++i) refill(next, policy);
  }
  // All lanes: the oldest stage, once it is there.
  const __device__ __forceinline__ uint8_t* wait() const {
    barrier_wait(barriers_ + 8 * slot_, parity_);
    return stages_ + slot_ * kStageBytes;
  }
  // All lanes, done with that stage: its place is filled again.
  template <class Next>
  __device__ __forceinline__ void release(Next& next, uint64_t policy, int lane) {
    __syncwarp();
    if (lane == 0) refill(next, policy);
    if (++slot_ == kStages) {
      slot_ = 0;
      parity_ ^= 1;
    }
  }

 private:
  template <class Next>
  __device__ __forceinline__ void refill(Next& next, uint64_t policy) {
    const uint8_t* const source = next.next();
    if (source == nullptr) return;
    const uint32_t barrier = barriers_ + 8 * fill_slot_;
    barrier_arrive_expect(barrier, kStageBytes);
    bulk_copy_to_shared(
        shared_address(stages_ + fill_slot_ * kStageBytes), source, kStageBytes, barrier, policy);
    if (++fill_slot_ == kStages) fill_slot_ = 0;
  }

  uint8_t* stages_;
  uint32_t barriers_;
  int slot_ = 0;
  uint32_t parity_ = 0;
  int fill_slot_ = 0;
};

}  // namespace nibble::kernels::cuda
