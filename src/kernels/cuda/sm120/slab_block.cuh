// A block of four warps that share the k of a slab: its shared memory, and how the four partial
// sums become one. Device code only.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm120/slab_products.cuh"
#include "kernels/cuda/sm120/slab_ring.cuh"

namespace nibble::kernels::cuda {

inline constexpr int kSlabWarps = 4;  // that share the k of a slab
inline constexpr int kSlabThreads = kSlabWarps * 32;
inline constexpr int kSlabBlocksPerUnit = 2;  // that memory and registers are for

__host__ __device__ constexpr int slab_tiles_of(int rows) { return rows <= 8 ? 1 : rows / 8; }

// Shared memory of a block: the rings, their barriers, two sets of partial slabs.
template <class Slab, int kTiles, int kRingStages>
struct SlabBlockMemory {
  using Ring = SlabRing<Slab::kStageBytes, kRingStages>;
  static constexpr int kColumns = kTiles * 8;
  static constexpr int kPartialFloats = kSlabWarps * 16 * kColumns;
  static constexpr int kBarriersAt = kSlabWarps * Ring::kBytes;
  static constexpr int kPartialsAt = kBarriersAt + kSlabWarps * Ring::kBarrierBytes;
  static constexpr int kBytes = kPartialsAt + 2 * kPartialFloats * 4;
};

// A warp's partial slab.   partial: [16][kColumns]
template <int kTiles>
__device__ __forceinline__ void store_partial(const SlabAccumulators<kTiles>& acc,
                                              float* partial,
                                              int lane) {
  const int g = lane / 4, t = lane % 4;
  constexpr int kColumns = kTiles * 8;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    float* const top = partial + g * kColumns + tile * 8 + 2 * t;
    *reinterpret_cast<float2*>(top) = {acc[tile][0], acc[tile][1]};
    *reinterpret_cast<float2*>(top + 8 * kColumns) = {acc[tile][2], acc[tile][3]};
  }
}

// The sum of (row, column) over the warps, in order.   partials: [kSlabWarps][16][kColumns]
template <int kColumns>
__device__ __forceinline__ float sum_partials(const float* partials, int row, int column) {
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kSlabWarps; ++warp) {
    sum += partials[(warp * 16 + row) * kColumns + column];
  }
  return sum;
}

}  // namespace nibble::kernels::cuda
