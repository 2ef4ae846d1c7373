// Warpgroup matrix products of sm_90a: D[64, N] (+)= A[64, 32] B[32, N] with 8-bit operands, A in
// registers, B in shared memory. Device code only. Source: PTX ISA 9.0, "wgmma.mma_async". Both
// in shared memory: wgmma_shared.cuh.
//
// A, per thread of warp w (rows 16 w ..), lane 4 g + t: a[0] row g k 4t .. 4t + 3, a[1] row g + 8,
// a[2] row g k 16 + 4t .., a[3] row g + 8. D, per thread: d[4 j + 0, 1] row g columns 8 j + 2t, +
// 1; d[4 j + 2, 3] row g + 8.
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

// D = A B (first) and D += A B (add).   A: E5M2 in registers; b: descriptor of an E4M3 tile
__device__ __forceinline__ void wgmma_e5m2_e4m3_first(float (&d)[4],
                                                      const uint32_t* a,
                                                      uint64_t b) {
  asm volatile(
      "{\n\t.reg .pred accumulate;\n\tsetp.ne.b32 accumulate, 0, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n8k32.f32.e5m2.e4m3 {%0,%1,%2,%3}, "
      "{%4,%5,%6,%7}, %8, accumulate, 1, 1;\n\t}"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wgmma_e5m2_e4m3_add(float (&d)[4], const uint32_t* a, uint64_t b) {
  asm volatile(
      "{\n\t.reg .pred accumulate;\n\tsetp.ne.b32 accumulate, 1, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n8k32.f32.e5m2.e4m3 {%0,%1,%2,%3}, "
      "{%4,%5,%6,%7}, %8, accumulate, 1, 1;\n\t}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wgmma_e5m2_e4m3_first(float (&d)[8],
                                                      const uint32_t* a,
                                                      uint64_t b) {
  asm volatile(
      "{\n\t.reg .pred accumulate;\n\tsetp.ne.b32 accumulate, 0, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n16k32.f32.e5m2.e4m3 {%0,%1,%2,%3,%4,%5,%6,%7}, "
      "{%8,%9,%10,%11}, %12, accumulate, 1, 1;\n\t}"
      : "=f"(d[0]),
        "=f"(d[1]),
        "=f"(d[2]),
        "=f"(d[3]),
        "=f"(d[4]),
        "=f"(d[5]),
        "=f"(d[6]),
        "=f"(d[7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wgmma_e5m2_e4m3_add(float (&d)[8], const uint32_t* a, uint64_t b) {
  asm volatile(
      "{\n\t.reg .pred accumulate;\n\tsetp.ne.b32 accumulate, 1, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n16k32.f32.e5m2.e4m3 {%0,%1,%2,%3,%4,%5,%6,%7}, "
      "{%8,%9,%10,%11}, %12, accumulate, 1, 1;\n\t}"
      : "+f"(d[0]),
        "+f"(d[1]),
        "+f"(d[2]),
        "+f"(d[3]),
        "+f"(d[4]),
        "+f"(d[5]),
        "+f"(d[6]),
        "+f"(d[7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

}  // namespace nibble::kernels::cuda
