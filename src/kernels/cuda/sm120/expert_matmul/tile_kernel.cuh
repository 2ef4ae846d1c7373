// The expert product of sm_120 for slots of 64 rows: spec "kernels" 4.5. A unit is a slot and as
// many slabs as the block has warps.
//
// Bytes: those of each slot's expert, from the L2 cache where slots share one. FLOPs: 2 n k per
// pair.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm120/expert_matmul/kernel.cuh"
#include "kernels/cuda/sm120/slab_tile.cuh"

namespace nibble::kernels::cuda {

inline constexpr int kExpertTileWarps = 8;
using ExpertTileMemory = SlabTileMemory<Mxfp4Slab, kExpertTileWarps, 2>;

// The weight stages of a warp in the order of its units.
class ExpertTileStages {
 public:
  __device__ __forceinline__ ExpertTileStages(const SlabExpertParams& params, Share units, int warp)
      : params_(params), unit_(units.begin), end_(units.end), warp_(warp) {
    open();
  }

  const __device__ __forceinline__ uint8_t* next() {
    if (unit_ < end_ && stage_ == params_.k / kSlabStage) {
      ++unit_;
      open();
    }
    if (unit_ >= end_) return nullptr;
    return slab_ + static_cast<size_t>(stage_++) * Mxfp4Slab::kStageBytes;
  }

 private:
  // Goes on to the next unit that has a slab for this warp, if this one has none.
  __device__ __forceinline__ void open() {
    const int slabs = params_.n / 16;
    const int unit_blocks = (slabs + kExpertTileWarps - 1) / kExpertTileWarps;
    stage_ = 0;
    for (; unit_ < end_; ++unit_) {
      const int slab = unit_ % unit_blocks * kExpertTileWarps + warp_;
      if (slab >= slabs) continue;
      const int expert = __ldcg(params_.slot_experts + unit_ / unit_blocks);
      slab_ = params_.weights + (static_cast<size_t>(expert) * slabs + slab) *
                                    (params_.k / kSlabStage) * Mxfp4Slab::kStageBytes;
      return;
    }
  }

  const SlabExpertParams& params_;
  int unit_;
  int end_;
  int warp_;
  int stage_ = 0;
  const uint8_t* slab_ = nullptr;
};

// The rows of x of a slot.   pairs: [64], -1: none
struct SlotColumns {
  const SlabExpertParams& params;
  const int* pairs;

  const __device__ __forceinline__ uint8_t* codes(int column, int k) const {
    const int pair = pairs[column];
    if (pair < 0) return nullptr;
    return params.x_codes + static_cast<size_t>(pair / params.pairs_per_row) * params.k + k;
  }
  __device__ __forceinline__ const float* scale(int column, int k) const {
    const int pair = pairs[column];
    if (pair < 0) return nullptr;
    const auto row = static_cast<size_t>(pair / params.pairs_per_row);
    return params.x_scales + row * (params.k / 128) + k / 128;
  }
  const __device__ __forceinline__ uint8_t* anywhere() const { return params.x_codes; }
};

// Writes a lane's part of a finished slab.
template <bool kSwiglu>
__device__ __forceinline__ void store_tile(const SlabExpertParams& params,
                                           const SlabAccumulators<kTileTiles>& total,
                                           const int* pairs,
                                           int slab,
                                           int lane) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < kTileTiles; ++i) {
#pragma unroll
    for (int two = 0; two < 2; ++two) {
      const int pair = pairs[i * 8 + 2 * t + two];
      if (pair < 0) continue;
      const float first = total[i][two], second = total[i][2 + two];
      if constexpr (kSwiglu) {
        const float weight =
            params.pair_weights == nullptr ? 1.0f : __ldcg(params.pair_weights + pair);
        auto* const y =
            static_cast<uint16_t*>(params.y) + static_cast<size_t>(pair) * (params.n / 2);
        y[slab * 8 + g] =
            static_cast<uint16_t>(pack_bf16x2(swiglu(first, second, params.limit) * weight, 0));
      } else {
        auto* const y = static_cast<float*>(params.y) + static_cast<size_t>(pair) * params.n;
        y[slab * 16 + g] = first;
        y[slab * 16 + g + 8] = second;
      }
    }
  }
}

template <bool kSwiglu>
__global__ void __launch_bounds__(ExpertTileMemory::kThreads, 1)
    slab_expert_tile_matmul(const SlabExpertParams params) {
  using Memory = ExpertTileMemory;
  extern __shared__ __align__(128) uint8_t memory[];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  SlabTile<Memory> tile{
      .tiles = memory + Memory::kTilesAt,
      .ring =
          typename Memory::Ring(memory + warp * Memory::Ring::kBytes,
                                memory + Memory::kBarriersAt + warp * Memory::Ring::kBarrierBytes),
      .policy = evict_last_policy(),  // the next slot of the expert reads the same
      .lane = lane};
  int* const pairs = reinterpret_cast<int*>(memory + Memory::kTableAt);
  if (lane == 0) tile.ring.init();
  __syncwarp();
  wait_for_predecessors();
  launch_dependents();
  const int slabs = params.n / 16;
  const int unit_blocks = (slabs + kExpertTileWarps - 1) / kExpertTileWarps;
  const Share units = share_of(__ldcg(params.slot_count) * unit_blocks,
                               static_cast<int>(blockIdx.x),
                               static_cast<int>(gridDim.x));
  ExpertTileStages source(params, units, warp);
  if (lane == 0) tile.ring.fill(source, tile.policy);
  int loaded_slot = -1;
  for (int unit = units.begin; unit < units.end; ++unit) {
    const int slot = unit / unit_blocks;
    const int slab = unit % unit_blocks * kExpertTileWarps + warp;
    if (slot != loaded_slot) {
      loaded_slot = slot;
      __syncthreads();  // everybody has written the slot before
      if (threadIdx.x < kTileColumns) {
        pairs[threadIdx.x] = __ldcg(params.slot_pairs + slot * kTileColumns + threadIdx.x);
      }
      __syncthreads();
    }
    float total[kTileTiles][4] = {};
    tile.template multiply<Mxfp4Slab>(SlotColumns{.params = params, .pairs = pairs},
                                      Share{0, params.k / kSlabStage},
                                      slab < slabs,
                                      source,
                                      total);
    if (slab < slabs) store_tile<kSwiglu>(params, total, pairs, slab, lane);
  }
}

}  // namespace nibble::kernels::cuda
