// The dense FP8 product of sm_120 for many tokens: a unit is 64 tokens, a part of k and as many
// slabs as the block has warps. Sums are those of kernel.cuh.
//
// Bytes: n k, again for each 64 tokens from the L2 cache. FLOPs: 2 m n k.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm120/fp8_matmul/kernel.cuh"
#include "kernels/cuda/sm120/slab_tile.cuh"

namespace nibble::kernels::cuda {

inline constexpr int kFp8TileWarps = 4;
using Fp8TileMemory = SlabTileMemory<Fp8Slab, kFp8TileWarps, 2>;

// A unit in the order in which blocks take them: tokens first, so that weights stay in the cache.
struct Fp8TileUnit {
  int slab;  // of this warp; may be beyond the last
  int first_token;
  int split;
  Share stages;

  __device__ __forceinline__ Fp8TileUnit(const SlabFp8Params& params, int unit, int warp) {
    const int token_tiles = (params.m + kTileColumns - 1) / kTileColumns;
    first_token = unit % token_tiles * kTileColumns;
    split = unit / token_tiles % params.splits;
    slab = unit / token_tiles / params.splits * kFp8TileWarps + warp;
    stages = share_of(params.k / kSlabStage, split, params.splits);
  }
  static __device__ __forceinline__ int count(const SlabFp8Params& params) {
    const int slab_blocks = (params.n / 16 + kFp8TileWarps - 1) / kFp8TileWarps;
    return (params.m + kTileColumns - 1) / kTileColumns * params.splits * slab_blocks;
  }
};

// The weight stages of a warp in the order of its units.
class Fp8TileStages {
 public:
  __device__ __forceinline__ Fp8TileStages(const SlabFp8Params& params, Share units, int warp)
      : params_(params), unit_(units.begin), end_(units.end), warp_(warp) {
    open();
  }

  const __device__ __forceinline__ uint8_t* next() {
    if (unit_ < end_ && stage_ == stage_end_) {
      ++unit_;
      open();
    }
    if (unit_ >= end_) return nullptr;
    const size_t stage = static_cast<size_t>(slab_) * (params_.k / kSlabStage) + stage_++;
    return params_.weights + stage * Fp8Slab::kStageBytes;
  }

 private:
  // Goes on to the next unit that has a slab for this warp, if this one has none.
  __device__ __forceinline__ void open() {
    for (; unit_ < end_; ++unit_) {
      const Fp8TileUnit unit(params_, unit_, warp_);
      if (unit.slab >= params_.n / 16) continue;
      slab_ = unit.slab;
      stage_ = unit.stages.begin;
      stage_end_ = unit.stages.end;
      return;
    }
  }

  const SlabFp8Params& params_;
  int unit_;
  int end_;
  int warp_;
  int slab_ = 0;
  int stage_ = 0;
  int stage_end_ = 0;
};

// Tokens first_token and on, from slices of blocks (kernels/device_args.h).
struct BlockColumns {
  const SlabFp8Params& params;
  int first_token;
  int first_k;  // of the group

  const __device__ __forceinline__ uint8_t* codes(int column, int k) const {
    const int token = first_token + column;
    if (token >= params.m) return nullptr;
    const Place place(params, token, first_k + k);
    return place.block + (k % 128 / 16 * place.rows + place.row) * 16;
  }
  __device__ __forceinline__ const float* scale(int column, int k) const {
    const int token = first_token + column;
    if (token >= params.m) return nullptr;
    const Place place(params, token, first_k + k);
    return reinterpret_cast<const float*>(place.block + place.rows * 128) + place.row;
  }
  const __device__ __forceinline__ uint8_t* anywhere() const { return params.x; }

 private:
  // fp8_block_place() of [m, groups * k].
  struct Place {
    const uint8_t* block;
    int rows;
    int row;

    __device__ __forceinline__ Place(const SlabFp8Params& params, int token, int column) {
      constexpr int kSlice = 128;
      const int first = token / kSlice * kSlice;
      rows = min(params.m - first, kSlice);
      row = token - first;
      const int block_bytes = rows * 128 + (rows * 4 + 15) / 16 * 16;
      const size_t blocks = static_cast<size_t>(params.groups) * (params.k / 128);
      block = params.x + static_cast<size_t>(token / kSlice) * blocks * (kSlice * 132) +
              static_cast<size_t>(column / 128) * block_bytes;
    }
  };
};

__global__ void __launch_bounds__(Fp8TileMemory::kThreads, 1)
    slab_fp8_tile_matmul(const SlabFp8Params params) {
  using Memory = Fp8TileMemory;
  extern __shared__ __align__(128) uint8_t memory[];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4;
  SlabTile<Memory> tile{.tiles = memory + Memory::kTilesAt,
                        .ring = typename Memory::Ring(
                            memory + warp * Memory::Ring::kBytes,
                            memory + Memory::kBarriersAt + warp * Memory::Ring::kBarrierBytes),
                        .policy = evict_last_policy(),  // the next tokens read the same
                        .lane = lane};
  if (lane == 0) tile.ring.init();
  __syncwarp();
  launch_dependents();
  const Share units = share_of(
      Fp8TileUnit::count(params), static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
  Fp8TileStages source(params, units, warp);
  if (lane == 0) tile.ring.fill(source, tile.policy);
  wait_for_predecessors();
  for (int index = units.begin; index < units.end; ++index) {
    const Fp8TileUnit unit(params, index, warp);
    const bool has_slab = unit.slab < params.n / 16;
    // All slabs of a block are of one group, see the launcher.
    const int group = (unit.slab - warp) * 16 / (params.n / params.groups);
    float total[kTileTiles][4] = {};
    tile.template multiply<Fp8Slab>(
        BlockColumns{
            .params = params, .first_token = unit.first_token, .first_k = group * params.k},
        unit.stages,
        has_slab,
        source,
        total);
    if (!has_slab) continue;
#pragma unroll
    for (int i = 0; i < kTileTiles; ++i) {
#pragma unroll
      for (int two = 0; two < 2; ++two) {
        const int token = unit.first_token + i * 8 + 2 * t + two;
        if (token >= params.m) continue;
        const size_t row = static_cast<size_t>(unit.split) * params.m + token;
        float* const y = params.y + row * params.n + unit.slab * 16 + g;
        y[0] = total[i][two];
        y[8] = total[i][2 + two];
      }
    }
  }
}

}  // namespace nibble::kernels::cuda
