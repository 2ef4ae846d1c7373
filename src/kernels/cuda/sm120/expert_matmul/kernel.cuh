// The expert product of sm_120 for few rows per slot: spec "kernels" 4.3 (D1, k across warps) and
// 4.5.
//
// Weights are the M operand, rows of x the N operand. A block owns a contiguous range of (slot,
// slab) units; each of its four warps streams a quarter of the slab's k through a ring of its own
// and multiplies it with activations that come straight from the L2 cache: at 4 bytes of memory per
// clock and multiprocessor nothing else has to be clever. The four partial slabs are added in order
// through shared memory, so that a result depends on its own row and the shape only.
//
// Bytes: those of each slot's expert, once. FLOPs: 2 n k per pair.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/swiglu.cuh"
#include "kernels/cuda/sm120/slab_block.cuh"
#include "kernels/cuda/sm120/slab_products.cuh"
#include "kernels/cuda/sm120/slab_ring.cuh"

namespace nibble::kernels::cuda {

// DeviceGroupedMatMulArgs as the kernel takes them.
struct SlabExpertParams {
  const uint8_t* x_codes;  // MXFP4
  const float* x_scales;
  const uint16_t* x_bf16;  // NVFP4
  int pairs_per_row;
  const uint8_t* weights;        // packages of all experts
  const float* row_multipliers;  // [experts, n]; NVFP4
  const int* slot_count;
  int max_slots;
  const int* slot_experts;
  const int* slot_pairs;
  bool slots_are_ready;  // before the predecessors end
  float limit;           // infinity: no clamp
  const float* pair_weights;
  void* y;
  int n;
  int k;
};

// The weight stages of a warp in the order of its units. Slots of one row may have no expert.
template <class Slab>
class SlabExpertStages {
 public:
  __device__ __forceinline__ SlabExpertStages(const SlabExpertParams& params,
                                              Share units,
                                              Share stages)
      : params_(params), unit_(units.begin), end_(units.end), stages_(stages) {
    if (stages.begin == stages.end) unit_ = end_;
    open();
  }

  const __device__ __forceinline__ uint8_t* next() {
    if (stage_ == stages_.end) {
      ++unit_;
      open();
    }
    if (unit_ >= end_) return nullptr;
    return slab_ + static_cast<size_t>(stage_++) * Slab::kStageBytes;
  }

 private:
  // Goes on to the next unit that has an expert, if this one has none.
  __device__ __forceinline__ void open() {
    const int slabs = params_.n / 16, slab_stages = params_.k / kSlabStage;
    stage_ = stages_.begin;
    for (; unit_ < end_; ++unit_) {
      if (unit_ / slabs != slot_) {
        slot_ = unit_ / slabs;
        expert_ = __ldcg(params_.slot_experts + slot_);
      }
      if (expert_ < 0) continue;
      const size_t slab = static_cast<size_t>(expert_) * slabs + unit_ % slabs;
      slab_ = params_.weights + slab * slab_stages * Slab::kStageBytes;
      return;
    }
  }

  const SlabExpertParams& params_;
  int unit_;
  int end_;
  Share stages_;
  int stage_ = 0;
  int slot_ = -1;
  int expert_ = -1;
  const uint8_t* slab_ = nullptr;
};

// The activations of a lane's columns, read from global memory. A column without a pair is zero.
template <int kTiles>
struct Fp8Columns {
  const uint8_t* rows[kTiles];  // null: none
  const float* row_scales[kTiles];

  __device__ __forceinline__ void open(const SlabExpertParams& params, int tile, int x_row) {
    const auto row = static_cast<size_t>(x_row < 0 ? 0 : x_row);
    rows[tile] = x_row < 0 ? nullptr : params.x_codes + row * params.k;
    row_scales[tile] = params.x_scales + row * (params.k / 128);
  }
  __device__ __forceinline__ uint2 codes(int tile, int k) const {
    if (rows[tile] == nullptr) return {0, 0};
    return __ldcg(reinterpret_cast<const uint2*>(rows[tile] + k));
  }
  // Scales are powers of two.
  __device__ __forceinline__ uint32_t scale_byte(int tile, int k) const {
    return __float_as_uint(__ldcg(row_scales[tile] + k / 128)) >> 23;
  }
};
template <int kTiles>
struct Bf16Columns {
  const uint16_t* rows[kTiles];

  __device__ __forceinline__ void open(const SlabExpertParams& params, int tile, int x_row) {
    rows[tile] = x_row < 0 ? nullptr : params.x_bf16 + static_cast<size_t>(x_row) * params.k;
  }
  __device__ __forceinline__ uint2 values(int tile, int k) const {
    if (rows[tile] == nullptr) return {0, 0};
    return __ldcg(reinterpret_cast<const uint2*>(rows[tile] + k));
  }
};
template <class Slab>
struct SlabExpertFormat;
template <>
struct SlabExpertFormat<Mxfp4Slab> {
  template <int kTiles>
  using Columns = Fp8Columns<kTiles>;
  static constexpr bool kHasMultipliers = false;
};
template <>
struct SlabExpertFormat<Nvfp4Slab> {
  template <int kTiles>
  using Columns = Bf16Columns<kTiles>;
  static constexpr bool kHasMultipliers = true;
};

// The pair of a column of a slot; -1: none.
template <int kRows>
__device__ __forceinline__ int pair_of(const SlabExpertParams& params, int slot, int column) {
  if constexpr (kRows == 1) return column == 0 ? slot : -1;
  return __ldcg(params.slot_pairs + slot * kRows + column);
}

// Writes this thread's part of a finished slab: row threadIdx.x % 16 of columns threadIdx.x / 16
// and every 8 on; with swiglu, rows 0 .. 7 and their up rows.
template <int kTiles, bool kSwiglu>
__device__ __forceinline__ void store_slab(const SlabExpertParams& params,
                                           const float* partials,
                                           const int (&pairs)[kTiles],
                                           const float (&pair_weights)[kTiles],
                                           int slab,
                                           float multiplier,
                                           float up_multiplier) {
  constexpr int kColumns = kTiles * 8;
  const int row = static_cast<int>(threadIdx.x) % 16, column = static_cast<int>(threadIdx.x) / 16;
  if (kSwiglu && row >= 8) return;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    if (pairs[tile] < 0) continue;
    const float first = sum_partials<kColumns>(partials, row, tile * 8 + column) * multiplier;
    const auto pair = static_cast<size_t>(pairs[tile]);
    if constexpr (kSwiglu) {
      const float up = sum_partials<kColumns>(partials, row + 8, tile * 8 + column) * up_multiplier;
      const float gated = swiglu(first, up, params.limit) * pair_weights[tile];
      static_cast<uint16_t*>(params.y)[pair * (params.n / 2) + slab * 8 + row] =
          static_cast<uint16_t>(pack_bf16x2(gated, 0));
    } else {
      static_cast<float*>(params.y)[pair * params.n + slab * 16 + row] = first;
    }
  }
}

template <class Slab, int kRows, int kRingStages, bool kSwiglu>
__global__ void __launch_bounds__(kSlabThreads, kSlabBlocksPerUnit)
    slab_expert_matmul(const SlabExpertParams params) {
  constexpr int kTiles = slab_tiles_of(kRows);
  using Memory = SlabBlockMemory<Slab, kTiles, kRingStages>;
  using Columns = typename SlabExpertFormat<Slab>::template Columns<kTiles>;
  extern __shared__ __align__(128) uint8_t memory[];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  float* const partials = reinterpret_cast<float*>(memory + Memory::kPartialsAt);
  typename Memory::Ring ring(memory + warp * Memory::Ring::kBytes,
                             memory + Memory::kBarriersAt + warp * Memory::Ring::kBarrierBytes);
  if (lane == 0) ring.init();
  __syncwarp();
  if (!params.slots_are_ready) wait_for_predecessors();
  const int slabs = params.n / 16;
  const int num_slots = kRows == 1 ? params.max_slots : __ldcg(params.slot_count);
  const Share units =
      share_of(num_slots * slabs, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
  const Share stages = share_of(params.k / kSlabStage, warp, kSlabWarps);
  SlabExpertStages<Slab> source(params, units, stages);
  const uint64_t policy = evict_first_policy();
  if (lane == 0) ring.fill(source, policy);
  wait_for_predecessors();
  launch_dependents();

  const int column = static_cast<int>(threadIdx.x) / 16;  // of what this thread writes
  Columns x;
  int pairs[kTiles];
  float pair_weights[kTiles];
  int loaded_slot = -1, expert = -1, buffer = 0;
  for (int unit = units.begin; unit < units.end; ++unit) {
    const int slot = unit / slabs, slab = unit % slabs;
    if (slot != loaded_slot) {
      loaded_slot = slot;
      expert = __ldcg(params.slot_experts + slot);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int pair = pair_of<kRows>(params, slot, tile * 8 + lane / 4);
        x.open(params, tile, pair < 0 ? -1 : pair / params.pairs_per_row);
        pairs[tile] = pair_of<kRows>(params, slot, tile * 8 + column);
        const bool is_weighted = kSwiglu && pairs[tile] >= 0 && params.pair_weights != nullptr;
        pair_weights[tile] = is_weighted ? __ldcg(params.pair_weights + pairs[tile]) : 1.0f;
      }
    }
    if (expert < 0) continue;
    float multiplier = 1, up_multiplier = 1;
    if constexpr (SlabExpertFormat<Slab>::kHasMultipliers) {
      const float* const multipliers =
          params.row_multipliers + static_cast<size_t>(expert) * params.n + slab * 16;
      multiplier = __ldg(multipliers + threadIdx.x % 16);
      up_multiplier = __ldg(multipliers + threadIdx.x % 8 + 8);
    }
    float acc[kTiles][4] = {};
    for (int stage = stages.begin; stage < stages.end; ++stage) {
      const uint8_t* const weights = ring.wait();
      Slab::template multiply<kTiles>(weights, x, stage * kSlabStage, lane, acc);
      ring.release(source, policy, lane);
    }
    float* const slab_partials = partials + buffer * Memory::kPartialFloats;
    store_partial<kTiles>(acc, slab_partials + warp * 16 * Memory::kColumns, lane);
    __syncthreads();
    store_slab<kTiles, kSwiglu>(
        params, slab_partials, pairs, pair_weights, slab, multiplier, up_multiplier);
    buffer ^= 1;  // this one is read until everybody has come to the next barrier
  }
}

}  // namespace nibble::kernels::cuda
