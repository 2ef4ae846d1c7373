// The block of the products for many rows: each warp has a slab of its own and 64 columns of
// activations, which the block copies to shared memory stage by stage. Sums are made in the order
// of slab_block.cuh: four parts of k, each from zero, then added. Device code only.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/copy_async.cuh"
#include "kernels/cuda/sm120/slab_block.cuh"
#include "kernels/cuda/sm120/slab_products.cuh"
#include "kernels/cuda/sm120/slab_ring.cuh"

namespace nibble::kernels::cuda {

inline constexpr int kTileColumns = 64;
inline constexpr int kTileTiles = kTileColumns / 8;
// 16 k of all columns side by side, and what spreads two such groups over all banks.
inline constexpr int kTileGroupBytes = kTileColumns * 16 + 64;
inline constexpr int kTileCodesBytes = kSlabStage / 16 * kTileGroupBytes;
// Codes, then [2][64] scales.
inline constexpr int kTileBytes = kTileCodesBytes + 2 * kTileColumns * 4;

// Shared memory of a block: the rings of weights, two tiles of activations, barriers, a table of 64
// numbers for the kernel's own use.
template <class Slab, int kWarps_, int kRingStages>
struct SlabTileMemory {
  static constexpr int kWarps = kWarps_;
  static constexpr int kThreads = kWarps * 32;
  using Ring = SlabRing<Slab::kStageBytes, kRingStages>;
  static constexpr int kTilesAt = kWarps * Ring::kBytes;
  static constexpr int kBarriersAt = kTilesAt + 2 * kTileBytes;
  static constexpr int kTableAt = kBarriersAt + kWarps * Ring::kBarrierBytes;
  static constexpr int kBytes = kTableAt + kTileColumns * 4;
};

// The activations of a lane's columns in a tile; k counts from the start of the stage.
struct TileColumns {
  const uint8_t* tile;
  int lane;

  __device__ __forceinline__ uint2 codes(int i, int k) const {
    const int column = i * 8 + lane / 4;
    return *reinterpret_cast<const uint2*>(tile + k / 16 * kTileGroupBytes + column * 16 + k % 16);
  }
  __device__ __forceinline__ const float* all_scales(int k) const {
    return reinterpret_cast<const float*>(tile + kTileCodesBytes) + k / 128 * kTileColumns;
  }
  __device__ __forceinline__ uint32_t scale_byte(int i, int k) const {
    return __float_as_uint(all_scales(k)[i * 8 + lane / 4]) >> 23;
  }
  __device__ __forceinline__ float2 scales(int i, int k) const {
    return *reinterpret_cast<const float2*>(all_scales(k) + i * 8 + lane % 4 * 2);
  }
};

// Starts copying the tile of a stage. Source: codes(column, k) is where 16 codes of a column lie,
// scale(column, k) where its scale of k does; both null for a column that is absent, which becomes
// zero; anywhere() is some readable address.
template <int kThreads, class Source>
__device__ __forceinline__ void copy_tile(const Source& source, int stage, uint8_t* tile) {
  const int thread = static_cast<int>(threadIdx.x);
  const uint32_t address = shared_address(tile);
#pragma unroll
  for (int i = thread; i < kSlabStage / 16 * kTileColumns; i += kThreads) {
    // Two groups of a column side by side: 32 bytes of it, and all banks.
    const int column = i / 2 % kTileColumns, group = i / (2 * kTileColumns) * 2 + i % 2;
    const uint8_t* const from = source.codes(column, stage * kSlabStage + group * 16);
    copy_async_16(address + group * kTileGroupBytes + column * 16,
                  from == nullptr ? source.anywhere() : from,
                  from != nullptr);
  }
  if (thread < 2 * kTileColumns) {
    const float* const from =
        source.scale(thread % kTileColumns, stage * kSlabStage + thread / kTileColumns * 128);
    copy_async_4(address + kTileCodesBytes + thread * 4,
                 from == nullptr ? static_cast<const void*>(source.anywhere()) : from,
                 from != nullptr);
  }
  copy_async_commit();
}

// What a warp needs to multiply slabs with tiles; `buffer` is the tile that is free.
template <class Memory>
struct SlabTile {
  uint8_t* tiles;
  typename Memory::Ring ring;
  uint64_t policy;
  int lane;
  int buffer = 0;

  // total += the warp's slab times the source's columns over `stages`. All threads of the block.
  //   has_slab: whether this warp takes part beyond copying
  template <class Slab, class Source, class Next>
  __device__ __forceinline__ void multiply(const Source& source,
                                           Share stages,
                                           bool has_slab,
                                           Next& next,
                                           SlabAccumulators<kTileTiles>& total) {
    copy_tile<Memory::kThreads>(source, stages.begin, tiles + buffer * kTileBytes);
    for (int part = 0; part < kSlabWarps; ++part) {
      const Share mine = share_of(stages.end - stages.begin, part, kSlabWarps);
      float acc[kTileTiles][4] = {};
      for (int stage = stages.begin + mine.begin; stage < stages.begin + mine.end; ++stage) {
        copy_async_wait_all();
        __syncthreads();  // this tile is here, and nobody reads the other any more
        const TileColumns x{.tile = tiles + buffer * kTileBytes, .lane = lane};
        buffer ^= 1;
        if (stage + 1 < stages.end) {
          copy_tile<Memory::kThreads>(source, stage + 1, tiles + buffer * kTileBytes);
        }
        if (has_slab) {
          const uint8_t* const weights = ring.wait();
          Slab::template multiply<kTileTiles>(weights, x, 0, lane, acc);
          ring.release(next, policy, lane);
        }
      }
#pragma unroll
      for (int i = 0; i < kTileTiles; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) total[i][j] += acc[i][j];
      }
    }
  }
};

}  // namespace nibble::kernels::cuda
