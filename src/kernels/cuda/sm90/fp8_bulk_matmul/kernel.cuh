// The dense FP8 product of sm_90a for many tokens, from 17 to a prefill chunk, over the weights of
// the product for few (kernels/fp8_panel64.h). Design: spec "kernels" 7.2 and 7.3.
//
// Stages of 128 k flow through a ring: tiles of weights, one per panel of 64 rows, and a block of
// the tokens' codes and scales, both in core-matrix order. Two blocks of a cluster share one of
// these, of which each fetches half for both. Two forms:
//   batch    a block has 2 panels and up to 128 tokens, which the cluster shares. Each of two
//            warpgroups multiplies a panel, as M, with the tokens, as N.
//   prefill  a block has 4 panels, which the cluster shares, and 128 tokens. Each warpgroup
//            multiplies 64 tokens, as M and in registers, with all panels, as N.
// Every 128 k are promoted to f32 with the scales of panel and token.
//
// Weights depend on nothing, so the ring fills with them before the predecessors end. The order of
// every sum depends on the shape only.
//
// Bytes: n k + m k + 4 splits m n. FLOPs: 2 m n k.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/panel_stages.cuh"
#include "kernels/cuda/common/product_tile.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/wgmma_bf16.cuh"
#include "kernels/cuda/common/wgmma_products.cuh"

namespace nibble::kernels::cuda {

inline constexpr int kBulkTileBytes = 64 * 128;  // of weights: a panel by 128 k
inline constexpr int kBulkWarpgroups = 2;
inline constexpr int kBulkConsumers = kBulkWarpgroups * 128;
inline constexpr int kBulkCluster = 2;
inline constexpr int kBulkMaxStages = 16;
inline constexpr int kBulkBarriers = 2 * kBulkMaxStages;
// Threads of a block, where `blocks` fit on a multiprocessor. The producer is a warp; where one
// block fits, it is the first of a warpgroup, which gives its registers to the consumers.
__host__ __device__ constexpr int bulk_threads(int blocks) {
  return kBulkConsumers + (blocks == 1 ? 128 : 32);
}

// DeviceMatMulArgs as the kernel takes them.
struct Fp8BulkParams {
  const uint8_t* x;  // ActivationForms::fp8_blocks
  int m;
  const uint8_t* weights;
  const float* weight_scales;  // [panels, tiles]
  int panels;
  int panels_per_group;
  int tiles;  // of 128 k in a row
  int splits;
  float* y;
  int ring_stages;
};

// kIsPrefill: which form; kColumns: tokens of a block.
template <int kColumns, bool kIsPrefill>
struct Fp8BulkShape {
  static constexpr bool kSharesWeights = kIsPrefill;
  static constexpr int kTiles = kIsPrefill ? 4 : 2;  // of weights in a stage: panels of a block
  // What a cluster takes at a time.
  static constexpr int kRangePanels = kSharesWeights ? kTiles : kTiles * kBulkCluster;
  static constexpr int kRangeTokens = kSharesWeights ? kColumns * kBulkCluster : kColumns;
  // A stage: tiles of weights, then the tokens' block. Where there are fewer tokens than columns,
  // the core matrices of a chunk overlap with what follows.
  static constexpr int kTokens = kTiles * kBulkTileBytes;  // offset
  static constexpr int kStageBytes = kTokens + (kColumns * 132 + 127) / 128 * 128;
};

// The items of a cluster, taken in turns by all clusters.
template <class Shape, int kColumns>
struct Fp8BulkWork {
  PanelRanges ranges;
  int row_ranges, token_ranges, item_tiles, num_items, first, step, rank, m;

  __device__ __forceinline__ explicit Fp8BulkWork(const Fp8BulkParams& params)
      : ranges(params.panels_per_group, Shape::kRangePanels),
        row_ranges(params.panels / params.panels_per_group * ranges.per_group),
        token_ranges((params.m + Shape::kRangeTokens - 1) / Shape::kRangeTokens),
        item_tiles(params.tiles / params.splits),
        num_items(row_ranges * token_ranges * params.splits),
        first(static_cast<int>(blockIdx.x) / kBulkCluster),
        step(static_cast<int>(gridDim.x) / kBulkCluster),
        rank(static_cast<int>(cluster_rank())),
        m(params.m) {}

  __device__ __forceinline__ int own_items() const {
    return first < num_items ? (num_items - first + step - 1) / step : 0;
  }
  __device__ __forceinline__ ProductTile item(int index) const {
    return product_tile(first + index * step, row_ranges, token_ranges);
  }
  // Which panel of a cluster's range the `tile`th of this block is.
  __device__ __forceinline__ int panel_in_range(int tile) const {
    return Shape::kSharesWeights ? tile : rank * Shape::kTiles + tile;
  }
  // This block's slice of kColumns tokens. Where the cluster's second slice lies beyond the tokens,
  // its block repeats the first and stores nothing.
  __device__ __forceinline__ bool has_tokens(const ProductTile& item) const {
    return !Shape::kSharesWeights || (item.tokens * kBulkCluster + rank) * kColumns < m;
  }
  __device__ __forceinline__ int slice(const ProductTile& item) const {
    if (!Shape::kSharesWeights) return item.tokens;
    return item.tokens * kBulkCluster + (has_tokens(item) ? rank : 0);
  }
  __device__ __forceinline__ int num_tokens(const ProductTile& item) const {
    return min(kColumns, m - slice(item) * kColumns);
  }
};

__device__ __forceinline__ int fp8_bulk_block_bytes(int tokens) {
  return tokens * 128 + (tokens * 4 + 15) / 16 * 16;
}

// What one lane of the producer copies for each stage: tiles of weights that this block fetches,
// and the tokens' block, or this block's half of it.
template <class Shape, int kColumns>
class Fp8BulkSource {
 public:
  static constexpr int kWeightLanes = Shape::kTiles / (Shape::kSharesWeights ? kBulkCluster : 1);
  static constexpr int kLanes = kWeightLanes + 1;

  __device__ __forceinline__ Fp8BulkSource(const Fp8BulkParams& params, int lane)
      : params_(params), work_(params), lane_(lane) {
    if (work_.own_items() > 0) start_item();
  }

  const __device__ __forceinline__ uint8_t* source() const { return source_; }
  __device__ __forceinline__ int num_bytes() const { return num_bytes_; }
  // Where it goes in a stage.
  __device__ __forceinline__ int offset() const { return offset_; }
  // Of a whole stage.
  __device__ __forceinline__ int stage_bytes() const { return stage_bytes_; }
  __device__ __forceinline__ void next() {
    source_ += step_;
    if (++tile_ < work_.item_tiles) return;
    if (++index_ < work_.own_items()) start_item();
  }

 private:
  __device__ __forceinline__ void start_item() {
    const ProductTile item = work_.item(index_);
    const int first_tile = item.split * work_.item_tiles;
    const int block_bytes = fp8_bulk_block_bytes(work_.num_tokens(item));
    tile_ = 0;
    stage_bytes_ = Shape::kTiles * kBulkTileBytes + block_bytes;
    if (lane_ < kWeightLanes) {
      const int tile = Shape::kSharesWeights ? work_.rank * kWeightLanes + lane_ : lane_;
      const int panel = work_.ranges.panel(item.rows, work_.panel_in_range(tile));
      source_ = params_.weights +
                (static_cast<size_t>(panel) * params_.tiles + first_tile) * kBulkTileBytes;
      step_ = num_bytes_ = kBulkTileBytes;
      offset_ = tile * kBulkTileBytes;
      return;
    }
    const int group = work_.ranges.group(item.rows);
    const int groups = params_.panels / params_.panels_per_group;
    const int half = block_bytes / 32 * 16;
    const int begin = Shape::kSharesWeights || work_.rank == 0 ? 0 : half;
    const int end = Shape::kSharesWeights || work_.rank == 1 ? block_bytes : half;
    // Slices of kColumns tokens, each of all groups' blocks; one slice where kColumns is less than
    // the slices of ActivationForms::fp8_blocks.
    source_ = params_.x +
              static_cast<size_t>(work_.slice(item)) * groups * params_.tiles *
                  fp8_bulk_block_bytes(kColumns) +
              static_cast<size_t>(group * params_.tiles + first_tile) * block_bytes + begin;
    step_ = block_bytes;
    num_bytes_ = end - begin;
    offset_ = Shape::kTokens + begin;
  }

  const Fp8BulkParams& params_;
  const Fp8BulkWork<Shape, kColumns> work_;
  const int lane_;
  int index_ = 0;
  int tile_ = 0;
  const uint8_t* source_ = nullptr;
  int step_ = 0;
  int num_bytes_ = 0;
  int offset_ = 0;
  int stage_bytes_ = 0;
};

// Feeds the ring. Fp8BulkSource::kLanes lanes of a warp.
template <class Shape, int kColumns>
__device__ __forceinline__ void produce_fp8_bulk_stages(const Fp8BulkParams& params,
                                                        uint32_t ring,
                                                        uint32_t full,
                                                        uint32_t empty) {
  using Source = Fp8BulkSource<Shape, kColumns>;
  constexpr uint16_t kAll = (1U << kBulkCluster) - 1;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const Fp8BulkWork<Shape, kColumns> work(params);
  const bool is_weight = lane < Source::kWeightLanes;
  const bool is_shared = is_weight == Shape::kSharesWeights;
  const uint64_t policy = work.token_ranges > 1 ? evict_normal_policy()
                          : is_weight           ? evict_first_policy()
                                                : evict_last_policy();
  const int num_stages = work.own_items() * work.item_tiles;
  const auto copy = [&](int slot, const Source& source) {
    const uint32_t target = ring + slot * Shape::kStageBytes + source.offset();
    const uint32_t barrier = full + 8 * slot;
    if (is_shared) {
      bulk_copy_to_blocks(target, source.source(), source.num_bytes(), barrier, kAll, policy);
    } else {
      bulk_copy_to_shared(target, source.source(), source.num_bytes(), barrier, policy);
    }
  };

  fill_panel_ring([&] { return Source(params, lane); },
                  copy,
                  is_weight,
                  num_stages,
                  params.ring_stages,
                  full,
                  empty);
}

// Adds a stage's products to `acc`.   scales: of this thread's first two tokens
template <int kCount>
__device__ __forceinline__ void promote(float (&acc)[kCount],
                                        const float (&d)[kCount],
                                        const float2* scales,
                                        float weight_scale) {
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    // Columns beyond the tokens take whatever lies there; nobody reads their sums.
    const float2 scale = scales[4 * j];
    const float first = scale.x * weight_scale, second = scale.y * weight_scale;
    acc[4 * j + 0] = fmaf(first, d[4 * j + 0], acc[4 * j + 0]);
    acc[4 * j + 1] = fmaf(second, d[4 * j + 1], acc[4 * j + 1]);
    acc[4 * j + 2] = fmaf(first, d[4 * j + 2], acc[4 * j + 2]);
    acc[4 * j + 3] = fmaf(second, d[4 * j + 3], acc[4 * j + 3]);
  }
}

// Multiplies what the ring brings, a panel as M and tokens as N. One warpgroup.
template <class Shape, int kColumns>
__device__ __forceinline__ void consume_fp8_bulk_stages(const Fp8BulkParams& params,
                                                        const uint8_t* memory,
                                                        uint32_t ring,
                                                        uint32_t full,
                                                        uint32_t empty) {
  constexpr uint64_t kWeightStep = 2 * 1024 / 16;  // descriptor distance of 32 k
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int own_tile = warp / 4;  // in a stage
  const Fp8BulkWork<Shape, kColumns> work(params);
  const int in_range = work.panel_in_range(own_tile);
  const uint64_t weights = core_matrix_descriptor(ring + own_tile * kBulkTileBytes, 1024, 128);
  const uint32_t empty_of_rank = shared_address_of_rank(empty, lane % kBulkCluster);
  // The weight scales of 32 tiles along k of an item, one per lane.
  const auto read_weight_scales = [&](const ProductTile& item, int first) {
    const int panel = work.ranges.panel(item.rows, in_range);
    const int tile = first + lane;
    return tile < work.item_tiles
               ? __ldg(params.weight_scales + static_cast<size_t>(panel) * params.tiles +
                       item.split * work.item_tiles + tile)
               : 0.0f;
  };
  const int own_items = work.own_items();
  float next_scales = own_items > 0 ? read_weight_scales(work.item(0), 0) : 0.0f;
  int slot = 0;
  uint32_t parity = 0;
  for (int index = 0; index < own_items; ++index) {
    const ProductTile item = work.item(index);
    const int num_tokens = work.num_tokens(item);
    const uint64_t tokens = core_matrix_descriptor(ring + Shape::kTokens, num_tokens * 16, 128);
    const auto token_step = static_cast<uint32_t>(2 * num_tokens);
    float weight_scales = next_scales;
    if (index + 1 < own_items) next_scales = read_weight_scales(work.item(index + 1), 0);
    float acc[kColumns / 2] = {};
    for (int tile = 0; tile < work.item_tiles; ++tile) {
      if (tile % 32 == 0 && tile > 0) weight_scales = read_weight_scales(item, tile);
      barrier_wait(full + 8 * slot, parity);
      const auto stage = static_cast<uint32_t>(slot * (Shape::kStageBytes / 16));
      const uint64_t a = weights + stage, b = tokens + stage;
      const auto* const scales =
          reinterpret_cast<const float2*>(memory + slot * Shape::kStageBytes + Shape::kTokens +
                                          num_tokens * 128) +
          lane % 4;
      float d[kColumns / 2];
      wgmma_fence();
      wgmma_e4m3_128(d, a, b, kWeightStep, token_step);
      wgmma_commit();
      const float weight_scale = __shfl_sync(~0U, weight_scales, tile % 32);
      wgmma_wait<0>();
      hold(d);
      promote(acc, d, scales, weight_scale);
      warp_arrive_at_ranks<kBulkCluster>(empty_of_rank + 8 * slot, lane);
      if (++slot == params.ring_stages) {
        slot = 0;
        parity ^= 1;
      }
    }
    if (work.ranges.has(item.rows, in_range)) {
      const int panel = work.ranges.panel(item.rows, in_range);
      store_panel_sums<kColumns>(params, acc, item, panel * 64 + warp % 4 * 16 + lane / 4);
    }
  }
}

// Adds a panel's products to `acc`.   first, second: scales of this thread's two tokens
__device__ __forceinline__ void promote_rows(float (&acc)[32],
                                             const float (&d)[32],
                                             float first,
                                             float second) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    acc[4 * j + 0] = fmaf(first, d[4 * j + 0], acc[4 * j + 0]);
    acc[4 * j + 1] = fmaf(first, d[4 * j + 1], acc[4 * j + 1]);
    acc[4 * j + 2] = fmaf(second, d[4 * j + 2], acc[4 * j + 2]);
    acc[4 * j + 3] = fmaf(second, d[4 * j + 3], acc[4 * j + 3]);
  }
}

// Multiplies what the ring brings with the operands exchanged: 64 tokens of a warpgroup are M,
// their codes in registers, and each panel is N. A thread then has two tokens and two scales, and
// shared memory, which bounds the product, serves each operand once. One warpgroup.
template <class Shape>
__device__ __forceinline__ void consume_fp8_prefill_stages(const Fp8BulkParams& params,
                                                           const uint8_t* memory,
                                                           uint32_t ring,
                                                           uint32_t full,
                                                           uint32_t empty) {
  constexpr int kSlice = 128, kTiles = Shape::kTiles, kHeld = 32 / kTiles;
  static_assert(kTiles == 4);
  constexpr uint64_t kStep = 2 * 1024 / 16, kPanelStep = kBulkTileBytes / 16;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int token = warp * 16 + lane / 4;  // of the slice; the other is 8 on
  const Fp8BulkWork<Shape, kSlice> work(params);
  const uint64_t weights = core_matrix_descriptor(ring, 1024, 128);
  const uint32_t empty_of_rank = shared_address_of_rank(empty, lane % kBulkCluster);
  // The weight scales of kHeld tiles along k, those of panel p in lanes kHeld p and on.
  const auto read_weight_scales = [&](const ProductTile& item, int first) {
    const int panel = work.ranges.panel(item.rows, lane / kHeld);
    const int tile = first + lane % kHeld;
    return tile < work.item_tiles
               ? __ldg(params.weight_scales + static_cast<size_t>(panel) * params.tiles +
                       item.split * work.item_tiles + tile)
               : 0.0f;
  };
  const int own_items = work.own_items();
  float next_scales = own_items > 0 ? read_weight_scales(work.item(0), 0) : 0.0f;
  float even[32] = {}, odd[32] = {};  // products of panels by turns
  int slot = 0;
  uint32_t parity = 0;
  for (int index = 0; index < own_items; ++index) {
    const ProductTile item = work.item(index);
    const int num_tokens = work.num_tokens(item);
    float weight_scales = 0;
    float acc[kTiles][32] = {};
    for (int tile = 0; tile < work.item_tiles; ++tile) {
      if (tile % kHeld == 0) {
        weight_scales = next_scales;
        if (tile + kHeld < work.item_tiles) {
          next_scales = read_weight_scales(item, tile + kHeld);
        } else if (index + 1 < own_items) {
          next_scales = read_weight_scales(work.item(index + 1), 0);
        }
      }
      barrier_wait(full + 8 * slot, parity);
      // Tokens beyond the last take whatever lies there; nobody reads their sums.
      const uint8_t* const block = memory + slot * Shape::kStageBytes + Shape::kTokens;
      const uint8_t* const codes = block + token * 16 + lane % 4 * 4;
      const auto* const scales = reinterpret_cast<const float*>(block + num_tokens * 128) + token;
      uint32_t a[4][4];
#pragma unroll
      for (int step = 0; step < 4; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          a[step][i] = *reinterpret_cast<const uint32_t*>(
              codes + (2 * step + i / 2) * num_tokens * 16 + i % 2 * 128);
        }
      }
      const float first = scales[0], second = scales[8];
      const uint64_t b = weights + static_cast<uint32_t>(slot * (Shape::kStageBytes / 16));
      const auto multiply = [&](float(&d)[32], int p) {
        wgmma_fence();
        wgmma_e4m3_first(d, a[0], b + p * kPanelStep);
        wgmma_e4m3_add(d, a[1], b + p * kPanelStep + kStep);
        wgmma_e4m3_add(d, a[2], b + p * kPanelStep + 2 * kStep);
        wgmma_e4m3_add(d, a[3], b + p * kPanelStep + 3 * kStep);
        wgmma_commit();
      };
      const auto add = [&](float(&d)[32], int p) {
        const float scale = __shfl_sync(~0U, weight_scales, p * kHeld + tile % kHeld);
        promote_rows(acc[p], d, first * scale, second * scale);
      };
      multiply(even, 0);
      multiply(odd, 1);
      wgmma_wait<1>();
      hold(even);
      add(even, 0);
      multiply(even, 2);
      wgmma_wait<1>();
      hold(odd);
      add(odd, 1);
      multiply(odd, 3);
      wgmma_wait<1>();
      hold(even);
      add(even, 2);
      wgmma_wait<0>();
      hold(odd);
      warp_arrive_at_ranks<kBulkCluster>(empty_of_rank + 8 * slot, lane);
      add(odd, 3);
      if (++slot == params.ring_stages) {
        slot = 0;
        parity ^= 1;
      }
    }
    if (!work.has_tokens(item)) continue;
    const int64_t n = static_cast<int64_t>(params.panels) * 64;
    const int row = work.slice(item) * kSlice + token;
    float* const y = params.y + (static_cast<int64_t>(item.split) * params.m + row) * n;
#pragma unroll
    for (int p = 0; p < kTiles; ++p) {
      if (!work.ranges.has(item.rows, p)) continue;
      float* const y_panel = y + work.ranges.panel(item.rows, p) * 64 + lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (row < params.m) {
          *reinterpret_cast<float2*>(y_panel + 8 * j) = {acc[p][4 * j], acc[p][4 * j + 1]};
        }
        if (row + 8 < params.m) {
          *reinterpret_cast<float2*>(y_panel + 8 * n + 8 * j) = {acc[p][4 * j + 2],
                                                                 acc[p][4 * j + 3]};
        }
      }
    }
  }
}

// kBlocks: that fit on a multiprocessor.
template <int kColumns, bool kIsPrefill, int kBlocks>
__global__ void __launch_bounds__(bulk_threads(kBlocks), kBlocks)
    fp8_bulk_matmul(const Fp8BulkParams params) {
  using Shape = Fp8BulkShape<kColumns, kIsPrefill>;
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ __align__(8) uint64_t barriers[kBulkBarriers];
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  uint32_t full = shared_address(barriers), empty = full + 8 * kBulkMaxStages;
  uint32_t ring = shared_address(memory);
  keep_in_register(full);
  keep_in_register(empty);
  keep_in_register(ring);
  if (threadIdx.x == 0) {
    for (int i = 0; i < params.ring_stages; ++i) {
      barrier_init(full + 8 * i, 1);
      barrier_init(empty + 8 * i, kBulkCluster * kBulkConsumers / 32 * kWarpArrivals);
    }
    fence_barrier_init();
  }
  launch_dependents();
  cluster_arrive();
  cluster_wait();

  if (warp >= kBulkConsumers / 32) {
    if constexpr (kBlocks == 1) give_registers_until<kIsPrefill ? 40 : 56>();
    if (warp == kBulkConsumers / 32 && lane < Fp8BulkSource<Shape, kColumns>::kLanes) {
      produce_fp8_bulk_stages<Shape, kColumns>(params, ring, full, empty);
    }
  } else {
    if constexpr (kBlocks == 1) take_registers_until<kIsPrefill ? 232 : 224>();
    if constexpr (kIsPrefill) {
      consume_fp8_prefill_stages<Shape>(params, memory, ring, full, empty);
    } else {
      consume_fp8_bulk_stages<Shape, kColumns>(params, memory, ring, full, empty);
    }
  }
  // The other block still writes to this one's memory and barriers.
  __syncwarp();
  cluster_arrive();
  cluster_wait();
}

}  // namespace nibble::kernels::cuda
