// Dense products of sm_90a for few tokens whose parts of k, if any, stay apart: of FP8 weights with
// activations in FP8, of BF16 weights with activations in f32, and two of the same tokens in one
// launch. FP8 products that quantise their results: cluster_kernel.cuh. Design and measurements:
// spec "h200-facts" 1, 2 and 6.
//
// Weights are the M operand, tokens the N operand. A block owns a contiguous range of items, an
// item being a panel of 64 rows by a range of k, and keeps tiles of 64 rows by 128 bytes (128 k in
// FP8, 64 in BF16) flowing through a ring by bulk copies: a tile of weights and the tokens' block
// of activations beside it. Each has a warp of its own, because weights depend on nothing: the ring
// fills with them before the predecessors end. Two warpgroups take the stages in turns, straight
// from shared memory. FP8 sums of 128 k are promoted to f32 with the scales of weight and token;
// f32 activations come as three BF16 terms, whose products with BF16 weights are exact. The order
// of every sum depends on the shape and the number of splits only.
//
// The 8 columns of a core matrix overlap with the next one where there are fewer tokens, so that
// one token needs its own bytes and no padding. Two blocks fit on a multiprocessor, which lets the
// next launch fill its ring while this one ends; of products that share a launch one does.
//
// Products that share a launch have blocks of their own.
//
// Bytes: n k (BF16: 2 n k), plus k m (6 k m) per panel from the cache. FLOPs: 2 m n k.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/panel_stages.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/wgmma_products.cuh"

namespace nibble::kernels::cuda {

// What weights and activations are multiplied as.
enum class PanelMath { kFp8, kBf16Terms };

inline constexpr int kPanelTileBytes = 64 * 128;
inline constexpr int kPanelTerms = 3;  // of an f32 value
inline constexpr int kPanelWarpgroups = 2;
inline constexpr int kPanelConsumers = kPanelWarpgroups * 128;
inline constexpr int kPanelThreads = kPanelConsumers + 64;  // and two warps that copy
inline constexpr int kPanelMaxStages = 16;
inline constexpr int kPanelMaxScales = 64;  // tiles of an FP8 item

// DeviceMatMulArgs as the kernel takes them.
struct PanelMatMulParams {
  const uint8_t* x;
  int m;
  int block_bytes;  // of x: fp8_block_bytes(m), bf16_block_bytes(m, 3)
  int groups;
  const uint8_t* weights;
  const float* weight_scales;  // [panels, tiles], FP8
  int panels;
  int tiles;  // along k
  int splits;
  float* y;
  int ring_stages;
  int first_block;  // of the launch that works on this product
  int num_blocks;
};

// Shared memory of a block: the ring, then partial panels.
template <int kColumns>
struct PanelMatMulMemory {
  static constexpr int kPartialBytes = kPanelWarpgroups * 128 * (kColumns / 2) * 4;
  static constexpr int kStaticBytes = 4 * kPanelMaxStages * 8 + 128;  // of static arrays, at most
  // A stage is a tile and a block of activations, padded to 128 bytes beyond what the core matrices
  // of the last chunk reach.
  __host__ __device__ static constexpr int stage_bytes(int block_bytes, int m) {
    const int reach = block_bytes - m * 16 + kColumns * 16;
    return kPanelTileBytes + (reach + 127) / 128 * 128;
  }
};

// An item: a panel by a part of k.
struct PanelItem {
  int panel;
  int split;
};
// What a block does of a product: consecutive items.
struct PanelWork {
  int splits;
  int begin;
  int end;

  __device__ __forceinline__ PanelItem item(int i) const {
    const int panel = i / splits;
    return {panel, i - panel * splits};
  }
};
// An equal share for this block.
__device__ __forceinline__ PanelWork panel_work_of_block(const PanelMatMulParams& params) {
  const int items = params.panels * params.splits;
  const auto share = [&params, items](int block) {
    return static_cast<int>(static_cast<long long>(items) * block / params.num_blocks);
  };
  const int block = static_cast<int>(blockIdx.x) - params.first_block;
  return {params.splits, share(block), share(block + 1)};
}

// A place in the ring and the parity of its current round.
struct PanelRingPlace {
  int slot;
  uint32_t parity;

  __device__ __forceinline__ void advance(int step, int stages) {
    slot += step;
    if (slot >= stages) {
      slot -= stages;
      parity ^= 1;
    }
  }
};

// The ring as those see it who fill it.
struct PanelStages {
  uint32_t ring;
  int stage_bytes;
  int num_stages;
  uint32_t full, empty;  // barriers of stage 0

  // A stage's barrier of full ones, once it is empty.
  __device__ __forceinline__ uint32_t take(const PanelRingPlace& place) const {
    barrier_wait(empty + 8 * place.slot, place.parity ^ 1);
    return full + 8 * place.slot;
  }
};

// Copies the weights of some items and announces whole stages. One thread.
__device__ __forceinline__ void copy_panel_weights(const PanelMatMulParams& params,
                                                   const PanelWork& work,
                                                   const PanelStages& stages,
                                                   PanelRingPlace& place) {
  const uint64_t once = evict_first_policy();
  const int item_tiles = params.tiles / params.splits;
  for (int i = work.begin; i < work.end; ++i) {
    const PanelItem item = work.item(i);
    const int first = item.panel * params.tiles + item.split * item_tiles;
    const uint8_t* source = params.weights + static_cast<size_t>(first) * kPanelTileBytes;
    for (int tile = 0; tile < item_tiles; ++tile, source += kPanelTileBytes) {
      const uint32_t full = stages.take(place);
      barrier_arrive_expect(full, kPanelTileBytes + params.block_bytes);
      bulk_copy_to_shared(
          stages.ring + place.slot * stages.stage_bytes, source, kPanelTileBytes, full, once);
      place.advance(1, stages.num_stages);
    }
  }
}

// Copies the activations beside them. One thread.
__device__ __forceinline__ void copy_panel_activations(const PanelMatMulParams& params,
                                                       const PanelWork& work,
                                                       const PanelStages& stages,
                                                       PanelRingPlace& place) {
  const uint64_t again = evict_last_policy();
  const int item_tiles = params.tiles / params.splits;
  for (int i = work.begin; i < work.end; ++i) {
    const PanelItem item = work.item(i);
    const int group = item.panel / (params.panels / params.groups);
    const int first = group * params.tiles + item.split * item_tiles;
    const uint8_t* source = params.x + static_cast<size_t>(first) * params.block_bytes;
    for (int tile = 0; tile < item_tiles; ++tile, source += params.block_bytes) {
      const uint32_t full = stages.take(place);
      bulk_copy_to_shared(stages.ring + place.slot * stages.stage_bytes + kPanelTileBytes,
                          source,
                          params.block_bytes,
                          full,
                          again);
      place.advance(1, stages.num_stages);
    }
  }
}

// The ring as consumers see it.
struct PanelRing {
  const uint8_t* stages;
  int stage_bytes;
  int num_stages;
  uint64_t weights;      // descriptor of stage 0's tile
  uint64_t activations;  // descriptor of stage 0's block
  uint32_t chunk_step;   // distance of 32 bytes along k in the activations' descriptor
  int scale_offset;      // of an FP8 block's scales in a stage
  uint32_t full, empty;  // barriers of stage 0
};

inline constexpr uint64_t kPanelWeightStep = 2 * 1024 / 16;  // descriptor distance of 32 bytes of k

// Waits for the next kTiles stages of this warpgroup.
template <int kTiles>
__device__ __forceinline__ void await_panel_stages(uint32_t full,
                                                   int num_stages,
                                                   PanelRingPlace& place,
                                                   int (&slots)[kTiles]) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    barrier_wait(full + 8 * place.slot, place.parity);
    slots[i] = place.slot;
    place.advance(kPanelWarpgroups, num_stages);
  }
}

// acc += d with the scales of its columns and of its rows.   scales: of each column
template <int kCount>
__device__ __forceinline__ void add_scaled_columns(float (&acc)[kCount],
                                                   const float (&d)[kCount],
                                                   const float* scales,
                                                   float weight_scale) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    // Columns beyond the tokens take whatever lies there; nobody reads their sums.
    const float first = scales[j * 8 + 2 * t] * weight_scale;
    const float second = scales[j * 8 + 2 * t + 1] * weight_scale;
    acc[j * 4 + 0] = fmaf(first, d[j * 4 + 0], acc[j * 4 + 0]);
    acc[j * 4 + 1] = fmaf(second, d[j * 4 + 1], acc[j * 4 + 1]);
    acc[j * 4 + 2] = fmaf(first, d[j * 4 + 2], acc[j * 4 + 2]);
    acc[j * 4 + 3] = fmaf(second, d[j * 4 + 3], acc[j * 4 + 3]);
  }
}

// Multiplies the next kTiles stages of this warpgroup and adds them to `acc` with their scales.
//   weight_scales: lane i holds the scale of this warpgroup's i-th tile; index: of the first
template <int kTiles, int kColumns>
__device__ __forceinline__ void multiply_fp8_stages(const PanelRing& ring,
                                                    PanelRingPlace& place,
                                                    int index,
                                                    float weight_scales,
                                                    float (&acc)[kColumns / 2]) {
  const int lane = threadIdx.x % 32;
  float d[kTiles][kColumns / 2];
  int slots[kTiles];
  await_panel_stages(ring.full, ring.num_stages, place, slots);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const auto stage = static_cast<uint32_t>(slots[i] * (ring.stage_bytes / 16));
    const uint64_t a = ring.weights + stage, b = ring.activations + stage;
    wgmma_e4m3_128(d[i], a, b, kPanelWeightStep, ring.chunk_step);
  }
  wgmma_commit();
  wgmma_wait<0>();
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    hold(d[i]);
    const float weight_scale = __shfl_sync(~0U, weight_scales, index + i);
    const float* const scales = reinterpret_cast<const float*>(
        ring.stages + slots[i] * ring.stage_bytes + ring.scale_offset);
    add_scaled_columns(acc, d[i], scales, weight_scale);
    warp_arrive(ring.empty + 8 * slots[i], lane);
  }
}

// Multiplies the next kTiles stages of this warpgroup, term by term, and adds them to `acc`.
template <int kTiles, int kColumns>
__device__ __forceinline__ void multiply_bf16_stages(const PanelRing& ring,
                                                     PanelRingPlace& place,
                                                     float (&acc)[kColumns / 2]) {
  int slots[kTiles];
  await_panel_stages(ring.full, ring.num_stages, place, slots);
  hold(acc);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const auto stage = static_cast<uint32_t>(slots[i] * (ring.stage_bytes / 16));
#pragma unroll
    for (int step = 0; step < 4 * kPanelTerms; ++step) {
      wgmma_bf16_add(acc,
                     ring.weights + stage + step % 4 * kPanelWeightStep,
                     ring.activations + stage + step * ring.chunk_step);
    }
  }
  wgmma_commit();
  wgmma_wait<0>();
  hold(acc);
#pragma unroll
  for (int i = 0; i < kTiles; ++i) warp_arrive(ring.empty + 8 * slots[i], threadIdx.x % 32);
}

// The scale of this lane's tile of an item, see multiply_fp8_stages().
__device__ __forceinline__ float panel_weight_scale(const PanelMatMulParams& params,
                                                    const PanelItem& item) {
  const int lane = threadIdx.x % 32, group = threadIdx.x / 128;
  const int item_tiles = params.tiles / params.splits, tile = kPanelWarpgroups * lane + group;
  if (tile >= item_tiles) return 0;
  return __ldg(params.weight_scales + item.panel * params.tiles + item.split * item_tiles + tile);
}

// Multiplies this warpgroup's stages of one item.
template <int kColumns, PanelMath kMath>
__device__ __forceinline__ void multiply_panel_item(const PanelRing& ring,
                                                    PanelRingPlace& place,
                                                    int own_tiles,
                                                    float weight_scales,
                                                    float (&acc)[kColumns / 2]) {
  int index = 0;
  for (; index + 1 < own_tiles; index += 2) {
    if constexpr (kMath == PanelMath::kFp8) {
      multiply_fp8_stages<2, kColumns>(ring, place, index, weight_scales, acc);
    } else {
      multiply_bf16_stages<2, kColumns>(ring, place, acc);
    }
  }
  if (index == own_tiles) return;
  if constexpr (kMath == PanelMath::kFp8) {
    multiply_fp8_stages<1, kColumns>(ring, place, index, weight_scales, acc);
  } else {
    multiply_bf16_stages<1, kColumns>(ring, place, acc);
  }
}

// What the consumers carry from item to item.
struct PanelConsumer {
  PanelRing ring;
  PanelRingPlace place;
  float* partials;
  int round;  // of the block's items
};

// Adds the other warpgroup's half of an item. The warpgroups finish items in turns, true for the
// one whose turn it is; two terms have the same sum in either order.
template <int kColumns>
__device__ __forceinline__ bool join_halves(const PanelConsumer& consumer,
                                            float (&acc)[kColumns / 2]) {
  constexpr int kAccumulators = kColumns / 2;
  const int group = threadIdx.x / 128, finisher = consumer.round % kPanelWarpgroups;
  float4* const partials = reinterpret_cast<float4*>(consumer.partials) +
                           (finisher * 128 + threadIdx.x % 128) * (kAccumulators / 4);
  if (group != finisher) {
#pragma unroll
    for (int j = 0; j < kAccumulators; j += 4) {
      partials[j / 4] = {acc[j], acc[j + 1], acc[j + 2], acc[j + 3]};
    }
  }
  named_barrier_sync(1, kPanelConsumers);
  if (group != finisher) return false;
#pragma unroll
  for (int j = 0; j < kAccumulators; j += 4) {
    const float4 other = partials[j / 4];
    acc[j] += other.x;
    acc[j + 1] += other.y;
    acc[j + 2] += other.z;
    acc[j + 3] += other.w;
  }
  return true;
}

// Multiplies the block's items and writes their sums. The consumers.
template <int kColumns, PanelMath kMath>
__device__ __forceinline__ void multiply_panel_items(const PanelMatMulParams& params,
                                                     const PanelWork& work,
                                                     PanelConsumer& consumer) {
  constexpr bool kHasScales = kMath == PanelMath::kFp8;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int own_tiles = params.tiles / params.splits / kPanelWarpgroups;
  float next_scales = 0;
  if (kHasScales && work.begin < work.end) {
    next_scales = panel_weight_scale(params, work.item(work.begin));
  }
  for (int i = work.begin; i < work.end; ++i) {
    const float weight_scales = next_scales;
    if (kHasScales && i + 1 < work.end) next_scales = panel_weight_scale(params, work.item(i + 1));
    float acc[kColumns / 2] = {};
    multiply_panel_item<kColumns, kMath>(
        consumer.ring, consumer.place, own_tiles, weight_scales, acc);
    if (join_halves<kColumns>(consumer, acc)) {
      const PanelItem item = work.item(i);
      const int row = item.panel * 64 + warp % 4 * 16 + lane / 4;
      store_panel_sums<kColumns>(params, acc, {item.panel, 0, item.split}, row);
    }
    ++consumer.round;
  }
}

// Starts the ring's barriers; every thread of the block.
__device__ __forceinline__ void start_panel_ring(const PanelStages& stages) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages.num_stages; ++i) {
      barrier_init(stages.full + 8 * i, 1);
      barrier_init(stages.empty + 8 * i, 4 * kWarpArrivals);
    }
    fence_barrier_init();
  }
  launch_dependents();
  __syncthreads();
}

__device__ __forceinline__ PanelStages make_panel_stages(uint8_t* memory,
                                                         uint64_t* barriers,
                                                         int stage_bytes,
                                                         int num_stages) {
  PanelStages stages{.ring = shared_address(memory),
                     .stage_bytes = stage_bytes,
                     .num_stages = num_stages,
                     .full = shared_address(barriers),
                     .empty = shared_address(barriers) + 8 * kPanelMaxStages};
  keep_in_register(stages.ring);
  keep_in_register(stages.full);
  keep_in_register(stages.empty);
  return stages;
}

__device__ __forceinline__ PanelConsumer make_panel_consumer(const PanelStages& stages,
                                                             uint8_t* memory,
                                                             int m) {
  const PanelRing ring{
      .stages = memory,
      .stage_bytes = stages.stage_bytes,
      .num_stages = stages.num_stages,
      .weights = core_matrix_descriptor(stages.ring, 1024, 128),
      .activations = core_matrix_descriptor(stages.ring + kPanelTileBytes, m * 16, 128),
      .chunk_step = static_cast<uint32_t>(2 * m),
      .scale_offset = kPanelTileBytes + m * 128,
      .full = stages.full,
      .empty = stages.empty};
  return {.ring = ring,
          .place = {static_cast<int>(threadIdx.x / 128), 0},
          .partials = reinterpret_cast<float*>(memory + stages.num_stages * stages.stage_bytes),
          .round = 0};
}

// What a block does.
template <int kColumns, PanelMath kMath>
__device__ __forceinline__ void multiply_panels(const PanelMatMulParams& params) {
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ __align__(8) uint64_t barriers[2 * kPanelMaxStages];
  const PanelStages stages =
      make_panel_stages(memory,
                        barriers,
                        PanelMatMulMemory<kColumns>::stage_bytes(params.block_bytes, params.m),
                        params.ring_stages);
  start_panel_ring(stages);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const PanelWork own = panel_work_of_block(params);
  if (warp >= kPanelConsumers / 32) {
    if (lane != 0) return;
    PanelRingPlace place{0, 0};
    if (warp == kPanelConsumers / 32) {
      copy_panel_weights(params, own, stages, place);
    } else {
      wait_for_predecessors();
      copy_panel_activations(params, own, stages, place);
    }
    return;
  }
  PanelConsumer consumer = make_panel_consumer(stages, memory, params.m);
  multiply_panel_items<kColumns, kMath>(params, own, consumer);
}

template <int kColumns, PanelMath kMath>
__global__ void __launch_bounds__(kPanelThreads, 2) panel_matmul(const PanelMatMulParams params) {
  multiply_panels<kColumns, kMath>(params);
}

// An FP8 product in the first blocks, another one in the others.
template <int kColumns, PanelMath kSecond>
__global__ void __launch_bounds__(kPanelThreads, 1)
    panel_matmul_pair(const PanelMatMulParams fp8, const PanelMatMulParams second) {
  if (static_cast<int>(blockIdx.x) < fp8.num_blocks) {
    multiply_panels<kColumns, PanelMath::kFp8>(fp8);
  } else {
    multiply_panels<kColumns, kSecond>(second);
  }
}

}  // namespace nibble::kernels::cuda
