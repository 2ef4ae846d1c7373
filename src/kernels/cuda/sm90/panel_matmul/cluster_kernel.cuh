// FP8 products of sm_90a for up to 16 tokens that quantise their results for the next product.
//
// A cluster owns outputs in units of 128, two panels of weights; its blocks share k. Stages of a
// tile of either panel and the tokens' block of activations flow through a ring, a warpgroup
// multiplies those of one panel, M, by the tokens, N. Sums of a unit then meet in shared memory:
// block t % size adds all 128 outputs of token t, rank by rank, and writes them as an FP8 block's
// codes and scale. A block alone is no cluster for the hardware, which then refuses the
// instructions of clusters.
//
// Weights depend on nothing: the ring fills with them before the predecessors end. What is under
// way delays the predecessors' own weights and activations, and the ring is too short for all that
// memory could give meanwhile. So a launch lets the next one begin when it has asked for nearly all
// of its weights, which then comes to a few stages at a time.
//
// The order of every sum depends on the shape only: along k within a block, then by rank. Scales
// are applied in f32 to sums of 128 k. Columns overlap where there are fewer than 8 tokens, as in
// kernel.cuh. Two blocks fit on a multiprocessor.
//
// Bytes: n k, and k m per unit from the cache. FLOPs: 2 m n k.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/fp8.cuh"
#include "kernels/cuda/sm90/panel_matmul/kernel.cuh"

namespace nibble::kernels::cuda {

inline constexpr int kUnitPanels = 2;
inline constexpr int kUnitRows = 128;

// A weight and how the clusters of a launch share it.
struct ClusterWeights {
  const uint8_t* codes;
  int units;
  int tiles;  // along k, of all blocks
  int clusters;
};

// DeviceMatMulArgs as the kernel takes them.
struct ClusterMatMulParams {
  const uint8_t* x;
  int m;
  int block_bytes;  // of x: fp8_block_bytes(m)
  ClusterWeights weights;
  const float* weight_scales;  // [panels, tiles]
  int units_per_group;
  uint8_t* y_fp8;  // blocks
  int ring_stages;
};

// Sums of a unit in the block that adds them: [ranks, tokens, 128] f32, block t % kBlocks has token
// t. A block alone writes them without transposing; more than 128 apart, tokens are in other banks.
template <int kColumns, int kBlocks>
struct ClusterSums {
  static constexpr int kTokens = kColumns / kBlocks;
  static constexpr int kStride = kUnitRows + (kBlocks == 1 ? 4 : 0);
  static constexpr int kBytes = kColumns * kStride * 4;
};

// Stages that are under way at most before the predecessors end, and stages that a block has still
// to ask for when it lets the next launch begin. With one fewer of either, chains take up to a
// third longer; with one more, a tenth: docs/performance.md.
inline constexpr int kStagesAhead = 2;
inline constexpr int kStagesBehind = 3;

// A stage: a tile of each panel, then a block of activations, as PanelMatMulMemory pads it.
inline constexpr int kStageWeightBytes = kUnitPanels * kPanelTileBytes;
template <int kColumns>
__host__ __device__ constexpr int cluster_stage_bytes(int block_bytes, int m) {
  return PanelMatMulMemory<kColumns>::stage_bytes(block_bytes, m) + kStageWeightBytes -
         kPanelTileBytes;
}

// What a block does: its part of k of some units.
struct ClusterWork {
  int rank;
  int own_tiles;
  int first_tile;
  int first_unit;
  int end_unit;

  __device__ __forceinline__ ClusterWork(const ClusterWeights& weights, int blocks) {
    const int cluster = static_cast<int>(blockIdx.x) / blocks;
    rank = static_cast<int>(blockIdx.x) % blocks;
    own_tiles = weights.tiles / blocks;
    first_tile = rank * own_tiles;
    first_unit = weights.units * cluster / weights.clusters;
    end_unit = weights.units * (cluster + 1) / weights.clusters;
  }
  // The first of this block's tiles of a panel.
  __device__ __forceinline__ size_t place(const ClusterWeights& weights, int panel) const {
    return static_cast<size_t>(panel) * weights.tiles + first_tile;
  }
};

// Barriers of a block beside those of the ring's weights, by their addresses.
struct ClusterBarriers {
  uint32_t x_full;  // of stage 0
  uint32_t sums;    // all sums of this block's tokens are there
  uint32_t free;    // the cluster's warps have read the sums of a unit
};
inline constexpr int kClusterBarriers = kPanelMaxStages + 2;

// Bytes of the sums that block `rank` of a cluster is sent.
template <int kBlocks>
__device__ __forceinline__ int sum_bytes_of_rank(int m, int rank) {
  return (m - rank + kBlocks - 1) / kBlocks * kBlocks * (kUnitRows * 4);
}

// Starts all barriers; every thread of the block.
template <int kBlocks>
__device__ __forceinline__ void start_cluster_block(const PanelStages& stages,
                                                    const ClusterBarriers& barriers,
                                                    int sum_bytes) {
  constexpr int kArrivals = kPanelConsumers / 32 * kWarpArrivals;
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages.num_stages; ++i) {
      barrier_init(stages.full + 8 * i, 1);
      barrier_init(stages.empty + 8 * i, kArrivals);
      barrier_init(barriers.x_full + 8 * i, 1);
    }
    barrier_init(barriers.sums, 1);
    barrier_init(barriers.free, kArrivals * kBlocks);
    fence_barrier_init();
    barrier_arrive_expect(barriers.sums, sum_bytes);
  }
  __syncwarp();
  if (kBlocks > 1) cluster_arrive_relaxed();
  __syncthreads();
}

// Copies weights to the ring and lets the next launch begin. One thread.
//   x_full: of the first activations
__device__ __forceinline__ void copy_unit_weights(const ClusterMatMulParams& params,
                                                  const ClusterWork& work,
                                                  const PanelStages& stages,
                                                  uint32_t x_full) {
  const uint64_t once = evict_first_policy();
  const ClusterWeights& weights = params.weights;
  const size_t panel_bytes = static_cast<size_t>(weights.tiles) * kPanelTileBytes;
  const int num_stages = (work.end_unit - work.first_unit) * work.own_tiles;
  const int release_at = max(num_stages - kStagesBehind, 0);
  PanelRingPlace place{0, 0};
  int stage = 0;
  for (int unit = work.first_unit; unit < work.end_unit; ++unit) {
    const uint8_t* source =
        weights.codes + work.place(weights, unit * kUnitPanels) * kPanelTileBytes;
    for (int tile = 0; tile < work.own_tiles; ++tile, ++stage, source += kPanelTileBytes) {
      if (stage == release_at) launch_dependents();
      if (stage >= kStagesAhead && stage < stages.num_stages) {
        const uint32_t earlier = stages.full + 8 * (stage - kStagesAhead);
        while (!barrier_has_ended(earlier, 0) && !barrier_has_ended(x_full, 0)) {
        }
      }
      const uint32_t full = stages.take(place);
      const uint32_t to = stages.ring + place.slot * stages.stage_bytes;
      barrier_arrive_expect(full, kStageWeightBytes);
      bulk_copy_to_shared(to, source, kPanelTileBytes, full, once);
      bulk_copy_to_shared(to + kPanelTileBytes, source + panel_bytes, kPanelTileBytes, full, once);
      place.advance(1, stages.num_stages);
    }
  }
}

// Copies the activations beside them. One thread.
__device__ __forceinline__ void copy_unit_activations(const ClusterMatMulParams& params,
                                                      const ClusterWork& work,
                                                      const PanelStages& stages,
                                                      uint32_t x_full) {
  const uint64_t again = evict_last_policy();
  PanelRingPlace place{0, 0};
  for (int unit = work.first_unit; unit < work.end_unit; ++unit) {
    const int group = unit / params.units_per_group;
    const uint8_t* source =
        params.x +
        (static_cast<size_t>(group) * params.weights.tiles + work.first_tile) * params.block_bytes;
    for (int tile = 0; tile < work.own_tiles; ++tile, source += params.block_bytes) {
      stages.take(place);
      const uint32_t full = x_full + 8 * place.slot;
      barrier_arrive_expect(full, params.block_bytes);
      bulk_copy_to_shared(stages.ring + place.slot * stages.stage_bytes + kStageWeightBytes,
                          source,
                          params.block_bytes,
                          full,
                          again);
      place.advance(1, stages.num_stages);
    }
  }
}

// What a consumer multiplies from. Words: side_by_side_word().
struct ClusterOperands {
  PanelStages stages;
  uint32_t x_full;
  uint32_t weights;  // word of this warpgroup's tile of stage 0
  uint32_t x;        // word of stage 0's activations
  uint32_t chunk_step;
  const uint8_t* scales;  // of stage 0's activations
};

// The scales of the columns of a tile that this lane adds up, times the weight's.
template <int kColumns>
__device__ __forceinline__ void load_column_scales(float (&scales)[kColumns / 4],
                                                   const uint8_t* tokens,
                                                   float weight_scale) {
  // Columns beyond the tokens take whatever lies there; nobody reads their sums.
  const float* const first = reinterpret_cast<const float*>(tokens) + threadIdx.x % 4 * 2;
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
    scales[2 * j] = first[8 * j] * weight_scale;
    scales[2 * j + 1] = first[8 * j + 1] * weight_scale;
  }
}

// D = A B over the 128 k of a stage.
template <int kColumns>
__device__ __forceinline__ void multiply_stage(const ClusterOperands& operands,
                                               int slot,
                                               float (&d)[kColumns / 2]) {
  const auto stage = static_cast<uint32_t>(slot * (operands.stages.stage_bytes / 16));
  const uint32_t a = operands.weights + stage, b = operands.x + stage;
  wgmma_fence();
  wgmma_e4m3_first(d, side_by_side_descriptor(a), side_by_side_descriptor(b));
#pragma unroll
  for (uint32_t step = 1; step < 4; ++step) {
    wgmma_e4m3_add(d,
                   side_by_side_descriptor(a + step * static_cast<uint32_t>(kPanelWeightStep)),
                   side_by_side_descriptor(b + step * operands.chunk_step));
  }
  wgmma_commit();
  wgmma_wait<0>();
  hold(d);
}

// Multiplies this warpgroup's panel of a unit, stage by stage, and adds the products with their
// scales. More stages at a time would take longer to free the first of them.
//   weight_scales: lane i has the one of tile i
template <int kColumns>
__device__ __forceinline__ void multiply_unit(const ClusterOperands& operands,
                                              int own_tiles,
                                              float weight_scales,
                                              PanelRingPlace& place,
                                              float (&acc)[kColumns / 2]) {
  const PanelStages& stages = operands.stages;
  for (int tile = 0; tile < own_tiles; ++tile) {
    float d[kColumns / 2], scales[kColumns / 4];
    barrier_wait(operands.x_full + 8 * place.slot, place.parity);
    load_column_scales<kColumns>(scales,
                                 operands.scales + place.slot * stages.stage_bytes,
                                 __shfl_sync(~0U, weight_scales, tile));
    barrier_wait(stages.full + 8 * place.slot, place.parity);
    multiply_stage<kColumns>(operands, place.slot, d);
    warp_arrive(stages.empty + 8 * place.slot, threadIdx.x % 32);
#pragma unroll
    for (int j = 0; j < kColumns / 2; ++j) {
      acc[j] = fmaf(scales[j / 4 * 2 + j % 2], d[j], acc[j]);
    }
    place.advance(1, stages.num_stages);
  }
}

// Turns a matrix of 4 x 4 round whose rows lie in lanes that differ in bits 2 and 3: lane i of four
// then has the i-th values of all, in order.
__device__ __forceinline__ float4 transpose_by_lanes(const float (&v)[4], int lane) {
  const bool is_odd = (lane & 4) != 0, is_upper = (lane & 8) != 0;
  const float a = __shfl_xor_sync(~0U, is_odd ? v[0] : v[1], 4);
  const float b = __shfl_xor_sync(~0U, is_odd ? v[2] : v[3], 4);
  // Two rows of the values whose number has this lane's lowest bit.
  const float low[2] = {is_odd ? a : v[0], is_odd ? v[1] : a};
  const float high[2] = {is_odd ? b : v[2], is_odd ? v[3] : b};
  const float c = __shfl_xor_sync(~0U, is_upper ? low[0] : high[0], 8);
  const float d = __shfl_xor_sync(~0U, is_upper ? low[1] : high[1], 8);
  return is_upper ? float4{c, d, high[0], high[1]} : float4{low[0], low[1], c, d};
}

// Where this lane's sums of a unit's first eight tokens go: to the block that adds them.
struct SumsPlace {
  uint32_t at;
  uint32_t barrier;  // of that block, counts the bytes

  // Of a cluster: four rows of a token. A block alone: two rows, 8 apart, of two tokens.
  template <int kColumns, int kBlocks>
  __device__ __forceinline__ static SumsPlace of(uint32_t sums, uint32_t barrier, int own_rank) {
    using Sums = ClusterSums<kColumns, kBlocks>;
    const int lane = threadIdx.x % 32, first_row = static_cast<int>(threadIdx.x) / 32 * 16;
    if constexpr (kBlocks == 1) {
      return {sums + (lane % 4 * 2 * Sums::kStride + first_row + lane / 4) * 4, barrier};
    } else {
      const int row = first_row + (lane & 8) + lane / 16 * 4;
      const int token = lane % 4 * 2 + lane / 4 % 2;
      const int rank = token % kBlocks, local = token / kBlocks;
      const int place = (own_rank * Sums::kTokens + local) * Sums::kStride + row;
      return {shared_address_of_rank(sums + place * 4, rank),
              shared_address_of_rank(barrier, rank)};
    }
  }
};

// Sends the sums of this warpgroup's panel. To other blocks four rows at a time, because such
// stores cost by their number.
template <int kColumns, int kBlocks>
__device__ __forceinline__ void send_unit_sums(const SumsPlace& place,
                                               int m,
                                               const float (&acc)[kColumns / 2]) {
  using Sums = ClusterSums<kColumns, kBlocks>;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
    const float own[4] = {acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]};
    const uint32_t at = place.at + j * (8 / kBlocks * Sums::kStride * 4);
    if constexpr (kBlocks == 1) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        write_shared_4(at + (i % 2 * Sums::kStride + i / 2 * 8) * 4, __float_as_uint(own[i]));
      }
    } else {
      const float4 rows = transpose_by_lanes(own, lane);
      const int token = 8 * j + lane % 4 * 2 + lane / 4 % 2;
      if (token < m) store_async(at, rows, place.barrier);
    }
  }
}

// Quantises 128 outputs of each of some tokens: lane l has outputs 4 l to 4 l + 3.
//   block: where they go; tokens are `step` apart, those from m on are none
template <int kCount>
__device__ __forceinline__ void write_fp8_outputs(
    uint8_t* block, int m, int token, int step, const float4 (&sums)[kCount]) {
  const int lane = threadIdx.x % 32;
  float largest[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) largest[i] = largest_of(sums[i]);
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      largest[i] = fmaxf(largest[i], __shfl_xor_sync(~0U, largest[i], distance));
    }
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i, token += step) {
    const uint32_t exponent = e4m3_scale_exponent(largest[i]);
    const uint32_t codes = e4m3_codes(sums[i], exponent);
    if (token >= m) continue;
    *reinterpret_cast<uint32_t*>(block + (lane / 4 * m + token) * 16 + lane % 4 * 4) = codes;
    if (lane == 0) reinterpret_cast<float*>(block + m * 128)[token] = power_of_two(exponent);
  }
}

// Adds what the ranks sent of this warp's tokens and quantises it.   parity: of the unit's sums
template <int kColumns, int kBlocks>
__device__ __forceinline__ void finish_unit(const ClusterMatMulParams& params,
                                            int own_rank,
                                            const ClusterBarriers& barriers,
                                            const float* sums,
                                            int unit,
                                            uint32_t parity) {
  using Sums = ClusterSums<kColumns, kBlocks>;
  constexpr int kWarps = kPanelConsumers / 32, kRounds = (Sums::kTokens + kWarps - 1) / kWarps;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int token = warp * kBlocks + own_rank;
  if (token >= params.m) return;
  uint8_t* const block = params.y_fp8 + static_cast<size_t>(unit) * params.block_bytes;
  const float4* const part = reinterpret_cast<const float4*>(sums + warp * Sums::kStride) + lane;
  if (kBlocks > 1) barrier_wait(barriers.sums, parity);
  float4 sum[kRounds];
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    sum[round] = part[round * kWarps * (Sums::kStride / 4)];
#pragma unroll
    for (int rank = 1; rank < kBlocks; ++rank) {
      const float4 v = part[(rank * Sums::kTokens + round * kWarps) * (Sums::kStride / 4)];
      sum[round] = {sum[round].x + v.x, sum[round].y + v.y, sum[round].z + v.z, sum[round].w + v.w};
    }
  }
  write_fp8_outputs(block, params.m, token, kWarps * kBlocks, sum);
}

// Lets the cluster send the sums of the next unit.
template <int kBlocks>
__device__ __forceinline__ void free_unit_sums(const ClusterBarriers& barriers, int sum_bytes) {
  const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) barrier_arrive_expect(barriers.sums, sum_bytes);
  __syncwarp();
#pragma unroll
  for (int rank = 0; rank < kBlocks; ++rank) {
    if (kWarpArrivals == 32 || lane == rank) {
      barrier_arrive_at_rank(shared_address_of_rank(barriers.free, rank));
    }
  }
}

// The scale of this lane's tile of this warpgroup's panel of a unit.
__device__ __forceinline__ float unit_weight_scale(const ClusterMatMulParams& params,
                                                   const ClusterWork& work,
                                                   int unit) {
  const int lane = threadIdx.x % 32;
  if (unit >= work.end_unit || lane >= work.own_tiles) return 0;
  const int panel = unit * kUnitPanels + static_cast<int>(threadIdx.x) / 128;
  return __ldg(params.weight_scales + work.place(params.weights, panel) + lane);
}

// Multiplies the block's units. The consumers.
template <int kColumns, int kBlocks>
__device__ __forceinline__ void multiply_units(const ClusterMatMulParams& params,
                                               const ClusterWork& work,
                                               const ClusterOperands& operands,
                                               const ClusterBarriers& barriers,
                                               float* sums,
                                               int sum_bytes) {
  constexpr int kSumsBarrier = 1;
  constexpr bool kIsAlone = kBlocks == 1;
  const SumsPlace to =
      SumsPlace::of<kColumns, kBlocks>(shared_address(sums), barriers.sums, work.rank);
  PanelRingPlace place{0, 0};
  uint32_t sums_parity = 0;
  float next_scales = unit_weight_scale(params, work, work.first_unit);
  if (!kIsAlone) cluster_wait();  // all blocks have started their barriers
  for (int unit = work.first_unit; unit < work.end_unit; ++unit, sums_parity ^= 1) {
    const float weight_scales = next_scales;
    next_scales = unit_weight_scale(params, work, unit + 1);
    float acc[kColumns / 2] = {};
    multiply_unit<kColumns>(operands, work.own_tiles, weight_scales, place, acc);
    const bool is_last = unit + 1 == work.end_unit;
    if (unit > work.first_unit) {  // the last sums are read
      if constexpr (kIsAlone) {
        named_barrier_sync(kSumsBarrier, kPanelConsumers);
      } else {
        barrier_wait(barriers.free, sums_parity ^ 1);
      }
    }
    send_unit_sums<kColumns, kBlocks>(to, params.m, acc);
    if constexpr (kIsAlone) named_barrier_sync(kSumsBarrier, kPanelConsumers);
    finish_unit<kColumns, kBlocks>(params, work.rank, barriers, sums, unit, sums_parity);
    if (!kIsAlone && !is_last) free_unit_sums<kBlocks>(barriers, sum_bytes);
    __syncwarp();
  }
}

template <int kColumns, int kBlocks>
__global__ void __launch_bounds__(kPanelThreads, 2)
    fp8_cluster_matmul(const ClusterMatMulParams params) {
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ __align__(8) uint64_t ring_barriers[2 * kPanelMaxStages];
  __shared__ __align__(8) uint64_t other_barriers[kClusterBarriers];
  const ClusterWork work(params.weights, kBlocks);
  const int stage_bytes = cluster_stage_bytes<kColumns>(params.block_bytes, params.m);
  const PanelStages stages =
      make_panel_stages(memory, ring_barriers, stage_bytes, params.ring_stages);
  const uint32_t first = shared_address(other_barriers);
  const ClusterBarriers barriers{.x_full = first,
                                 .sums = first + 8 * kPanelMaxStages,
                                 .free = first + 8 * (kPanelMaxStages + 1)};
  const int sum_bytes = sum_bytes_of_rank<kBlocks>(params.m, work.rank);
  start_cluster_block<kBlocks>(stages, barriers, sum_bytes);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp >= kPanelConsumers / 32) {
    if (kBlocks > 1 && kWaitsMeet) cluster_wait();
    if (lane == 0 && warp == kPanelConsumers / 32)
      copy_unit_weights(params, work, stages, barriers.x_full);
    if (lane == 0 && warp > kPanelConsumers / 32) {
      wait_for_predecessors();
      copy_unit_activations(params, work, stages, barriers.x_full);
    }
    __syncwarp();
    if (kBlocks > 1 && !kWaitsMeet) cluster_wait();
    return;
  }
  const uint32_t weights = stages.ring + threadIdx.x / 128 * kPanelTileBytes;
  const ClusterOperands operands{
      .stages = stages,
      .x_full = barriers.x_full,
      .weights = side_by_side_word(weights, 1024),
      .x = side_by_side_word(stages.ring + kStageWeightBytes, params.m * 16),
      .chunk_step = static_cast<uint32_t>(2 * params.m),
      .scales = memory + kStageWeightBytes + params.m * 128};
  multiply_units<kColumns, kBlocks>(
      params,
      work,
      operands,
      barriers,
      reinterpret_cast<float*>(memory + params.ring_stages * stage_bytes),
      sum_bytes);
}

}  // namespace nibble::kernels::cuda
