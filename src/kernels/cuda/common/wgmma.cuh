// What warpgroup matrix products of sm_90a share: D[64, N] (+)= A[64, 32] B[32, N] with 8-bit
// operands, B in shared memory. Device code only. Source: PTX ISA 9.0, "wgmma.mma_async". The
// products: wgmma_products.cuh.
//
// A in registers, per thread of warp w (rows 16 w ..), lane 4 g + t: a[0] row g k 4t .. 4t + 3,
// a[1] row g + 8, a[2] row g k 16 + 4t .., a[3] row g + 8. D, per thread: d[4 j + 0, 1] row g
// columns 8 j + 2t, + 1; d[4 j + 2, 3] row g + 8.
//
// Rules that the hardware and ptxas set: no branch between fence and commit; accumulators that are
// read may not belong to a group in flight, and pass through hold() after the wait.
#pragma once

#include <cstdint>

namespace nibble::kernels::cuda {

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most `kPending` groups are in flight.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving reads of accumulators above the wait.
template <int kCount>
__device__ __forceinline__ void hold(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Descriptor of a tile in core-matrix order without swizzle. A core matrix is 8 rows of A, or
// columns of B, by 16 bytes along k, contiguous. Strides in bytes: between core matrices along k
// and along M or N. Tiles of B with fewer than 8 columns may overlap along k: columns beyond theirs
// then hold what comes next, which no other column sees.
__device__ __forceinline__ uint64_t core_matrix_descriptor(uint32_t address,
                                                           uint32_t k_stride,
                                                           uint32_t n_stride) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) |
         static_cast<uint64_t>((k_stride & 0x3FFFF) >> 4) << 16 |
         static_cast<uint64_t>((n_stride & 0x3FFFF) >> 4) << 32;
}

// The lower word of a descriptor of core matrices that lie side by side along N, and the
// descriptor. Adding to the word is cheaper: it holds address (bits 0 .. 13) and k stride (from bit
// 16 on), both in 16 bytes.
__device__ __forceinline__ uint32_t side_by_side_word(uint32_t address, uint32_t k_stride) {
  return static_cast<uint32_t>(core_matrix_descriptor(address, k_stride, 0));
}
__device__ __forceinline__ uint64_t side_by_side_descriptor(uint32_t word) {
  constexpr uint64_t kCoreMatrixBytes = 128;
  return (kCoreMatrixBytes >> 4) << 32 | word;
}

}  // namespace nibble::kernels::cuda
