// The dense product of sm_90a with BF16 weights for any number of tokens: the head, compressor
// projections, the router. Layout of weights: kernels/bf16_panel64.h; of tokens:
// ActivationForms::bf16_blocks and bf16_terms.
//
// Weights are the M operand, tokens the N operand, both straight from shared memory. A block owns a
// tile of 128 rows by kColumns tokens; each of two warpgroups multiplies one panel of 64 rows.
// Stages of 64 k flow through a ring by bulk copies of one warp: two tiles of weights and the
// tokens' block. From 17 tokens on the two blocks of a cluster have different rows and the same
// tokens, of which each fetches one half for both. Activations in f32 come as kTerms = 3 BF16
// numbers whose sum they are, each multiplied with the same weights: products are exact, sums in
// f32.
//
// Weights depend on nothing, so the ring fills with them before the predecessors end. It is as long
// as a multiprocessor's memory, so that two blocks never share one. The order of every sum depends
// on the shape only. Where there are fewer tokens than columns, the core matrices of a chunk
// overlap with what follows; nobody reads those sums.
//
// Bytes: 2 n k + 2 kTerms m k + 4 splits m n. FLOPs: 2 m n k, kTerms times.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/panel_stages.cuh"
#include "kernels/cuda/common/product_tile.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/wgmma_products.cuh"

namespace nibble::kernels::cuda {

inline constexpr int kBf16TileBytes = 64 * 128;  // of weights: a panel by 64 k
inline constexpr int kBf16TileK = 64;
inline constexpr int kBf16Warpgroups = 2;
inline constexpr int kBf16Consumers = kBf16Warpgroups * 128;
inline constexpr int kBf16Threads = kBf16Consumers + 32;
inline constexpr int kBf16MaxStages = 16;
inline constexpr int kBf16Barriers = 2 * kBf16MaxStages;
inline constexpr int kBf16SliceTokens = 128;  // of the tokens' blocks

// DeviceMatMulArgs as the kernel takes them.
struct Bf16MatMulParams {
  const uint8_t* x;
  int m;
  const uint8_t* weights;
  int panels;
  int panels_per_group;
  int tiles;  // of 64 k in a row
  int splits;
  float* y;
  int ring_stages;
};

template <int kColumns, int kTerms>
struct Bf16Shape {
  static constexpr int kCluster = kColumns <= 16 ? 1 : 2;
  // A stage: tiles of weights, then the tokens' block, [kTerms][8][tokens][16 bytes].
  static constexpr int kTokens = kBf16Warpgroups * kBf16TileBytes;  // offset
  static constexpr int kStageBytes = kTokens + kTerms * 8 * kColumns * 16;
};

// The tiles of a cluster, taken in turns by all clusters.
template <int kColumns, int kCluster>
struct Bf16Work {
  PanelRanges ranges;
  int row_ranges, token_ranges, item_tiles, num_items, first, step, rank, m;

  __device__ __forceinline__ explicit Bf16Work(const Bf16MatMulParams& params)
      : ranges(params.panels_per_group, kBf16Warpgroups * kCluster),
        row_ranges(params.panels / params.panels_per_group * ranges.per_group),
        token_ranges((params.m + kColumns - 1) / kColumns),
        item_tiles(params.tiles / params.splits),
        num_items(row_ranges * token_ranges * params.splits),
        first(static_cast<int>(blockIdx.x) / kCluster),
        step(static_cast<int>(gridDim.x) / kCluster),
        rank(static_cast<int>(blockIdx.x) % kCluster),
        m(params.m) {}

  __device__ __forceinline__ int own_items() const {
    return first < num_items ? (num_items - first + step - 1) / step : 0;
  }
  __device__ __forceinline__ ProductTile item(int index) const {
    return product_tile(first + index * step, row_ranges, token_ranges);
  }
  // Which panel of a range this block's `tile`th is.
  __device__ __forceinline__ int panel_in_range(int tile) const {
    return rank * kBf16Warpgroups + tile;
  }
  // Which four panels a range lies in, counted over groups.
  __device__ __forceinline__ int four_panels(const ProductTile& item) const {
    return ranges.group(item.rows) + item.rows % ranges.per_group * ranges.width / 4;
  }
  __device__ __forceinline__ int num_tokens(const ProductTile& item) const {
    return min(kColumns, m - item.tokens * kColumns);
  }
};

// The tiles along k of an item, from one on that differs between ranges of rows: blocks that work
// at the same time read other tokens' values, which keeps them from queueing at the same parts of
// the cache.
class Bf16TileOrder {
 public:
  Bf16TileOrder() = default;
  //   row_range: of four panels, also where a block takes two
  __device__ __forceinline__ Bf16TileOrder(int split, int row_range, int item_tiles)
      : begin_(split * item_tiles),
        end_(begin_ + item_tiles),
        tile_(begin_ + row_range * 7 % item_tiles) {}

  __device__ __forceinline__ int tile() const { return tile_; }
  __device__ __forceinline__ void next() {
    if (++tile_ == end_) tile_ = begin_;
  }

 private:
  int begin_ = 0, end_ = 0, tile_ = 0;
};

// What one lane of the producer copies for each stage: a tile of weights, or the tokens' block or
// this block's half of it.
template <int kColumns, int kTerms>
class Bf16Source {
 public:
  using Shape = Bf16Shape<kColumns, kTerms>;
  static constexpr int kLanes = kBf16Warpgroups + 1;

  __device__ __forceinline__ Bf16Source(const Bf16MatMulParams& params, int lane)
      : params_(params), work_(params), lane_(lane) {
    if (work_.own_items() > 0) start_item();
  }

  const __device__ __forceinline__ uint8_t* source() const {
    return source_ + static_cast<int64_t>(order_.tile()) * step_;
  }
  __device__ __forceinline__ int num_bytes() const { return num_bytes_; }
  // Where it goes in a stage.
  __device__ __forceinline__ int offset() const { return offset_; }
  // Of a whole stage.
  __device__ __forceinline__ int stage_bytes() const { return stage_bytes_; }
  __device__ __forceinline__ void next() {
    order_.next();
    if (++tile_ < work_.item_tiles) return;
    if (++index_ < work_.own_items()) start_item();
  }

 private:
  __device__ __forceinline__ void start_item() {
    const ProductTile item = work_.item(index_);
    const int block_bytes = work_.num_tokens(item) * kTerms * 128;
    tile_ = 0;
    order_ = Bf16TileOrder(item.split, work_.four_panels(item), work_.item_tiles);
    stage_bytes_ = kBf16Warpgroups * kBf16TileBytes + block_bytes;
    if (lane_ < kBf16Warpgroups) {
      const int panel = work_.ranges.panel(item.rows, work_.panel_in_range(lane_));
      source_ = params_.weights + static_cast<int64_t>(panel) * params_.tiles * kBf16TileBytes;
      step_ = num_bytes_ = kBf16TileBytes;
      offset_ = lane_ * kBf16TileBytes;
      return;
    }
    // One slice where there are fewer columns than a slice has tokens.
    const int64_t row_tiles =
        static_cast<int64_t>(params_.panels / params_.panels_per_group) * params_.tiles;
    const int64_t group_tile = static_cast<int64_t>(work_.ranges.group(item.rows)) * params_.tiles;
    const int own_bytes = block_bytes / Shape::kCluster;
    source_ = params_.x + item.tokens * row_tiles * kBf16SliceTokens * kTerms * 128 +
              group_tile * block_bytes + work_.rank * own_bytes;
    step_ = block_bytes;
    num_bytes_ = own_bytes;
    offset_ = Shape::kTokens + work_.rank * own_bytes;
  }

  const Bf16MatMulParams& params_;
  const Bf16Work<kColumns, Shape::kCluster> work_;
  const int lane_;
  int index_ = 0;
  int tile_ = 0;
  Bf16TileOrder order_;
  const uint8_t* source_ = nullptr;
  int step_ = 0;
  int num_bytes_ = 0;
  int offset_ = 0;
  int stage_bytes_ = 0;
};

// Feeds the ring. Bf16Source::kLanes lanes of a warp.
template <int kColumns, int kTerms>
__device__ __forceinline__ void produce_bf16_stages(const Bf16MatMulParams& params,
                                                    uint32_t ring,
                                                    uint32_t full,
                                                    uint32_t empty) {
  using Shape = Bf16Shape<kColumns, kTerms>;
  using Source = Bf16Source<kColumns, kTerms>;
  constexpr uint16_t kAll = (1U << Shape::kCluster) - 1;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const Bf16Work<kColumns, Shape::kCluster> work(params);
  const bool is_weight = lane < kBf16Warpgroups;
  const uint64_t policy = work.token_ranges > 1 ? evict_normal_policy()
                          : is_weight           ? evict_first_policy()
                                                : evict_last_policy();
  const int num_stages = work.own_items() * work.item_tiles;
  const auto copy = [&](int slot, const Source& source) {
    const uint32_t target = ring + slot * Shape::kStageBytes + source.offset();
    const uint32_t barrier = full + 8 * slot;
    if (Shape::kCluster > 1 && !is_weight) {
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

// Multiplies what the ring brings. One warpgroup.
template <int kColumns, int kTerms>
__device__ __forceinline__ void consume_bf16_stages(const Bf16MatMulParams& params,
                                                    uint32_t ring,
                                                    uint32_t full,
                                                    uint32_t empty) {
  using Shape = Bf16Shape<kColumns, kTerms>;
  constexpr uint64_t kWeightStep = 2 * 1024 / 16;  // descriptor distance of 16 k
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int own_tile = warp / 4;  // in a stage
  const Bf16Work<kColumns, Shape::kCluster> work(params);
  const int in_range = work.panel_in_range(own_tile);
  const uint64_t weights = core_matrix_descriptor(ring + own_tile * kBf16TileBytes, 1024, 128);
  const uint32_t empty_of_rank = shared_address_of_rank(empty, lane % Shape::kCluster);
  const int own_items = work.own_items();
  int slot = 0;
  uint32_t parity = 0;
  for (int index = 0; index < own_items; ++index) {
    const ProductTile item = work.item(index);
    const int num_tokens = work.num_tokens(item);
    const uint64_t tokens = core_matrix_descriptor(ring + Shape::kTokens, num_tokens * 16, 128);
    const auto token_step = static_cast<uint32_t>(2 * num_tokens);  // of 16 k; four of them: a term
    float acc[kColumns / 2] = {};
    int previous = -1;
    for (int tile = 0; tile < work.item_tiles; ++tile) {
      barrier_wait(full + 8 * slot, parity);
      const auto stage = static_cast<uint32_t>(slot * (Shape::kStageBytes / 16));
      const uint64_t a = weights + stage, b = tokens + stage;
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4 * kTerms; ++step) {
        wgmma_bf16_add(acc, a + step % 4 * kWeightStep, b + step * token_step);
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (previous >= 0) warp_arrive_at_ranks<Shape::kCluster>(empty_of_rank + 8 * previous, lane);
      previous = slot;
      if (++slot == params.ring_stages) {
        slot = 0;
        parity ^= 1;
      }
    }
    wgmma_wait<0>();
    hold(acc);
    warp_arrive_at_ranks<Shape::kCluster>(empty_of_rank + 8 * previous, lane);
    if (work.ranges.has(item.rows, in_range)) {
      const int panel = work.ranges.panel(item.rows, in_range);
      store_panel_sums<kColumns>(params, acc, item, panel * 64 + warp % 4 * 16 + lane / 4);
    }
  }
}

// Block: 256 consumers and one producer warp.
template <int kColumns, int kTerms>
__global__ void __launch_bounds__(kBf16Threads, 1) bf16_matmul(const Bf16MatMulParams params) {
  using Shape = Bf16Shape<kColumns, kTerms>;
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ __align__(8) uint64_t barriers[kBf16Barriers];
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  uint32_t full = shared_address(barriers), empty = full + 8 * kBf16MaxStages;
  uint32_t ring = shared_address(memory);
  keep_in_register(full);
  keep_in_register(empty);
  keep_in_register(ring);
  if (threadIdx.x == 0) {
    for (int i = 0; i < params.ring_stages; ++i) {
      barrier_init(full + 8 * i, 1);
      barrier_init(empty + 8 * i, Shape::kCluster * kBf16Consumers / 32 * kWarpArrivals);
    }
    fence_barrier_init();
  }
  launch_dependents();
  cluster_arrive();
  cluster_wait();
  if (warp < kBf16Consumers / 32) {
    consume_bf16_stages<kColumns, kTerms>(params, ring, full, empty);
  } else if (lane < Bf16Source<kColumns, kTerms>::kLanes) {
    produce_bf16_stages<kColumns, kTerms>(params, ring, full, empty);
  }
  // The other block still writes to this one's memory and barriers.
  __syncwarp();
  cluster_arrive();
  cluster_wait();
}

}  // namespace nibble::kernels::cuda
