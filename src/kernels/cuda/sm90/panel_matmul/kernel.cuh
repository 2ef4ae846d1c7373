// The dense products of sm_90a for few tokens, of FP8 weights with activations in FP8 and of BF16
// weights with activations in f32. Design and measurements: spec "h200-facts" 1, 2 and 6.
//
// Weights are the M operand, tokens the N operand. A block owns a contiguous range of items, an
// item being a panel of 64 rows by a range of k, and keeps tiles of 64 rows by 128 bytes (128 k in
// FP8, 64 in BF16) flowing through a ring by bulk copies of one producer warp: a tile of weights
// and the tokens' block of activations beside it. Weights depend on nothing, so the ring fills with
// them before the predecessors end. Two warpgroups take the stages in turns, straight from shared
// memory. FP8 sums of 128 k are promoted to f32 with the scales of weight and token; f32
// activations come as three BF16 terms, whose products with BF16 weights are exact. The order of
// every sum depends on the shape and the number of splits only.
//
// The 8 columns of a core matrix overlap with the next one where there are fewer tokens, so that
// one token needs its own bytes and no padding. Two blocks fit on a multiprocessor, which lets the
// next launch fill its ring while this one ends.
//
// For results in FP8 the two blocks of a cluster own the two panels of 128 outputs that share a
// scale and exchange their largest magnitudes.
//
// Two products of the same tokens can share a launch, each with blocks of its own.
//
// Bytes: n k (BF16: 2 n k), plus k m (6 k m) per panel from the cache. FLOPs: 2 m n k.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/fp8.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/wgmma_shared.cuh"

namespace nibble::kernels::cuda {

// What weights and activations are multiplied as.
enum class PanelMath { kFp8, kBf16Terms };

inline constexpr int kPanelTileBytes = 64 * 128;
inline constexpr int kPanelTerms = 3;  // of an f32 value
inline constexpr int kPanelWarpgroups = 2;
inline constexpr int kPanelConsumers = kPanelWarpgroups * 128;
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
  uint8_t* y_fp8;
  int ring_stages;
  int first_block;  // of the launch that works on this product
  int num_blocks;
};

// Where the blocks of a cluster exchange largest magnitudes. A warpgroup announces its panel j,
// then stores panel j - 1, and uses four buffers in turns: when it announces j it has stored j - 2,
// so the other block has announced that, before which it stored j - 4.
inline constexpr int kFp8ExchangeBuffers = 4 * kPanelWarpgroups;
template <int kColumns>
struct Fp8Exchange {
  float amax[kFp8ExchangeBuffers][2][4][kColumns];  // [buffer][block][warp][column]
  uint64_t barriers[kFp8ExchangeBuffers];
};
// Shared memory of a block: the ring, then partial panels.
template <int kColumns>
struct PanelMatMulMemory {
  static constexpr int kPartialBytes = kPanelWarpgroups * 128 * (kColumns / 2) * 4;
  // A stage is a tile and a block of activations, padded to 128 bytes beyond what the core matrices
  // of the last chunk reach.
  __host__ __device__ static constexpr int stage_bytes(int block_bytes, int m) {
    const int reach = block_bytes - m * 16 + kColumns * 16;
    return kPanelTileBytes + (reach + 127) / 128 * 128;
  }
  // Of the kernel's static arrays.
  template <bool kQuantize>
  static constexpr int static_bytes() {
    return 2 * kPanelMaxStages * 8 +
           (kQuantize ? static_cast<int>(sizeof(Fp8Exchange<kColumns>)) : 0);
  }
};

// Which panel and which part of k an item stands for.
struct PanelItem {
  int panel;
  int split;
};
template <bool kQuantize>
__device__ __forceinline__ PanelItem panel_item(const PanelMatMulParams& params, int item) {
  if constexpr (kQuantize) return {2 * item + static_cast<int>(cluster_rank()), 0};
  return {item / params.splits, item % params.splits};
}

// The range of items of this block, or of both blocks of its cluster: an equal share.
struct PanelItemRange {
  int begin;
  int end;
};
template <bool kQuantize>
__device__ __forceinline__ PanelItemRange panel_items_of_block(const PanelMatMulParams& params) {
  constexpr int kBlocks = kQuantize ? 2 : 1;
  const int items = kQuantize ? params.panels / 2 : params.panels * params.splits;
  const auto share = [&params, items](int owner) {
    return static_cast<int>(static_cast<long long>(items) * owner / (params.num_blocks / kBlocks));
  };
  const int owner = (static_cast<int>(blockIdx.x) - params.first_block) / kBlocks;
  return {share(owner), share(owner + 1)};
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

// Where the tiles of this block lie, one after the other.
template <bool kQuantize>
class PanelTileSource {
 public:
  __device__ __forceinline__ explicit PanelTileSource(const PanelMatMulParams& params)
      : params_(params), item_(panel_items_of_block<kQuantize>(params).begin) {
    start_item();
  }

  const __device__ __forceinline__ uint8_t* weights() const { return weights_; }
  const __device__ __forceinline__ uint8_t* activations() const { return activations_; }
  __device__ __forceinline__ void next() {
    weights_ += kPanelTileBytes;
    activations_ += params_.block_bytes;
    if (++tile_ < params_.tiles / params_.splits) return;
    ++item_;
    start_item();
  }

 private:
  __device__ __forceinline__ void start_item() {
    const PanelItem item = panel_item<kQuantize>(params_, item_);
    const int first = item.split * (params_.tiles / params_.splits);
    const int group = item.panel / (params_.panels / params_.groups);
    weights_ = params_.weights +
               (static_cast<size_t>(item.panel) * params_.tiles + first) * kPanelTileBytes;
    activations_ =
        params_.x + (static_cast<size_t>(group) * params_.tiles + first) * params_.block_bytes;
    tile_ = 0;
  }

  const PanelMatMulParams& params_;
  int item_;
  int tile_ = 0;
  const uint8_t* weights_ = nullptr;
  const uint8_t* activations_ = nullptr;
};

// Feeds the ring. One thread.
template <bool kQuantize>
__device__ __forceinline__ void produce_panel_stages(const PanelMatMulParams& params,
                                                     uint32_t ring,
                                                     int stage_bytes,
                                                     uint32_t full,
                                                     uint32_t empty) {
  const uint64_t once = evict_first_policy(), again = evict_last_policy();
  const PanelItemRange items = panel_items_of_block<kQuantize>(params);
  const int num_tiles = (items.end - items.begin) * (params.tiles / params.splits);
  const int ahead = min(num_tiles, params.ring_stages);
  PanelTileSource<kQuantize> source(params);
  for (int slot = 0; slot < ahead; ++slot, source.next()) {
    barrier_arrive_expect(full + 8 * slot, kPanelTileBytes + params.block_bytes);
    bulk_copy_to_shared(
        ring + slot * stage_bytes, source.weights(), kPanelTileBytes, full + 8 * slot, once);
  }
  wait_for_predecessors();
  PanelTileSource<kQuantize> first(params);
  for (int slot = 0; slot < ahead; ++slot, first.next()) {
    bulk_copy_to_shared(ring + slot * stage_bytes + kPanelTileBytes,
                        first.activations(),
                        params.block_bytes,
                        full + 8 * slot,
                        again);
  }
  PanelRingPlace place{0, 0};
  for (int tile = ahead; tile < num_tiles; ++tile, source.next()) {
    const uint32_t stage = ring + place.slot * stage_bytes, barrier = full + 8 * place.slot;
    barrier_wait(empty + 8 * place.slot, place.parity);
    barrier_arrive_expect(barrier, kPanelTileBytes + params.block_bytes);
    bulk_copy_to_shared(stage, source.weights(), kPanelTileBytes, barrier, once);
    bulk_copy_to_shared(
        stage + kPanelTileBytes, source.activations(), params.block_bytes, barrier, again);
    place.advance(1, params.ring_stages);
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

// Multiplies the next kTiles stages of this warpgroup and adds them to `acc` with their scales.
//   weight_scales: lane i holds the scale of this warpgroup's i-th tile; index: of the first
template <int kTiles, int kColumns>
__device__ __forceinline__ void multiply_fp8_stages(const PanelRing& ring,
                                                    PanelRingPlace& place,
                                                    int index,
                                                    float weight_scales,
                                                    float (&acc)[kColumns / 2]) {
  const int lane = threadIdx.x % 32, t = lane % 4;
  float d[kTiles][kColumns / 2];
  int slots[kTiles];
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    barrier_wait(ring.full + 8 * place.slot, place.parity);
    slots[i] = place.slot;
    place.advance(kPanelWarpgroups, ring.num_stages);
  }
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const auto stage = static_cast<uint32_t>(slots[i] * (ring.stage_bytes / 16));
    const uint64_t a = ring.weights + stage, b = ring.activations + stage;
    wgmma_e4m3_first(d[i], a, b);
    wgmma_e4m3_add(d[i], a + kPanelWeightStep, b + ring.chunk_step);
    wgmma_e4m3_add(d[i], a + 2 * kPanelWeightStep, b + 2 * ring.chunk_step);
    wgmma_e4m3_add(d[i], a + 3 * kPanelWeightStep, b + 3 * ring.chunk_step);
  }
  wgmma_commit();
  wgmma_wait<0>();
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    hold(d[i]);
    const float weight_scale = __shfl_sync(~0U, weight_scales, index + i);
    const float* const scales = reinterpret_cast<const float*>(
        ring.stages + slots[i] * ring.stage_bytes + ring.scale_offset);
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      // Columns beyond the tokens take whatever lies there; nobody reads their sums.
      const float first = scales[j * 8 + 2 * t] * weight_scale;
      const float second = scales[j * 8 + 2 * t + 1] * weight_scale;
      acc[j * 4 + 0] = fmaf(first, d[i][j * 4 + 0], acc[j * 4 + 0]);
      acc[j * 4 + 1] = fmaf(second, d[i][j * 4 + 1], acc[j * 4 + 1]);
      acc[j * 4 + 2] = fmaf(first, d[i][j * 4 + 2], acc[j * 4 + 2]);
      acc[j * 4 + 3] = fmaf(second, d[i][j * 4 + 3], acc[j * 4 + 3]);
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(ring.empty + 8 * slots[i]);
  }
}

// Multiplies the next kTiles stages of this warpgroup, term by term, and adds them to `acc`.
template <int kTiles, int kColumns>
__device__ __forceinline__ void multiply_bf16_stages(const PanelRing& ring,
                                                     PanelRingPlace& place,
                                                     float (&acc)[kColumns / 2]) {
  int slots[kTiles];
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    barrier_wait(ring.full + 8 * place.slot, place.parity);
    slots[i] = place.slot;
    place.advance(kPanelWarpgroups, ring.num_stages);
  }
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
  __syncwarp();
  if (threadIdx.x % 32 != 0) return;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) barrier_arrive(ring.empty + 8 * slots[i]);
}

// Writes the f32 sums of a panel. `row`: this thread's first row, the other is 8 on.
template <int kColumns>
__device__ __forceinline__ void store_panel_sums(const PanelMatMulParams& params,
                                                 const float (&sum)[kColumns / 2],
                                                 PanelItem item,
                                                 int row,
                                                 int t) {
  const int n = params.panels * 64;
#pragma unroll
  for (int i = 0; i < kColumns / 4; ++i) {
    const int column = i / 2 * 8 + 2 * t + i % 2;
    if (column >= params.m) continue;
    float* const y = params.y + (static_cast<size_t>(item.split) * params.m + column) * n;
    y[row] = sum[i / 2 * 4 + i % 2];
    y[row + 8] = sum[i / 2 * 4 + 2 + i % 2];
  }
}

// A finished panel that waits for the other block's largest magnitudes. One warpgroup.
template <int kColumns>
struct Fp8PendingPanel {
  float sum[kColumns / 2];
  int panel = -1;
  int round = 0;  // which item of this block

  // Tells both blocks this panel's largest magnitudes.
  __device__ __forceinline__ void announce(Fp8Exchange<kColumns>& exchange) const {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32 % 4;
    float2 amax[kColumns / 8];
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      amax[j].x = fmaxf(fabsf(sum[j * 4 + 0]), fabsf(sum[j * 4 + 2]));
      amax[j].y = fmaxf(fabsf(sum[j * 4 + 1]), fabsf(sum[j * 4 + 3]));
#pragma unroll
      for (int step = 4; step < 32; step *= 2) {
        amax[j].x = fmaxf(amax[j].x, __shfl_xor_sync(~0U, amax[j].x, step));
        amax[j].y = fmaxf(amax[j].y, __shfl_xor_sync(~0U, amax[j].y, step));
      }
    }
    constexpr int kBytes = 2 * 4 * kColumns * 4;  // of both blocks' warps
    const uint32_t barrier = shared_address(&exchange.barriers[round % kFp8ExchangeBuffers]);
    if (threadIdx.x % 128 == 0) barrier_arrive_expect(barrier, kBytes);
    if (g != 0) return;
    const uint32_t mine =
        shared_address(exchange.amax[round % kFp8ExchangeBuffers][cluster_rank()][warp]);
#pragma unroll
    for (uint32_t block = 0; block < 2; ++block) {
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
        store_async(shared_address_of_rank(mine + (j * 8 + 2 * t) * 4, block),
                    amax[j],
                    shared_address_of_rank(barrier, block));
      }
    }
  }

  // Waits for the other block's, quantises the panel and writes codes and, from block 0, scales.
  __device__ __forceinline__ void store(const PanelMatMulParams& params,
                                        const Fp8Exchange<kColumns>& exchange) {
    if (panel < 0) return;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32 % 4;
    barrier_wait(shared_address(&exchange.barriers[round % kFp8ExchangeBuffers]),
                 round / kFp8ExchangeBuffers % 2);
    uint8_t* const block = params.y_fp8 + static_cast<size_t>(panel / 2) * params.block_bytes;
    uint8_t* const chunk = block + (panel % 2 * 4 + warp) * params.m * 16;  // of this warp's rows
    auto* const scales = reinterpret_cast<float*>(block + params.m * 128);
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) {
      const int column = i / 2 * 8 + 2 * t + i % 2;
      float largest = 0;
#pragma unroll
      for (int part = 0; part < 8; ++part) {
        largest =
            fmaxf(largest, exchange.amax[round % kFp8ExchangeBuffers][part / 4][part % 4][column]);
      }
      if (column >= params.m) continue;
      const uint32_t exponent = e4m3_scale_exponent(largest);
      const float inverse = inverse_power_of_two(exponent);
      const uint32_t codes =
          to_e4m3x2(sum[i / 2 * 4 + i % 2] * inverse, sum[i / 2 * 4 + 2 + i % 2] * inverse);
      chunk[column * 16 + g] = static_cast<uint8_t>(codes & 0xFF);
      chunk[column * 16 + g + 8] = static_cast<uint8_t>(codes >> 8);
      if (panel % 2 == 0 && warp == 0 && g == 0) scales[column] = power_of_two(exponent);
    }
  }
};

// What a block does. 256 consumers and one producer warp.
template <int kColumns, PanelMath kMath, bool kQuantize>
__device__ __forceinline__ void multiply_panels(const PanelMatMulParams& params) {
  using Memory = PanelMatMulMemory<kColumns>;
  constexpr int kAccumulators = kColumns / 2;
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ __align__(8) uint64_t barriers[2 * kPanelMaxStages];
  __shared__ __align__(8) Fp8Exchange<kColumns> exchange;
  const int stage_bytes = Memory::stage_bytes(params.block_bytes, params.m);
  uint8_t* const stages = memory;
  float* const partials = reinterpret_cast<float*>(stages + params.ring_stages * stage_bytes);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = lane % 4;
  const int group = warp / 4;
  uint32_t full = shared_address(barriers), empty = full + 8 * kPanelMaxStages;
  uint32_t ring_address = shared_address(stages);
  keep_in_register(full);
  keep_in_register(empty);
  keep_in_register(ring_address);
  if (threadIdx.x == 0) {
    for (int i = 0; i < params.ring_stages; ++i) {
      barrier_init(full + 8 * i, 1);
      barrier_init(empty + 8 * i, 4);
    }
    if constexpr (kQuantize) {
      for (uint64_t& barrier : exchange.barriers) {
        barrier_init(shared_address(&barrier), 1);
      }
    }
    fence_barrier_init();
  }
  launch_dependents();
  if constexpr (kQuantize) {
    cluster_arrive();
    cluster_wait();
  } else {
    __syncthreads();
  }

  if (warp == kPanelWarpgroups * 4) {
    if (lane == 0) {
      produce_panel_stages<kQuantize>(params, ring_address, stage_bytes, full, empty);
    }
    return;
  }

  const PanelRing ring{
      .stages = stages,
      .stage_bytes = stage_bytes,
      .num_stages = params.ring_stages,
      .weights = core_matrix_descriptor(ring_address, 1024, 128),
      .activations = core_matrix_descriptor(ring_address + kPanelTileBytes, params.m * 16, 128),
      .chunk_step = static_cast<uint32_t>(2 * params.m),
      .scale_offset = kPanelTileBytes + params.m * 128,
      .full = full,
      .empty = empty};
  const PanelItemRange items = panel_items_of_block<kQuantize>(params);
  const int item_tiles = params.tiles / params.splits;
  const auto read_weight_scales = [&](int i) {
    if constexpr (kMath != PanelMath::kFp8) return 0.0f;
    const PanelItem item = panel_item<kQuantize>(params, i);
    const int tile = kPanelWarpgroups * lane + group;
    return tile < item_tiles ? __ldg(params.weight_scales + item.panel * params.tiles +
                                     item.split * item_tiles + tile)
                             : 0.0f;
  };
  float next_scales = items.begin < items.end ? read_weight_scales(items.begin) : 0.0f;

  PanelRingPlace place{group, 0};
  Fp8PendingPanel<kColumns> pending;
  for (int i = items.begin; i < items.end; ++i) {
    const float weight_scales = next_scales;
    if (i + 1 < items.end) next_scales = read_weight_scales(i + 1);
    const int own_tiles = item_tiles / kPanelWarpgroups;
    float acc[kAccumulators] = {};
    int index = 0;
    for (; index + 1 < own_tiles; index += 2) {
      if constexpr (kMath == PanelMath::kFp8) {
        multiply_fp8_stages<2, kColumns>(ring, place, index, weight_scales, acc);
      } else {
        multiply_bf16_stages<2, kColumns>(ring, place, acc);
      }
    }
    if (index < own_tiles) {
      if constexpr (kMath == PanelMath::kFp8) {
        multiply_fp8_stages<1, kColumns>(ring, place, index, weight_scales, acc);
      } else {
        multiply_bf16_stages<1, kColumns>(ring, place, acc);
      }
    }

    // The warpgroups finish panels in turns; two terms have the same sum in either order.
    const int round = i - items.begin, finisher = round % kPanelWarpgroups;
    float4* const panel_partials = reinterpret_cast<float4*>(partials) +
                                   (finisher * 128 + threadIdx.x % 128) * (kAccumulators / 4);
    if (group != finisher) {
#pragma unroll
      for (int j = 0; j < kAccumulators; j += 4) {
        panel_partials[j / 4] = {acc[j], acc[j + 1], acc[j + 2], acc[j + 3]};
      }
    }
    named_barrier_sync(1, kPanelConsumers);
    if (group != finisher) continue;
#pragma unroll
    for (int j = 0; j < kAccumulators; j += 4) {
      const float4 other = panel_partials[j / 4];
      acc[j] += other.x;
      acc[j + 1] += other.y;
      acc[j + 2] += other.z;
      acc[j + 3] += other.w;
    }
    const PanelItem item = panel_item<kQuantize>(params, i);
    if constexpr (kQuantize) {
      Fp8PendingPanel<kColumns> finished{.panel = item.panel, .round = round};
#pragma unroll
      for (int j = 0; j < kAccumulators; ++j) finished.sum[j] = acc[j];
      finished.announce(exchange);
      pending.store(params, exchange);
      pending = finished;
    } else {
      const int row = item.panel * 64 + warp % 4 * 16 + lane / 4;
      store_panel_sums<kColumns>(params, acc, item, row, t);
    }
  }
  if constexpr (kQuantize) pending.store(params, exchange);
}

template <int kColumns, PanelMath kMath, bool kQuantize>
__global__ void __launch_bounds__(kPanelConsumers + 32, 2)
    panel_matmul(const PanelMatMulParams params) {
  multiply_panels<kColumns, kMath, kQuantize>(params);
}

// An FP8 product in the first blocks, a BF16 one in the others.
template <int kColumns>
__global__ void __launch_bounds__(kPanelConsumers + 32, 2)
    panel_matmul_pair(const PanelMatMulParams fp8, const PanelMatMulParams bf16) {
  if (static_cast<int>(blockIdx.x) < fp8.num_blocks) {
    multiply_panels<kColumns, PanelMath::kFp8, false>(fp8);
  } else {
    multiply_panels<kColumns, PanelMath::kBf16Terms, false>(bf16);
  }
}

}  // namespace nibble::kernels::cuda
