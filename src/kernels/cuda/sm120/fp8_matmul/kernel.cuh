// The dense FP8 product of sm_120 for up to 16 tokens: spec "kernels" 7.2 (fragment-ordered slabs,
// zero conversion).
//
// A unit is a slab and a part of k, or, where results leave as FP8, the 8 slabs that share a scale.
// The block's four warps each stream a quarter of that k, see slab_block.cuh.
//
// Bytes: n k. FLOPs: 2 m n k.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/fp8.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/sm120/slab_block.cuh"
#include "kernels/cuda/sm120/slab_products.cuh"
#include "kernels/cuda/sm120/slab_ring.cuh"

namespace nibble::kernels::cuda {

// DeviceMatMulArgs as the kernel takes them.
struct SlabFp8Params {
  const uint8_t* x;  // blocks
  int m;
  int block_bytes;
  int groups;
  const uint8_t* weights;
  int n;
  int k;
  int splits;
  float* y;
  uint8_t* y_fp8;
};

// The activations of a lane's columns, from blocks. Columns beyond m repeat the last.
struct Fp8BlockColumns {
  const uint8_t* x;  // of the group
  int m;
  int block_bytes;
  int lane;

  __device__ __forceinline__ uint2 codes(int tile, int k) const {
    const int column = min(tile * 8 + lane / 4, m - 1);
    const uint8_t* const block = x + static_cast<size_t>(k / 128) * block_bytes;
    return __ldcg(
        reinterpret_cast<const uint2*>(block + (k % 128 / 16 * m + column) * 16 + k % 16));
  }
  __device__ __forceinline__ float2 scales(int tile, int k) const {
    const auto* const all =
        reinterpret_cast<const float*>(x + static_cast<size_t>(k / 128) * block_bytes + 128 * m);
    const int column = tile * 8 + lane % 4 * 2;
    return {__ldcg(all + min(column, m - 1)), __ldcg(all + min(column + 1, m - 1))};
  }
};

// The slabs of a unit and its part of k.
template <bool kQuantize>
struct SlabFp8Unit {
  static constexpr int kSlabs = kQuantize ? 8 : 1;
  int first_slab;
  int split;
  Share stages;  // of this warp

  __device__ __forceinline__ SlabFp8Unit(const SlabFp8Params& params, int unit, int warp)
      : first_slab(unit / params.splits * kSlabs), split(unit % params.splits) {
    const Share part = share_of(params.k / kSlabStage, split, params.splits);
    const Share mine = share_of(part.end - part.begin, warp, kSlabWarps);
    stages = {part.begin + mine.begin, part.begin + mine.end};
  }
};

// The weight stages of a warp in the order of its units.
template <bool kQuantize>
class SlabFp8Stages {
 public:
  __device__ __forceinline__ SlabFp8Stages(const SlabFp8Params& params, Share units, int warp)
      : params_(params), unit_(units.begin), end_(units.end), warp_(warp) {
    open();
  }

  const __device__ __forceinline__ uint8_t* next() {
    using Unit = SlabFp8Unit<kQuantize>;
    while (unit_ < end_ && stage_ == stages_.end) {
      stage_ = stages_.begin;
      if (++slab_ == Unit::kSlabs) {
        ++unit_;
        open();
      }
    }
    if (unit_ >= end_) return nullptr;
    const size_t stage =
        static_cast<size_t>(first_slab_ + slab_) * (params_.k / kSlabStage) + stage_++;
    return params_.weights + stage * Fp8Slab::kStageBytes;
  }

 private:
  __device__ __forceinline__ void open() {
    const SlabFp8Unit<kQuantize> unit(params_, unit_, warp_);
    first_slab_ = unit.first_slab;
    stages_ = unit.stages;
    stage_ = stages_.begin;
    slab_ = 0;
  }

  const SlabFp8Params& params_;
  int unit_;
  int end_;
  int warp_;
  int first_slab_ = 0;
  int slab_ = 0;
  Share stages_{};
  int stage_ = 0;
};

// Writes 128 finished rows as an FP8 block.   rows: [kColumns][128]
template <int kColumns>
__device__ __forceinline__ void quantize_rows(const SlabFp8Params& params,
                                              const float* rows,
                                              int block_index) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  uint8_t* const block = params.y_fp8 + static_cast<size_t>(block_index) * params.block_bytes;
  for (int column = warp; column < params.m; column += kSlabWarps) {
    const float4 four = *reinterpret_cast<const float4*>(rows + column * 128 + lane * 4);
    const float v[4] = {four.x, four.y, four.z, four.w};
    const float amax =
        warp_max(fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3]))));
    const uint32_t exponent = e4m3_scale_exponent(amax);
    *reinterpret_cast<uint32_t*>(block + (lane / 4 * params.m + column) * 16 + lane % 4 * 4) =
        to_e4m3x4(v, inverse_power_of_two(exponent));
    if (lane == 0) {
      reinterpret_cast<float*>(block + 128 * params.m)[column] = power_of_two(exponent);
    }
  }
}

template <int kTiles, int kRingStages, bool kQuantize>
__global__ void __launch_bounds__(kSlabThreads, kSlabBlocksPerUnit)
    slab_fp8_matmul(const SlabFp8Params params) {
  using Memory = SlabBlockMemory<Fp8Slab, kTiles, kRingStages>;
  using Unit = SlabFp8Unit<kQuantize>;
  constexpr int kColumns = Memory::kColumns;
  extern __shared__ __align__(128) uint8_t memory[];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  float* const partials = reinterpret_cast<float*>(memory + Memory::kPartialsAt);
  float* const finished = reinterpret_cast<float*>(memory + Memory::kBytes);  // [kColumns][128]
  typename Memory::Ring ring(memory + warp * Memory::Ring::kBytes,
                             memory + Memory::kBarriersAt + warp * Memory::Ring::kBarrierBytes);
  if (lane == 0) ring.init();
  __syncwarp();
  launch_dependents();
  const Share units = share_of(params.n / (16 * Unit::kSlabs) * params.splits,
                               static_cast<int>(blockIdx.x),
                               static_cast<int>(gridDim.x));
  SlabFp8Stages<kQuantize> source(params, units, warp);
  const uint64_t policy = evict_first_policy();
  if (lane == 0) ring.fill(source, policy);
  wait_for_predecessors();

  // What this thread writes of a slab: a row of every 8th column.
  const int row = static_cast<int>(threadIdx.x) % 16, column = static_cast<int>(threadIdx.x) / 16;
  int buffer = 0;
  for (int index = units.begin; index < units.end; ++index) {
    const Unit unit(params, index, warp);
    const int group = unit.first_slab * 16 / (params.n / params.groups);
    const Fp8BlockColumns x{
        .x = params.x + static_cast<size_t>(group) * (params.k / 128) * params.block_bytes,
        .m = params.m,
        .block_bytes = params.block_bytes,
        .lane = lane};
    for (int slab = 0; slab < Unit::kSlabs; ++slab) {
      float acc[kTiles][4] = {};
      for (int stage = unit.stages.begin; stage < unit.stages.end; ++stage) {
        const uint8_t* const weights = ring.wait();
        Fp8Slab::multiply<kTiles>(weights, x, stage * kSlabStage, lane, acc);
        ring.release(source, policy, lane);
      }
      float* const slab_partials = partials + buffer * Memory::kPartialFloats;
      store_partial<kTiles>(acc, slab_partials + warp * 16 * kColumns, lane);
      __syncthreads();
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int token = tile * 8 + column;
        const float sum = sum_partials<kColumns>(slab_partials, row, token);
        if constexpr (kQuantize) {
          finished[token * 128 + slab * 16 + row] = sum;
        } else if (token < params.m) {
          const size_t y_row = static_cast<size_t>(unit.split) * params.m + token;
          params.y[y_row * params.n + unit.first_slab * 16 + row] = sum;
        }
      }
      buffer ^= 1;  // this one is read until everybody has come to the next barrier
    }
    if constexpr (kQuantize) {
      __syncthreads();
      quantize_rows<kColumns>(params, finished, index);
      __syncthreads();
    }
  }
}

}  // namespace nibble::kernels::cuda
