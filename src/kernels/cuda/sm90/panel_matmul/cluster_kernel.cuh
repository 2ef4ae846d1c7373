// FP8 products of sm_90a for up to 16 tokens that quantise their results for the next product.
//
// A cluster owns outputs in units of 128, two panels of weights; its blocks share k, so that each
// needs only its part of the activations, which stays in shared memory. Tiles of both panels flow
// through a ring by turns, a warpgroup multiplies those of one panel, M, by the tokens, N. Sums of
// a unit then meet in shared memory: block t % size adds all 128 outputs of token t, rank by rank,
// and writes them as an FP8 block's codes and scale. A block alone is no cluster for the hardware,
// which then refuses the instructions of clusters.
//
// Weights depend on nothing: the ring fills with them before the predecessors end.
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
inline constexpr int kXParts = 4;  // of a block's activations, each with a barrier

// A weight and how the blocks of a launch share it.
struct ClusterWeights {
  const uint8_t* codes;
  int units;
  int tiles;       // along k, of all blocks
  int log_blocks;  // of a cluster
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
  uint8_t* y_fp8;    // blocks; null: not wanted
  int x_part_tiles;  // even
  int ring_stages;   // even
};

// Shared memory of a block: activations, the ring, sums of its tokens.
struct ClusterMatMulMemory {
  int x_bytes;
  int sum_bytes;

  // What wide columns read beyond the last block of activations is there, too.
  __host__ __device__ static constexpr ClusterMatMulMemory of(int m,
                                                              int block_bytes,
                                                              int own_tiles,
                                                              int log_blocks) {
    const int blocks = 1 << log_blocks;
    return {.x_bytes = (own_tiles * block_bytes + 16 * 16 + 127) / 128 * 128,
            .sum_bytes = (m + blocks - 1) / blocks * blocks * kUnitRows * 4};
  }
};

// What a block does: its part of k of some units.
struct ClusterWork {
  int rank;
  int own_tiles;
  int first_tile;
  int first_unit;
  int end_unit;

  __device__ __forceinline__ explicit ClusterWork(const ClusterWeights& weights) {
    const int cluster = static_cast<int>(blockIdx.x) >> weights.log_blocks;
    rank = static_cast<int>(blockIdx.x) & ((1 << weights.log_blocks) - 1);
    own_tiles = weights.tiles >> weights.log_blocks;
    first_tile = rank * own_tiles;
    first_unit = weights.units * cluster / weights.clusters;
    end_unit = weights.units * (cluster + 1) / weights.clusters;
  }
  // The first of this block's tiles of a panel.
  __device__ __forceinline__ size_t place(const ClusterWeights& weights, int panel) const {
    return static_cast<size_t>(panel) * weights.tiles + first_tile;
  }
};

// Barriers of a block, by their addresses.
struct ClusterBarriers {
  uint32_t x_full;   // [kXParts]
  uint32_t x_empty;  // the warps that no longer read activations of a group
  uint32_t sums;     // all sums of this block's tokens are there
  uint32_t free;     // the cluster's warps have read the sums of a unit
};
inline constexpr int kClusterBarriers = kXParts + 3;

// Tokens whose outputs block `rank` of a cluster adds.
__device__ __forceinline__ int tokens_of_rank(const ClusterMatMulParams& params, int rank) {
  const int blocks = 1 << params.weights.log_blocks;
  return (params.m - rank + blocks - 1) >> params.weights.log_blocks;
}
__device__ __forceinline__ int sum_bytes_of_rank(const ClusterMatMulParams& params, int rank) {
  return (tokens_of_rank(params, rank) << params.weights.log_blocks) * (kUnitRows * 4);
}

// Starts all barriers; every thread of the block.
__device__ __forceinline__ void start_cluster_block(const ClusterMatMulParams& params,
                                                    const PanelStages& stages,
                                                    const ClusterBarriers& barriers,
                                                    int rank) {
  constexpr int kWarps = kPanelConsumers / 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages.num_stages; ++i) {
      barrier_init(stages.full + 8 * i, 1);
      barrier_init(stages.empty + 8 * i, 4 * kWarpArrivals);
    }
    for (int part = 0; part < kXParts; ++part) barrier_init(barriers.x_full + 8 * part, 1);
    barrier_init(barriers.x_empty, kWarps * kWarpArrivals);
    barrier_init(barriers.sums, 1);
    barrier_init(barriers.free, kWarps * kWarpArrivals << params.weights.log_blocks);
    fence_barrier_init();
    barrier_arrive_expect(barriers.sums, sum_bytes_of_rank(params, rank));
  }
  launch_dependents();
  __syncwarp();
  if (params.weights.log_blocks > 0) cluster_arrive_relaxed();
  __syncthreads();
}

// Copies weights to the ring. One thread.
__device__ __forceinline__ void copy_unit_weights(const ClusterMatMulParams& params,
                                                  const ClusterWork& work,
                                                  const PanelStages& stages) {
  const uint64_t once = evict_first_policy();
  const ClusterWeights& weights = params.weights;
  const size_t panel_bytes = static_cast<size_t>(weights.tiles) * kPanelTileBytes;
  PanelRingPlace place{0, 0};
  for (int unit = work.first_unit; unit < work.end_unit; ++unit) {
    const uint8_t* source =
        weights.codes + work.place(weights, unit * kUnitPanels) * kPanelTileBytes;
    for (int tile = 0; tile < work.own_tiles; ++tile, source += kPanelTileBytes) {
      for (int panel = 0; panel < kUnitPanels; ++panel) {
        const uint32_t full = stages.take(place);
        barrier_arrive_expect(full, kPanelTileBytes);
        bulk_copy_to_shared(stages.ring + place.slot * kPanelTileBytes,
                            source + panel * panel_bytes,
                            kPanelTileBytes,
                            full,
                            once);
        place.advance(1, stages.num_stages);
      }
    }
  }
}

// Copies the activations of each group that the units are of. One thread.
__device__ __forceinline__ void copy_unit_activations(const ClusterMatMulParams& params,
                                                      const ClusterWork& work,
                                                      const ClusterBarriers& barriers,
                                                      uint32_t x) {
  const uint64_t again = evict_last_policy();
  int loads = 0, loaded = -1;
  wait_for_predecessors();
  for (int unit = work.first_unit; unit < work.end_unit; ++unit) {
    const int group = unit / params.units_per_group;
    if (group == loaded) continue;
    if (loads > 0) barrier_wait(barriers.x_empty, (loads - 1) % 2);
    const uint8_t* source =
        params.x +
        (static_cast<size_t>(group) * params.weights.tiles + work.first_tile) * params.block_bytes;
    for (int tile = 0, part = 0; tile < work.own_tiles; ++part) {
      const int bytes = min(params.x_part_tiles, work.own_tiles - tile) * params.block_bytes;
      const uint32_t full = barriers.x_full + 8 * part;
      barrier_arrive_expect(full, bytes);
      bulk_copy_to_shared(
          x + tile * params.block_bytes, source + tile * params.block_bytes, bytes, full, again);
      tile += params.x_part_tiles;
    }
    loaded = group;
    ++loads;
  }
}

// What a consumer multiplies from.
struct ClusterOperands {
  PanelStages stages;
  uint64_t weights;  // descriptor of stage 0
  uint64_t x;        // descriptor of tile 0
  uint32_t chunk_step;
  uint32_t x_step;        // from tile to tile
  const uint8_t* scales;  // of tile 0
  int block_bytes;
};

// Multiplies this warpgroup's tiles from `tile` on and adds them to `acc` with their scales.
//   weight_scales: lane i has the one of tile i
template <int kTiles, int kColumns>
__device__ __forceinline__ void multiply_unit_tiles(const ClusterOperands& operands,
                                                    PanelRingPlace& place,
                                                    int tile,
                                                    float weight_scales,
                                                    float (&acc)[kColumns / 2]) {
  const int lane = threadIdx.x % 32;
  const PanelStages& stages = operands.stages;
  float d[kTiles][kColumns / 2];
  int slots[kTiles];
  await_panel_stages(stages.full, stages.num_stages, place, slots);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const uint64_t a = operands.weights + static_cast<uint32_t>(slots[i] * (kPanelTileBytes / 16));
    const uint64_t b = operands.x + (tile + i) * operands.x_step;
    wgmma_e4m3_128(d[i], a, b, kPanelWeightStep, operands.chunk_step);
  }
  wgmma_commit();
  wgmma_wait<0>();
#pragma unroll
  for (int i = 0; i < kTiles; ++i) hold(d[i]);
#pragma unroll
  for (int i = 0; i < kTiles; ++i) warp_arrive(stages.empty + 8 * slots[i], lane);
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const float weight_scale = __shfl_sync(~0U, weight_scales, tile + i);
    const float* const scales =
        reinterpret_cast<const float*>(operands.scales + (tile + i) * operands.block_bytes);
    add_scaled_columns(acc, d[i], scales, weight_scale);
  }
}

// Multiplies this warpgroup's panel of a unit.
//   x_parity: of the barriers of the unit's activations
template <int kColumns>
__device__ __forceinline__ void multiply_unit(const ClusterMatMulParams& params,
                                              const ClusterWork& work,
                                              const ClusterOperands& operands,
                                              const ClusterBarriers& barriers,
                                              uint32_t x_parity,
                                              float weight_scales,
                                              PanelRingPlace& place,
                                              float (&acc)[kColumns / 2]) {
  for (int tile = 0, part = 0; tile < work.own_tiles; ++part) {
    const int end = min(tile + params.x_part_tiles, work.own_tiles);
    barrier_wait(barriers.x_full + 8 * part, x_parity);
    for (; tile + 1 < end; tile += 2) {
      multiply_unit_tiles<2, kColumns>(operands, place, tile, weight_scales, acc);
    }
    if (tile < end) {
      multiply_unit_tiles<1, kColumns>(operands, place, tile, weight_scales, acc);
      ++tile;
    }
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

// Sends the sums of this warpgroup's panel to the blocks that add them: [ranks, tokens, 128] of
// each block, where they count as bytes of its barrier. Four rows at a time, because such stores
// cost by their number.
template <int kColumns>
__device__ __forceinline__ void send_unit_sums(const ClusterMatMulParams& params,
                                               const ClusterWork& work,
                                               const ClusterBarriers& barriers,
                                               float* sums,
                                               const float (&acc)[kColumns / 2]) {
  const int lane = threadIdx.x % 32, blocks = 1 << params.weights.log_blocks;
  // This lane's four rows and token of what its group of four holds.
  const int row = static_cast<int>(threadIdx.x) / 32 * 16 + (lane & 8) + lane / 16 * 4;
  const int column = lane % 4 * 2 + lane / 4 % 2;
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
    const float own[4] = {acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]};
    const float4 rows = transpose_by_lanes(own, lane);
    const int token = 8 * j + column;
    if (token < params.m) {
      const int rank = token & (blocks - 1), local = token >> params.weights.log_blocks;
      float* const at = sums + (work.rank * tokens_of_rank(params, rank) + local) * kUnitRows + row;
      if (blocks == 1) {
        *reinterpret_cast<float4*>(at) = rows;
      } else {
        store_async(shared_address_of_rank(shared_address(at), rank),
                    rows,
                    shared_address_of_rank(barriers.sums, rank));
      }
    }
    __syncwarp();
  }
}

// Quantises 128 outputs of a token: lane l has outputs 4 l to 4 l + 3.   block: where they go
__device__ __forceinline__ void write_fp8_outputs(uint8_t* block,
                                                  int m,
                                                  int token,
                                                  const float4& sum) {
  const int lane = threadIdx.x % 32;
  const uint32_t exponent = e4m3_scale_exponent(warp_max(largest_of(sum)));
  *reinterpret_cast<uint32_t*>(block + (lane / 4 * m + token) * 16 + lane % 4 * 4) =
      e4m3_codes(sum, exponent);
  if (lane == 0) reinterpret_cast<float*>(block + m * 128)[token] = power_of_two(exponent);
}

// Adds what the ranks sent of this warp's tokens and quantises it.
__device__ __forceinline__ void finish_unit(const ClusterMatMulParams& params,
                                            const ClusterWork& work,
                                            const ClusterBarriers& barriers,
                                            const float4* sums,
                                            int unit) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int tokens = tokens_of_rank(params, work.rank);
  if (warp >= tokens) return;
  if (params.weights.log_blocks > 0) barrier_wait(barriers.sums, (unit - work.first_unit) % 2);
  for (int local = warp; local < tokens; local += kPanelConsumers / 32) {
    const float4* part = sums + local * (kUnitRows / 4) + lane;
    float4 sum = *part;
    for (int rank = 1; rank < 1 << params.weights.log_blocks; ++rank) {
      part += tokens * (kUnitRows / 4);
      sum.x += part->x;
      sum.y += part->y;
      sum.z += part->z;
      sum.w += part->w;
    }
    write_fp8_outputs(params.y_fp8 + static_cast<size_t>(unit) * params.block_bytes,
                      params.m,
                      local << params.weights.log_blocks | work.rank,
                      sum);
  }
}

// Lets the cluster send the sums of the next unit.
__device__ __forceinline__ void free_unit_sums(const ClusterMatMulParams& params,
                                               const ClusterWork& work,
                                               const ClusterBarriers& barriers) {
  const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    barrier_arrive_expect(barriers.sums, sum_bytes_of_rank(params, work.rank));
  }
  __syncwarp();
  for (int rank = 0; rank < 1 << params.weights.log_blocks; ++rank) {
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
template <int kColumns>
__device__ __forceinline__ void multiply_units(const ClusterMatMulParams& params,
                                               const ClusterWork& work,
                                               const ClusterOperands& operands,
                                               const ClusterBarriers& barriers,
                                               float* sums) {
  constexpr int kSumsBarrier = 1;
  const bool is_alone = params.weights.log_blocks == 0;
  PanelRingPlace place{static_cast<int>(threadIdx.x / 128), 0};
  uint32_t x_parity = 0;
  float next_scales = unit_weight_scale(params, work, work.first_unit);
  for (int unit = work.first_unit; unit < work.end_unit; ++unit) {
    const float weight_scales = next_scales;
    next_scales = unit_weight_scale(params, work, unit + 1);
    float acc[kColumns / 2] = {};
    multiply_unit<kColumns>(params, work, operands, barriers, x_parity, weight_scales, place, acc);
    const int number = unit - work.first_unit;
    const bool is_last = unit + 1 == work.end_unit;
    if (!is_last && unit / params.units_per_group != (unit + 1) / params.units_per_group) {
      warp_arrive(barriers.x_empty, threadIdx.x % 32);
      x_parity ^= 1;
    }
    __syncwarp();
    if (is_alone) {
      if (number > 0) named_barrier_sync(kSumsBarrier, kPanelConsumers);  // the last ones are read
    } else if (number == 0) {
      cluster_wait();  // all blocks have started their barriers
    } else {
      barrier_wait(barriers.free, (number - 1) % 2);
    }
    send_unit_sums<kColumns>(params, work, barriers, sums, acc);
    if (is_alone) named_barrier_sync(kSumsBarrier, kPanelConsumers);
    finish_unit(params, work, barriers, reinterpret_cast<const float4*>(sums), unit);
    if (!is_last && !is_alone) free_unit_sums(params, work, barriers);
    __syncwarp();
  }
}

template <int kColumns>
__global__ void __launch_bounds__(kPanelThreads, 2)
    fp8_cluster_matmul(const ClusterMatMulParams params) {
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ __align__(8) uint64_t ring_barriers[2 * kPanelMaxStages];
  __shared__ __align__(8) uint64_t other_barriers[kClusterBarriers];
  const ClusterWork work(params.weights);
  const ClusterMatMulMemory sizes = ClusterMatMulMemory::of(
      params.m, params.block_bytes, work.own_tiles, params.weights.log_blocks);
  uint8_t* const ring = memory + sizes.x_bytes;
  const PanelStages stages =
      make_panel_stages(ring, ring_barriers, kPanelTileBytes, params.ring_stages);
  const uint32_t first = shared_address(other_barriers);
  const ClusterBarriers barriers{.x_full = first,
                                 .x_empty = first + 8 * kXParts,
                                 .sums = first + 8 * (kXParts + 1),
                                 .free = first + 8 * (kXParts + 2)};
  start_cluster_block(params, stages, barriers, work.rank);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t x = shared_address(memory);
  if (warp >= kPanelConsumers / 32) {
    if (lane == 0 && warp == kPanelConsumers / 32) copy_unit_weights(params, work, stages);
    if (lane == 0 && warp > kPanelConsumers / 32) copy_unit_activations(params, work, barriers, x);
    __syncwarp();
    if (params.weights.log_blocks > 0) cluster_wait();
    return;
  }
  const ClusterOperands operands{.stages = stages,
                                 .weights = core_matrix_descriptor(stages.ring, 1024, 128),
                                 .x = core_matrix_descriptor(x, params.m * 16, 128),
                                 .chunk_step = static_cast<uint32_t>(2 * params.m),
                                 .x_step = static_cast<uint32_t>(params.block_bytes / 16),
                                 .scales = memory + params.m * 128,
                                 .block_bytes = params.block_bytes};
  multiply_units<kColumns>(params,
                           work,
                           operands,
                           barriers,
                           reinterpret_cast<float*>(ring + params.ring_stages * kPanelTileBytes));
}

}  // namespace nibble::kernels::cuda
