// Blocks of a cluster: their barrier, and stores into each other's shared memory. Device code only.
// Before sm_90 a block is a cluster of its own, without asynchronous stores. Source: PTX ISA 9.0,
// "barrier.cluster", "mapa", "st.async".
#pragma once

#include <cstdint>

#include "kernels/cuda/common/ptx.cuh"

namespace nibble::kernels::cuda {

// The two halves of a barrier of all threads of the cluster: what was written before arriving is
// visible after waiting.
__device__ __forceinline__ void cluster_arrive() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
// The first half where only barriers were made, after fence_barrier_init(): orders nothing else, so
// that it waits for nothing.
__device__ __forceinline__ void cluster_arrive_relaxed() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}
// racecheck lets nobody past cluster_wait() before everybody is there: in builds for it, those on
// whom others wait have to come first.
inline constexpr bool kWaitsMeet = kWarpArrivals > 1;
// The place of `address` of this block's shared memory in that of block `rank`.
__device__ __forceinline__ uint32_t shared_address_of_rank(uint32_t address,
                                                           [[maybe_unused]] uint32_t rank) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  uint32_t mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
#else
  return address;
#endif
}
// `address` is of block `rank`, see above; visible there after a barrier of the cluster.
__device__ __forceinline__ void store_to_rank(uint32_t address, uint32_t value) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
#else
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
#endif
}
// Stores that report their bytes to a barrier of the block they go to. Both addresses are of that
// block; 16-byte stores are aligned to 16.
__device__ __forceinline__ void store_async(uint32_t address, const uint4& v, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%2,%3,%4}, "
      "[%5];" ::"r"(address),
      "r"(v.x),
      "r"(v.y),
      "r"(v.z),
      "r"(v.w),
      "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void store_async(uint32_t address, const float4& v, uint32_t barrier) {
  store_async(
      address,
      uint4{__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z), __float_as_uint(v.w)},
      barrier);
}
__device__ __forceinline__ void store_async(uint32_t address, float v, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
          address),
      "r"(__float_as_uint(v)),
      "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void store_async(uint32_t address, const float2& v, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1,%2}, [%3];" ::
          "r"(address),
      "r"(__float_as_uint(v.x)),
      "r"(__float_as_uint(v.y)),
      "r"(barrier)
      : "memory");
}
// Copies `num_bytes` of this block's shared memory to another block's (a multiple of 16, both
// aligned to 16). The source must stay as it is until the bytes have been reported.
__device__ __forceinline__ void bulk_copy_to_rank(uint32_t destination,
                                                  uint32_t source,
                                                  int32_t num_bytes,
                                                  uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(destination),
      "r"(source),
      "r"(num_bytes),
      "r"(barrier)
      : "memory");
}
// bulk_copy_to_shared() to the same place of every block of `blocks` (a bit each), whose barriers
// at the place of `barrier` get the bytes reported.
__device__ __forceinline__ void bulk_copy_to_blocks(uint32_t destination,
                                                    const void* source,
                                                    int32_t num_bytes,
                                                    uint32_t barrier,
                                                    uint16_t blocks,
                                                    uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      ".L2::cache_hint [%0], [%1], %2, [%3], %4, %5;" ::"r"(destination),
      "l"(source),
      "r"(num_bytes),
      "r"(barrier),
      "h"(blocks),
      "l"(policy)
      : "memory");
}
// Arrives at a barrier at an address of shared_address_of_rank(). Orders what this thread has read,
// not what it wrote.
__device__ __forceinline__ void barrier_arrive_at_rank(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// warp_arrive() at the barriers of every one of `kBlocks` blocks.
//   barrier_of_rank: the barrier of block lane % kBlocks
template <int kBlocks>
__device__ __forceinline__ void warp_arrive_at_ranks(uint32_t barrier_of_rank, int32_t lane) {
  __syncwarp();
  if constexpr (kWarpArrivals == 32) {
#pragma unroll
    for (int rank = 0; rank < kBlocks; ++rank) {
      barrier_arrive_at_rank(__shfl_sync(~0U, barrier_of_rank, rank));
    }
  } else {
    if (lane < kBlocks) barrier_arrive_at_rank(barrier_of_rank);
  }
}

// This block's place in its cluster.
__device__ __forceinline__ uint32_t cluster_rank() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#else
  return 0;
#endif
}

}  // namespace nibble::kernels::cuda
