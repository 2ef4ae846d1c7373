// The expert product of sm_90a for many rows per expert, MXFP4. Design: spec "kernels" 4.4.
//
// A unit is a slot of up to kMaxRows rows and two panels: 128 weight rows, 64 for each of two
// consumer warpgroups, in steps of 128 k. Four warpgroups hand operands on through rings in shared
// memory: producers gather rows of x into core-matrix order; decoders expand weights, whose bulk
// copies one of their threads begins, to E5M2, once for all rows of the slot; consumers multiply
// both in groups of 64 columns, as many as the slot needs, and scale the sums of each step while
// the other consumers' products run. Units go round the blocks in order, so that blocks that run
// together share rows of x in the L2 cache.
//
// Each sum is one chain over blocks of 128 k. Columns beyond the slot's rows hold what was there
// before; nobody sees them. Bytes: 0.53 per weight and slot, k per row and two panels from L2.
// FLOPs: 2 n k per pair.
#pragma once

#include "kernels/cuda/sm90/expert_matmul/formats.cuh"

namespace nibble::kernels::cuda {

inline constexpr int kWarpgroup = 128;
inline constexpr int kPrefillThreads = 4 * kWarpgroup;  // consumers twice, decoders, producers
inline constexpr int kStepK = 128;
inline constexpr int kColumnGroup = 64;

// Shared memory of a block.
template <int kMaxRows>
struct PrefillLayout {
  static constexpr int kRowTileStride = kMaxRows * 16 + 64;  // of 16 k; 64: so that the 8 chunks of
                                                             // a row are in different banks
  static constexpr int kRowBytes = kStepK / 16 * kRowTileStride + kMaxRows * 4;  // and scales
  static constexpr int kWeightTileStride = 128 * 16;                             // decoded
  static constexpr int kWeightBytes = kStepK / 16 * kWeightTileStride;
  static constexpr int kPanelBytes = 4 * Mxfp4Panels::kSlabBytes;  // packed, two steps
  static constexpr int kPackedBytes = 2 * kPanelBytes;

  static constexpr int kRowSlots = kMaxRows == 256 ? 3 : 4;
  static constexpr int kWeightSlots = 2;
  static constexpr int kPackedSlots = kMaxRows == 256 ? 3 : kMaxRows == 128 ? 5 : 6;
  // What the producers may be ahead in units, which have two steps at least, and one more.
  static constexpr int kUnitSlots = 4;

  static constexpr int kWeightsAt = kRowSlots * kRowBytes;
  static constexpr int kPackedAt = kWeightsAt + kWeightSlots * kWeightBytes;
  static constexpr int kUnitsAt = kPackedAt + kPackedSlots * kPackedBytes;
  static constexpr int kUnitBytes = 16 + kMaxRows * 8;
  static constexpr int kBytes = kUnitsAt + kUnitSlots * kUnitBytes;
  static_assert(kBytes <= 226 << 10);

  // Barriers: full ones, then empty ones.
  static constexpr int kRowBarriers = 0;
  static constexpr int kWeightBarriers = 2 * kRowSlots;
  static constexpr int kPackedBarriers = kWeightBarriers + 2 * kWeightSlots;
  static constexpr int kBarriers = kPackedBarriers + 2 * kPackedSlots;
};

// A ring that this thread walks around.
template <int kSlots>
struct RingWalk {
  uint32_t barriers;  // of the full slots; then of the empty ones
  int slot = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ uint32_t full() const { return barriers + 8 * slot; }
  __device__ __forceinline__ uint32_t empty() const { return barriers + 8 * (kSlots + slot); }
  __device__ __forceinline__ void wait_full() const { barrier_wait(full(), parity); }
  __device__ __forceinline__ void wait_empty() const { barrier_wait(empty(), parity ^ 1); }
  __device__ __forceinline__ void next() {
    if (++slot == kSlots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// What the producers tell the consumers of a unit.
struct PrefillUnit {
  int rows;
  int expert;
  int unused[2];
};

struct PrefillShape {
  int pairs_of_panels;  // of a slot
  int panels;
  int steps;      // of k
  int num_units;  // of all blocks
};
__device__ __forceinline__ PrefillShape prefill_shape(const ExpertMatMulParams& params) {
  const int panels = params.n / 64, pairs_of_panels = (panels + 1) / 2;
  return {.pairs_of_panels = pairs_of_panels,
          .panels = panels,
          .steps = params.k / kStepK,
          .num_units = __ldcg(params.slot_count) * pairs_of_panels};
}

// Fills the ring of rows; all producers together.
template <int kMaxRows>
__device__ __forceinline__ void produce_rows(const ExpertMatMulParams& params,
                                             uint8_t* memory,
                                             uint32_t barriers) {
  using Layout = PrefillLayout<kMaxRows>;
  constexpr int kColumns = (kMaxRows + kWarpgroup - 1) / kWarpgroup;  // of this thread
  constexpr int kUnderWay = Layout::kRowSlots - 2;                    // steps, before the newest
  constexpr int kProducers = 1;                                       // named barrier
  const int thread = threadIdx.x % kWarpgroup, chunk = thread % 8, first_row = thread / 8;
  const int groups = params.k / 128;
  const uint32_t base = shared_address(memory);
  wait_for_predecessors();
  const PrefillShape shape = prefill_shape(params);
  RingWalk<Layout::kRowSlots> ring{barriers + 8 * Layout::kRowBarriers};
  RingWalk<Layout::kRowSlots> signals = ring;  // kUnderWay steps behind
  constexpr int kRowsPerThread = kMaxRows / (kWarpgroup / 8);
  int unit_slot = 0, begun = 0;
  for (int unit = static_cast<int>(blockIdx.x); unit < shape.num_units;
       unit += static_cast<int>(gridDim.x)) {
    const int slot = unit / shape.pairs_of_panels;
    const int* const pairs = params.slot_pairs + static_cast<size_t>(slot) * kMaxRows;
    uint8_t* const info = memory + Layout::kUnitsAt + unit_slot * Layout::kUnitBytes;
    int2* const columns = reinterpret_cast<int2*>(info + sizeof(PrefillUnit));
    // Pairs come first in a slot, so that their number is that of the rows.
    int rows = 0;
    uint32_t scale_offset[kColumns];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int column = thread + i * kWarpgroup;
      const int pair = column < kMaxRows ? __ldcg(pairs + column) : -1;
      const float weight =
          pair < 0 || params.pair_weights == nullptr ? 1.0f : __ldcg(params.pair_weights + pair);
      if (column < kMaxRows) columns[column] = {pair, __float_as_int(weight)};
      scale_offset[i] = pair < 0 ? 0 : static_cast<uint32_t>(pair / params.pairs_per_row * groups);
      rows += named_barrier_count(kProducers, kWarpgroup, pair >= 0);
    }
    if (thread == 0) {
      *reinterpret_cast<PrefillUnit*>(info) = {rows, __ldcg(params.slot_experts + slot), {}};
    }
    if (++unit_slot == Layout::kUnitSlots) unit_slot = 0;
    uint32_t row_offset[kRowsPerThread];  // in units of 16 bytes, this thread's chunk
#pragma unroll
    for (int i = 0; i < kRowsPerThread; ++i) {
      const int row = first_row + i * (kWarpgroup / 8);
      const int x_row = row < rows ? columns[row].x / params.pairs_per_row : 0;
      row_offset[i] = static_cast<uint32_t>(x_row) * static_cast<uint32_t>(params.k / 16) +
                      static_cast<uint32_t>(chunk);
    }
    for (int step = 0; step < shape.steps; ++step) {
      ring.wait_empty();
      const uint32_t at = base + ring.slot * Layout::kRowBytes;
      const uint8_t* const source = params.x_codes + step * kStepK;
      const uint32_t to = at + chunk * Layout::kRowTileStride + first_row * 16;
#pragma unroll
      for (int i = 0; i < kRowsPerThread; ++i) {
        if (first_row + i * (kWarpgroup / 8) >= rows) continue;
        copy_16_to_shared(to + i * (kWarpgroup / 8) * 16,
                          source + static_cast<size_t>(row_offset[i]) * 16);
      }
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const int column = thread + i * kWarpgroup;
        if (column < rows) {
          copy_4_to_shared(at + kStepK / 16 * Layout::kRowTileStride + column * 4,
                           params.x_scales + scale_offset[i] + step);
        }
      }
      commit_copies();
      ring.next();
      if (++begun <= kUnderWay) continue;
      wait_for_copies<kUnderWay>();
      fence_async_proxy();
      barrier_arrive(signals.full());
      signals.next();
    }
  }
  wait_for_copies<0>();
  fence_async_proxy();
  for (int i = min(begun, kUnderWay); i > 0; --i) {
    barrier_arrive(signals.full());
    signals.next();
  }
}

// Begins the bulk copies of packed weights, stage by stage in the order of the units.
template <int kMaxRows>
struct PackedWeights {
  using Layout = PrefillLayout<kMaxRows>;
  RingWalk<Layout::kPackedSlots> ring;
  int unit;
  int stage = 0;
  int expert = 0;
  int next_expert = 0;  // of the next unit, read ahead

  __device__ __forceinline__ int expert_of(const ExpertMatMulParams& params,
                                           const PrefillShape& shape,
                                           int of_unit) const {
    return of_unit < shape.num_units ? __ldcg(params.slot_experts + of_unit / shape.pairs_of_panels)
                                     : 0;
  }
  __device__ __forceinline__ void start(const ExpertMatMulParams& params,
                                        const PrefillShape& shape) {
    expert = expert_of(params, shape, unit);
    next_expert = expert_of(params, shape, unit + static_cast<int>(gridDim.x));
  }
  __device__ __forceinline__ void copy_next(const ExpertMatMulParams& params,
                                            const PrefillShape& shape,
                                            uint32_t packed,
                                            uint64_t policy) {
    if (unit >= shape.num_units) return;
    const int stages = shape.steps / 2;
    const int panel = unit % shape.pairs_of_panels * 2;
    const int num_panels = panel + 1 < shape.panels ? 2 : 1;
    ring.wait_empty();
    barrier_arrive_expect(ring.full(), num_panels * Layout::kPanelBytes);
    for (int i = 0; i < num_panels; ++i) {
      const uint8_t* const source =
          params.weights +
          ((static_cast<size_t>(expert) * shape.panels + panel + i) * stages + stage) *
              Layout::kPanelBytes;
      bulk_copy_to_shared(packed + ring.slot * Layout::kPackedBytes + i * Layout::kPanelBytes,
                          source,
                          Layout::kPanelBytes,
                          ring.full(),
                          policy);
    }
    ring.next();
    if (++stage < stages) return;
    stage = 0;
    unit += static_cast<int>(gridDim.x);
    expert = next_expert;
    next_expert = expert_of(params, shape, unit + static_cast<int>(gridDim.x));
  }
};

// Turns packed weights into decoded ones; all decoders together.
template <int kMaxRows>
__device__ __forceinline__ void decode_weights(const ExpertMatMulParams& params,
                                               uint8_t* memory,
                                               uint32_t barriers) {
  using Layout = PrefillLayout<kMaxRows>;
  constexpr int kTile = Layout::kWeightTileStride;
  const int lane = threadIdx.x % 32, slab = threadIdx.x / 32 % 4;
  const bool is_copier = threadIdx.x % kWarpgroup == 0;
  const uint32_t packed_address = shared_address(memory + Layout::kPackedAt);
  const uint64_t policy = evict_first_policy();
  wait_for_predecessors();
  const PrefillShape shape = prefill_shape(params);
  RingWalk<Layout::kPackedSlots> packed{barriers + 8 * Layout::kPackedBarriers};
  RingWalk<Layout::kWeightSlots> weights{barriers + 8 * Layout::kWeightBarriers};
  PackedWeights<kMaxRows> copies{.ring = packed, .unit = static_cast<int>(blockIdx.x)};
  if (is_copier) {
    copies.start(params, shape);
    for (int i = 0; i < Layout::kPackedSlots; ++i) {
      copies.copy_next(params, shape, packed_address, policy);
    }
  }
  for (int unit = static_cast<int>(blockIdx.x); unit < shape.num_units;
       unit += static_cast<int>(gridDim.x)) {
    for (int step = 0; step < shape.steps; step += 2) {
      packed.wait_full();
      // Both panels, also where the second is none: nobody sees those rows.
      const uint8_t* const slabs = memory + Layout::kPackedAt + packed.slot * Layout::kPackedBytes +
                                   slab * Mxfp4Panels::kSlabBytes;
      uint4 scales[2], words[2][2];
#pragma unroll
      for (int panel = 0; panel < 2; ++panel) {
        scales[panel] = Mxfp4Panels::scales_of(slabs + panel * Layout::kPanelBytes, lane);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // All reads before the writes, which the compiler would not swap.
#pragma unroll
        for (int panel = 0; panel < 2; ++panel) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            words[panel][c] =
                Mxfp4Panels::words_of(slabs + panel * Layout::kPanelBytes, 2 * half + c, lane);
          }
        }
        weights.wait_empty();
        uint8_t* const to = memory + Layout::kWeightsAt + weights.slot * Layout::kWeightBytes +
                            slab * 16 * 16 + lane * 4;  // row lane / 4, k 4 (lane % 4)
#pragma unroll
        for (int panel = 0; panel < 2; ++panel) {
          uint32_t a[16];
          Mxfp4Panels::decode_words(half, words[panel], scales[panel], a);
#pragma unroll
          for (int i = 0; i < 16; ++i) {
            const int tile = i / 4 * 2 + i % 4 / 2;
            *reinterpret_cast<uint32_t*>(to + panel * 64 * 16 + tile * kTile + i % 2 * 128) = a[i];
          }
        }
        fence_async_proxy();
        __syncwarp();
        if (lane == 0) barrier_arrive(weights.full());
        weights.next();
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(packed.empty());
      packed.next();
      if (is_copier) copies.copy_next(params, shape, packed_address, policy);
    }
  }
}

// Multiplies and writes; each warpgroup one panel of a unit.
template <int kMaxRows>
__device__ __forceinline__ void consume(const ExpertMatMulParams& params,
                                        const uint8_t* memory,
                                        uint32_t barriers) {
  using Layout = PrefillLayout<kMaxRows>;
  constexpr int kGroups = kMaxRows / kColumnGroup;
  constexpr int kAccumulators = kColumnGroup / 2;
  constexpr uint64_t kRowStep = 2 * Layout::kRowTileStride / 16;  // of 32 k
  constexpr uint64_t kWeightStep = 2 * Layout::kWeightTileStride / 16;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int group = warp / 4;
  wait_for_predecessors();
  const PrefillShape shape = prefill_shape(params);
  RingWalk<Layout::kRowSlots> rows{barriers + 8 * Layout::kRowBarriers};
  RingWalk<Layout::kWeightSlots> weights{barriers + 8 * Layout::kWeightBarriers};
  const uint32_t base = shared_address(memory);
  const uint64_t first_rows = core_matrix_descriptor(base, Layout::kRowTileStride, 128);
  const uint64_t first_weights = core_matrix_descriptor(
      base + Layout::kWeightsAt + group * 64 * 16, Layout::kWeightTileStride, 128);
  int unit_slot = 0;
  for (int unit = static_cast<int>(blockIdx.x); unit < shape.num_units;
       unit += static_cast<int>(gridDim.x)) {
    rows.wait_full();
    const uint8_t* const info = memory + Layout::kUnitsAt + unit_slot * Layout::kUnitBytes;
    const int2* const columns = reinterpret_cast<const int2*>(info + sizeof(PrefillUnit));
    const PrefillUnit own = *reinterpret_cast<const PrefillUnit*>(info);
    if (++unit_slot == Layout::kUnitSlots) unit_slot = 0;
    const int panel = unit % shape.pairs_of_panels * 2 + group;
    const int slab = panel * 4 + warp % 4;
    const bool has_panel = panel < shape.panels;
    const float* const multipliers =
        params.row_multipliers + static_cast<size_t>(own.expert) * params.n + slab * 16;
    const float top = has_panel ? __ldg(multipliers + g) : 0;
    const float bottom = has_panel ? __ldg(multipliers + g + 8) : 0;
    float acc[kGroups][kAccumulators] = {};
    for (int step = 0; step < shape.steps; ++step) {
      rows.wait_full();
      weights.wait_full();
      const uint64_t a =
          first_weights + static_cast<uint64_t>(weights.slot) * (Layout::kWeightBytes / 16);
      const uint64_t b = first_rows + static_cast<uint64_t>(rows.slot) * (Layout::kRowBytes / 16);
      const float* const scales = reinterpret_cast<const float*>(
          memory + rows.slot * Layout::kRowBytes + kStepK / 16 * Layout::kRowTileStride);
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        if (i * kColumnGroup >= own.rows) continue;
        const uint64_t columns_b = b + static_cast<uint64_t>(i * kColumnGroup);
        float d[kAccumulators];
        wgmma_fence();
        wgmma_e5m2_e4m3_ss_first(d, a, columns_b);
        wgmma_e5m2_e4m3_ss_add(d, a + kWeightStep, columns_b + kRowStep);
        wgmma_e5m2_e4m3_ss_add(d, a + 2 * kWeightStep, columns_b + 2 * kRowStep);
        wgmma_e5m2_e4m3_ss_add(d, a + 3 * kWeightStep, columns_b + 3 * kRowStep);
        wgmma_commit();
        wgmma_wait<0>();
        hold(d);
        promote<false>(acc[i], d, scales + i * kColumnGroup, t);
      }
      __syncwarp();
      if (lane == 0) {
        barrier_arrive(rows.empty());
        barrier_arrive(weights.empty());
      }
      rows.next();
      weights.next();
    }
    if (!has_panel) continue;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      if (i * kColumnGroup >= own.rows) continue;
#pragma unroll
      for (int j = 0; j < kAccumulators / 2; ++j) {
        const int column = i * kColumnGroup + j / 2 * 8 + 2 * t + j % 2;
        if (column >= own.rows) continue;
        const int2 pair = columns[column];
        const int at = j / 2 * 4 + j % 2;
        store_column(params,
                     acc[i][at] * top,
                     acc[i][at + 2] * bottom,
                     pair.x,
                     __int_as_float(pair.y),
                     slab,
                     g);
      }
    }
  }
}

template <int kMaxRows>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    expert_prefill(const ExpertMatMulParams params) {
  using Layout = PrefillLayout<kMaxRows>;
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ __align__(8) uint64_t barriers[Layout::kBarriers];
  const uint32_t first = shared_address(barriers);
  if (threadIdx.x == 0) {
    const auto init = [&](int at, int slots, int full_arrivals, int empty_arrivals) {
      for (int i = 0; i < slots; ++i) {
        barrier_init(first + 8 * (at + i), full_arrivals);
        barrier_init(first + 8 * (at + slots + i), empty_arrivals);
      }
    };
    constexpr int kConsumerWarps = 8, kDecoderWarps = 4;
    init(Layout::kRowBarriers, Layout::kRowSlots, kWarpgroup, kConsumerWarps);
    init(Layout::kWeightBarriers, Layout::kWeightSlots, kDecoderWarps, kConsumerWarps);
    init(Layout::kPackedBarriers, Layout::kPackedSlots, 1, kDecoderWarps);
    fence_barrier_init();
  }
  launch_dependents();
  __syncthreads();
  if (threadIdx.x < 2 * kWarpgroup) {
    take_registers<200>();
    consume<kMaxRows>(params, memory, first);
  } else if (threadIdx.x < 3 * kWarpgroup) {
    give_registers_back<64>();
    decode_weights<kMaxRows>(params, memory, first);
  } else {
    give_registers_back<48>();
    produce_rows<kMaxRows>(params, memory, first);
  }
}

}  // namespace nibble::kernels::cuda
