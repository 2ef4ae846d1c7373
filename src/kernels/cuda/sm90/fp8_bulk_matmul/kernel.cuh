// The dense FP8 product of sm_90a for many tokens, from 17 to a prefill chunk, over the weights of
// the product for few (kernels/fp8_panel64.h). Design: spec "kernels" 7.2 and 7.3.
//
// Weights are the M operand, tokens the N operand. A cluster of two blocks owns a tile of 256 rows
// by kColumns tokens, each block 128 rows, each of its two warpgroups one panel of 64. Stages of
// 128 k flow through a ring: two tiles of weights of this block, and the tokens' codes and scales,
// of which each block of the cluster fetches half for both. Both operands are multiplied straight
// from shared memory in core-matrix order. Every 128 k are promoted to f32 with the scales of panel
// and token; while one warpgroup does that, or stores its results, the other one multiplies.
//
// Weights depend on nothing, so the ring fills with them before the predecessors end. The order of
// every sum depends on the shape only.
//
// Bytes: n k + m k + 4 splits m n. FLOPs: 2 m n k.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/wgmma_bf16.cuh"
#include "kernels/cuda/common/wgmma_shared.cuh"

namespace nibble::kernels::cuda {

inline constexpr int kBulkTileBytes = 64 * 128;  // of weights: a panel by 128 k
inline constexpr int kBulkWarpgroups = 2;
inline constexpr int kBulkConsumers = kBulkWarpgroups * 128;
// Threads of a block, where `blocks` fit on a multiprocessor. The producer is a warp; where one
// block fits, it is the first of a warpgroup, which gives its registers to the consumers.
__host__ __device__ constexpr int bulk_threads(int blocks) {
  return kBulkConsumers + (blocks == 1 ? 128 : 32);
}
inline constexpr int kBulkCluster = 2;
inline constexpr int kBulkPanels = kBulkCluster * kBulkWarpgroups;  // of a cluster's tile
inline constexpr int kBulkMaxStages = 16;

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

// A stage: tiles of weights, then the tokens' block. Where there are fewer tokens than columns, the
// core matrices of a chunk overlap with what follows.
template <int kColumns>
struct Fp8BulkStage {
  static constexpr int kTokens = kBulkWarpgroups * kBulkTileBytes;  // offset
  static constexpr int kBytes = kTokens + (kColumns * 132 + 127) / 128 * 128;
};

// A tile of results and a part of k. Clusters take items in turns; within a band of tokens items of
// one range of rows follow each other, so that what runs at a time shares rows and tokens.
struct Fp8BulkItem {
  int rows;    // which range of 256 rows
  int tokens;  // which range of kColumns tokens
  int split;
};
__device__ __forceinline__ Fp8BulkItem fp8_bulk_item(int item, int row_tiles, int token_tiles) {
  constexpr int kBand = 16;
  const int per_split = row_tiles * token_tiles;
  const int split = item / per_split;
  const int in_split = item - split * per_split;
  const int band = in_split / (row_tiles * kBand);
  const int in_band = in_split - band * row_tiles * kBand;
  const int width = min(kBand, token_tiles - band * kBand);
  const int rows = in_band / width;
  return {rows, band * kBand + in_band - rows * width, split};
}

// The tokens of an item and the bytes of their block, codes and scales of 128 k.
template <int kColumns>
__device__ __forceinline__ int fp8_bulk_tokens(const Fp8BulkParams& params,
                                               const Fp8BulkItem& item) {
  return min(kColumns, params.m - item.tokens * kColumns);
}
__device__ __forceinline__ int fp8_bulk_block_bytes(int tokens) {
  return tokens * 128 + (tokens * 4 + 15) / 16 * 16;
}

// The items of a cluster.
template <int kColumns>
struct Fp8BulkWork {
  int row_tiles, token_tiles, item_tiles, num_items, first, step;

  __device__ __forceinline__ explicit Fp8BulkWork(const Fp8BulkParams& params)
      : row_tiles((params.panels + kBulkPanels - 1) / kBulkPanels),
        token_tiles((params.m + kColumns - 1) / kColumns),
        item_tiles(params.tiles / params.splits),
        num_items(row_tiles * token_tiles * params.splits),
        first(static_cast<int>(blockIdx.x) / kBulkCluster),
        step(static_cast<int>(gridDim.x) / kBulkCluster) {}

  __device__ __forceinline__ int own_items() const {
    return first < num_items ? (num_items - first + step - 1) / step : 0;
  }
  __device__ __forceinline__ Fp8BulkItem item(int index) const {
    return fp8_bulk_item(first + index * step, row_tiles, token_tiles);
  }
};

// What one lane of the producer copies for each stage: a tile of weights, or this block's half of
// the tokens' block.
template <int kColumns>
class Fp8BulkSource {
 public:
  static constexpr int kLanes = kBulkWarpgroups + 1;

  __device__ __forceinline__ Fp8BulkSource(const Fp8BulkParams& params, int lane)
      : params_(params), work_(params), lane_(lane) {
    if (work_.own_items() > 0) start_item();
  }

  __device__ const __forceinline__ uint8_t* source() const { return source_; }
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
    const Fp8BulkItem item = work_.item(index_);
    const int rank = static_cast<int>(cluster_rank());
    const int first_tile = item.split * work_.item_tiles;
    const int first_panel = item.rows * kBulkPanels;
    const int block_bytes = fp8_bulk_block_bytes(fp8_bulk_tokens<kColumns>(params_, item));
    tile_ = 0;
    stage_bytes_ = kBulkWarpgroups * kBulkTileBytes + block_bytes;
    if (lane_ < kBulkWarpgroups) {
      // Rows beyond the last panel are those of the last one; their sums are not stored.
      const int panel = min(first_panel + rank * kBulkWarpgroups + lane_, params_.panels - 1);
      source_ = params_.weights +
                (static_cast<size_t>(panel) * params_.tiles + first_tile) * kBulkTileBytes;
      step_ = num_bytes_ = kBulkTileBytes;
      offset_ = lane_ * kBulkTileBytes;
      return;
    }
    const int group = first_panel / params_.panels_per_group;
    const int groups = params_.panels / params_.panels_per_group;
    const int first_half = block_bytes / 32 * 16;
    // Slices of kColumns tokens, each of all groups' blocks; one slice where kColumns is less.
    source_ =
        params_.x +
        static_cast<size_t>(item.tokens) * groups * params_.tiles * fp8_bulk_block_bytes(kColumns) +
        static_cast<size_t>(group * params_.tiles + first_tile) * block_bytes +
        (rank == 0 ? 0 : first_half);
    step_ = block_bytes;
    num_bytes_ = rank == 0 ? first_half : block_bytes - first_half;
    offset_ = Fp8BulkStage<kColumns>::kTokens + (rank == 0 ? 0 : first_half);
  }

  const Fp8BulkParams& params_;
  const Fp8BulkWork<kColumns> work_;
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
template <int kColumns>
__device__ __forceinline__ void produce_fp8_bulk_stages(const Fp8BulkParams& params,
                                                        uint32_t ring,
                                                        uint32_t full,
                                                        uint32_t empty) {
  constexpr int kStageBytes = Fp8BulkStage<kColumns>::kBytes;
  constexpr uint16_t kAll = (1U << kBulkCluster) - 1;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const Fp8BulkWork<kColumns> work(params);
  const bool is_weight = lane < kBulkWarpgroups;
  const uint64_t policy = work.token_tiles > 1 ? evict_normal_policy()
                          : is_weight          ? evict_first_policy()
                                               : evict_last_policy();
  const int num_stages = work.own_items() * work.item_tiles;
  const int ahead = min(num_stages, params.ring_stages);
  const auto copy_weights = [&](int slot, const Fp8BulkSource<kColumns>& source) {
    if (lane == 0) barrier_arrive_expect(full + 8 * slot, source.stage_bytes());
    if (!is_weight) return;
    bulk_copy_to_shared(ring + slot * kStageBytes + source.offset(),
                        source.source(),
                        kBulkTileBytes,
                        full + 8 * slot,
                        policy);
  };
  const auto copy_tokens = [&](int slot, const Fp8BulkSource<kColumns>& source) {
    if (is_weight) return;
    bulk_copy_to_blocks(ring + slot * kStageBytes + source.offset(),
                        source.source(),
                        source.num_bytes(),
                        full + 8 * slot,
                        kAll,
                        policy);
  };

  Fp8BulkSource<kColumns> source(params, lane);
  for (int slot = 0; slot < ahead; ++slot, source.next()) copy_weights(slot, source);
  wait_for_predecessors();
  Fp8BulkSource<kColumns> first(params, lane);
  for (int slot = 0; slot < ahead; ++slot, first.next()) copy_tokens(slot, first);
  int slot = 0;
  uint32_t parity = 0;
  for (int stage = ahead; stage < num_stages; ++stage, source.next()) {
    barrier_wait(empty + 8 * slot, parity);
    copy_weights(slot, source);
    copy_tokens(slot, source);
    if (++slot == params.ring_stages) {
      slot = 0;
      parity ^= 1;
    }
  }
}

// Writes the f32 sums of a panel.   row: this thread's first, the other is 8 on
template <int kColumns>
__device__ __forceinline__ void store_fp8_bulk_sums(const Fp8BulkParams& params,
                                                    const float (&sum)[kColumns / 2],
                                                    const Fp8BulkItem& item,
                                                    int row) {
  const int t = static_cast<int>(threadIdx.x % 4);
  const int64_t n = static_cast<int64_t>(params.panels) * 64;
  const int token = item.tokens * kColumns + 2 * t;
  float* y = params.y + (static_cast<int64_t>(item.split) * params.m + token) * n + row;
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j, y += 8 * n) {
    if (token + 8 * j < params.m) {
      y[0] = sum[4 * j];
      y[8] = sum[4 * j + 2];
    }
    if (token + 8 * j + 1 < params.m) {
      y[n] = sum[4 * j + 1];
      y[n + 8] = sum[4 * j + 3];
    }
  }
}

// Adds 8 columns, those from 8 j on, to `acc`.   scale: of this thread's two tokens of them
template <int kCount>
__device__ __forceinline__ void promote(
    float (&acc)[kCount], const float (&d)[kCount], int j, float2 scale, float weight_scale) {
  const float first = scale.x * weight_scale, second = scale.y * weight_scale;
  acc[4 * j + 0] = fmaf(first, d[4 * j + 0], acc[4 * j + 0]);
  acc[4 * j + 1] = fmaf(second, d[4 * j + 1], acc[4 * j + 1]);
  acc[4 * j + 2] = fmaf(first, d[4 * j + 2], acc[4 * j + 2]);
  acc[4 * j + 3] = fmaf(second, d[4 * j + 3], acc[4 * j + 3]);
}

// kBlocks: that fit on a multiprocessor.
template <int kColumns, int kBlocks>
__global__ void __launch_bounds__(bulk_threads(kBlocks), kBlocks)
    fp8_bulk_matmul(const Fp8BulkParams params) {
  using Stage = Fp8BulkStage<kColumns>;
  constexpr uint64_t kWeightStep = 2 * 1024 / 16;  // descriptor distance of 32 k
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ __align__(8) uint64_t barriers[2 * kBulkMaxStages];
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  uint32_t full = shared_address(barriers), empty = full + 8 * kBulkMaxStages;
  uint32_t ring = shared_address(memory);
  keep_in_register(full);
  keep_in_register(empty);
  keep_in_register(ring);
  if (threadIdx.x == 0) {
    for (int i = 0; i < params.ring_stages; ++i) {
      barrier_init(full + 8 * i, 1);
      barrier_init(empty + 8 * i, kBulkCluster * kBulkConsumers / 32);
    }
    fence_barrier_init();
  }
  launch_dependents();
  cluster_arrive();
  cluster_wait();

  if (warp >= kBulkConsumers / 32) {
    if constexpr (kBlocks == 1) give_registers_until<40>();
    if (warp == kBulkConsumers / 32 && lane < Fp8BulkSource<kColumns>::kLanes) {
      produce_fp8_bulk_stages<kColumns>(params, ring, full, empty);
    }
  } else {
    if constexpr (kBlocks == 1) take_registers_until<232>();
    const Fp8BulkWork<kColumns> work(params);
    const int group = warp / 4;
    const int own_panel = static_cast<int>(cluster_rank()) * kBulkWarpgroups + group;
    const uint64_t weights = core_matrix_descriptor(ring + group * kBulkTileBytes, 1024, 128);
    const uint32_t empty_of_rank = shared_address_of_rank(empty, lane % kBulkCluster);
    // The weight scales of 32 tiles of an item, one per lane.
    const auto read_weight_scales = [&](const Fp8BulkItem& item, int first) {
      const int panel = min(item.rows * kBulkPanels + own_panel, params.panels - 1);
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
      const Fp8BulkItem item = work.item(index);
      float weight_scales = next_scales;
      if (index + 1 < own_items) next_scales = read_weight_scales(work.item(index + 1), 0);
      const int num_tokens = fp8_bulk_tokens<kColumns>(params, item);
      const uint64_t tokens = core_matrix_descriptor(ring + Stage::kTokens, num_tokens * 16, 128);
      const auto token_step = static_cast<uint32_t>(2 * num_tokens);
      float acc[kColumns / 2] = {};
      for (int tile = 0; tile < work.item_tiles; ++tile) {
        if (tile % 32 == 0 && tile > 0) weight_scales = read_weight_scales(item, tile);
        const float weight_scale = __shfl_sync(~0U, weight_scales, tile % 32);
        barrier_wait(full + 8 * slot, parity);
        const auto stage = static_cast<uint32_t>(slot * (Stage::kBytes / 16));
        const uint64_t a = weights + stage, b = tokens + stage;
        float d[kColumns / 2];
        wgmma_fence();
        wgmma_e4m3_first(d, a, b);
        wgmma_e4m3_add(d, a + kWeightStep, b + token_step);
        wgmma_e4m3_add(d, a + 2 * kWeightStep, b + 2 * token_step);
        wgmma_e4m3_add(d, a + 3 * kWeightStep, b + 3 * token_step);
        wgmma_commit();
        // Columns beyond the tokens take whatever lies there; nobody reads their sums.
        const auto* const scales =
            reinterpret_cast<const float2*>(memory + slot * Stage::kBytes + Stage::kTokens +
                                            num_tokens * 128) +
            lane % 4;
        const auto release = [&] {
          __syncwarp();
          if (lane < kBulkCluster) barrier_arrive_at_rank(empty_of_rank + 8 * slot);
        };
        if constexpr (kBlocks == 1) {
          float2 scale[kColumns / 8];
#pragma unroll
          for (int j = 0; j < kColumns / 8; ++j) scale[j] = scales[4 * j];
          wgmma_wait<0>();
          hold(d);
          release();
#pragma unroll
          for (int j = 0; j < kColumns / 8; ++j) promote(acc, d, j, scale[j], weight_scale);
        } else {
          wgmma_wait<0>();
          hold(d);
#pragma unroll
          for (int j = 0; j < kColumns / 8; ++j) promote(acc, d, j, scales[4 * j], weight_scale);
          release();
        }
        if (++slot == params.ring_stages) {
          slot = 0;
          parity ^= 1;
        }
      }
      const int panel = item.rows * kBulkPanels + own_panel;
      if (panel < params.panels) {
        store_fp8_bulk_sums<kColumns>(params, acc, item, panel * 64 + warp % 4 * 16 + lane / 4);
      }
    }
  }
  // The other block still writes to this one's memory and barriers.
  __syncwarp();
  cluster_arrive();
  cluster_wait();
}

}  // namespace nibble::kernels::cuda
