// The expert product of sm_90a for many rows per expert. Design: spec "kernels" 4.4.
//
// A unit is a slot of up to kMaxRows rows and kPanels panels of 64 weight rows, one for each
// consumer warpgroup, in steps of 128 k. One more warpgroup fills two rings in shared memory: three
// warps gather rows of x, one lane begins the bulk copies of packed weights. Consumers expand their
// weights to FP8 in registers (NVFP4: to FP16, for which the gatherers widen x), beside the
// products before, multiply them by groups of 64 columns, as many as the slot needs, and scale the
// sums of each step while the other consumers' products run. Units go round the blocks in order, so
// that blocks that run together share rows of x in the L2 cache.
//
// Up to 64 rows a slot, memory is the limit and four panels share the rows that are fetched. For
// more, weights are expanded once for all groups of columns.
//
// Each sum is one chain over blocks of 128 k. Columns beyond the slot's rows hold what was there
// before; nobody sees them. Bytes: 0.53 per weight and slot, k per row and kPanels panels from L2.
// FLOPs: 2 n k per pair.
#pragma once

#include "kernels/cuda/common/wgmma_bf16.cuh"
#include "kernels/cuda/sm90/expert_matmul/prefill_formats.cuh"

namespace nibble::kernels::cuda {

inline constexpr int kWarpgroup = 128;
inline constexpr int kGatherers = 96;  // threads that fetch rows

// A step's codes and scales as they come: each thread widens what it has copied.
template <int kMaxRows>
struct CopiedStep {
  static constexpr int kPassRows = kGatherers / 8;  // a thread has one of 8 chunks of 16 k
  static constexpr int kChunks = (kMaxRows + kPassRows - 1) / kPassRows;  // of a thread
  static constexpr int kScalesAt = kChunks * kGatherers * 16;
  static constexpr int kBytes = kScalesAt + kGatherers * 4;
};

// What a block holds and who works in it.
template <class Format, int kPanelsOfUnit, int kMaxRows>
struct PrefillLayout {
  using Panels = typename Format::Panels;
  static constexpr int kPanels = kPanelsOfUnit;
  static constexpr int kGroups = kMaxRows / kColumnGroup;
  static constexpr bool kWidensRows = Format::kWidensRows;
  static constexpr int kThreads = (kPanels + 1) * kWarpgroup;
  // Registers of a consumer and a producer; a block has as many as it starts with.
  static constexpr int kConsumerRegisters = kPanels == 4 ? 112 : kPanels == 3 ? 152 : 232;
  static constexpr int kProducerRegisters = kPanels == 4 ? 32 : kPanels == 3 ? 56 : 40;

  // Shared memory: rows of a step (kSwizzledRowBytes each, or twice as much in FP16), their scales,
  // packed weights of two steps, what is copied before it is widened, units.
  static constexpr int kTileBytes =
      kMaxRows * static_cast<int>(kSwizzledRowBytes) * (kWidensRows ? 2 : 1);
  static constexpr int kScaleBytes = kMaxRows * 4;
  static constexpr int kPanelBytes = 4 * Panels::kSlabBytes;
  static constexpr int kPackedBytes = kPanels * kPanelBytes;
  static constexpr int kFp8RowSlots = kMaxRows == 256 ? 4 : kMaxRows == 128 ? 6 : 8;
  static constexpr int kRowSlots = kWidensRows ? 4 : kFp8RowSlots;
  static constexpr int kPackedSlots = 4;
  static constexpr int kCopiedSlots = kWidensRows ? 3 : 0;
  // Producers may be ahead by the steps of their ring, two a unit at least, and consumers need
  // their unit until they begin the next.
  static constexpr int kUnitSlots = (kRowSlots + kCopiedSlots) / 2 + 2;
  static constexpr int kUnitBytes = 16 + kMaxRows * 12;

  static constexpr int kScalesAt = kRowSlots * kTileBytes;
  static constexpr int kPackedAt = kScalesAt + kRowSlots * kScaleBytes;
  static constexpr int kCopiedAt = kPackedAt + kPackedSlots * kPackedBytes;
  static constexpr int kUnitsAt = kCopiedAt + kCopiedSlots * CopiedStep<kMaxRows>::kBytes;
  static constexpr int kBytes = kUnitsAt + kUnitSlots * kUnitBytes;
  static_assert(kBytes <= 226 << 10);

  // Barriers: full ones, then empty ones.
  static constexpr int kRowBarriers = 0;
  static constexpr int kPackedBarriers = 2 * kRowSlots;
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

// What the gatherers find out about a unit. Behind it lie the columns' pairs and weights
// (int2 [kMaxRows]) and where their rows of x begin (uint32_t [kMaxRows], in 16 bytes).
struct PrefillUnit {
  int rows;
  int expert;
  int unused[2];
};

struct PrefillShape {
  int panels;      // of a slot
  int slot_units;  // of a slot
  int steps;       // of k
  int num_units;   // of all blocks
};
template <class Layout>
__device__ __forceinline__ PrefillShape prefill_shape(const ExpertMatMulParams& params) {
  const int panels = params.n / 64, slot_units = (panels + Layout::kPanels - 1) / Layout::kPanels;
  return {.panels = panels,
          .slot_units = slot_units,
          .steps = params.k / kStepK,
          .num_units = __ldcg(params.slot_count) * slot_units};
}

// The rows of a unit, and where each begins (in 16 bytes of codes).
struct UnitRows {
  int count;
  const uint32_t* offsets;
};
// Finds them and fills the unit's info; all gatherers together, `thread` of them.
template <int kMaxRows>
__device__ __forceinline__ UnitRows
find_rows(const ExpertMatMulParams& params, int slot, uint8_t* info, int thread) {
  constexpr int kColumns = (kMaxRows + kGatherers - 1) / kGatherers;  // of this thread
  constexpr int kGathererBarrier = 1;
  const int* const pairs = params.slot_pairs + static_cast<size_t>(slot) * kMaxRows;
  int2* const columns = reinterpret_cast<int2*>(info + sizeof(PrefillUnit));
  uint32_t* const offsets = reinterpret_cast<uint32_t*>(columns + kMaxRows);
  // Pairs come first in a slot, so that their number is that of the rows.
  int rows = 0;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int column = thread + i * kGatherers;
    const int pair = column < kMaxRows ? __ldcg(pairs + column) : -1;
    if (pair >= 0) {
      const float weight =
          params.pair_weights == nullptr ? 1.0f : __ldcg(params.pair_weights + pair);
      columns[column] = {pair, __float_as_int(weight)};
      offsets[column] = static_cast<uint32_t>(pair) / static_cast<uint32_t>(params.pairs_per_row) *
                        static_cast<uint32_t>(params.k / 16);
    }
    rows += named_barrier_count(kGathererBarrier, kGatherers, pair >= 0);
  }
  if (thread == 0) {
    *reinterpret_cast<PrefillUnit*>(info) = {rows, __ldcg(params.slot_experts + slot), {}};
  }
  return {rows, offsets};
}

// Fills the ring of rows; all gatherers together, `thread` of them.
template <class Layout, int kMaxRows>
__device__ __forceinline__ void gather_rows(const ExpertMatMulParams& params,
                                            uint8_t* memory,
                                            uint32_t barriers,
                                            int thread) {
  constexpr int kPassRows = kGatherers / 8;        // at a time
  constexpr int kUnroll = kMaxRows == 64 ? 1 : 2;  // as registers allow
  const int chunk = thread % 8, first_row = thread / 8;
  const uint32_t base = shared_address(memory);
  const PrefillShape shape = prefill_shape<Layout>(params);
  RingWalk<Layout::kRowSlots> ring{barriers + 8 * Layout::kRowBarriers};
  int unit_slot = 0;
  for (int unit = static_cast<int>(blockIdx.x); unit < shape.num_units;
       unit += static_cast<int>(gridDim.x)) {
    const UnitRows unit_rows =
        find_rows<kMaxRows>(params,
                            unit / shape.slot_units,
                            memory + Layout::kUnitsAt + unit_slot * Layout::kUnitBytes,
                            thread);
    if (++unit_slot == Layout::kUnitSlots) unit_slot = 0;
    const int rows = unit_rows.count;
    const uint32_t* const offsets = unit_rows.offsets;
    for (int step = 0; step < shape.steps; ++step) {
      ring.wait_empty();
      const uint32_t tile = base + ring.slot * Layout::kTileBytes;
      const uint32_t scales = base + Layout::kScalesAt + ring.slot * Layout::kScaleBytes;
      const auto at = static_cast<uint32_t>(step * (kStepK / 16) + chunk);
#pragma unroll kUnroll
      for (int row = first_row; row < rows; row += kPassRows) {
        const auto to = swizzled_chunk(static_cast<uint32_t>(row), static_cast<uint32_t>(chunk));
        copy_16_to_shared(tile + to, params.x_codes + static_cast<size_t>(offsets[row] + at) * 16);
      }
#pragma unroll 1
      for (int column = thread; column < rows; column += kGatherers) {
        copy_4_to_shared(scales + column * 4, params.x_scales + offsets[column] / 8 + step);
      }
      barrier_arrive_after_copies(ring.full());
      if (thread == 0) barrier_arrive(ring.full());  // what was written above is visible, too
      ring.next();
    }
  }
  wait_for_copies<0>();
}

// A thread's part of the steps on their way into the ring of rows in FP16. A tile has two blocks of
// 64 k. Of each 16 k, 16 bytes hold values 0, 1, 4, 5, 8, 9, 12, 13 and the next 16 the others: a
// thread of a product then multiplies the four values of k that are in one word of its weights.
template <class Layout, int kMaxRows>
struct RowWidener {
  using Step = CopiedStep<kMaxRows>;
  // Eight threads have 64 k of two rows, so that what they write at once lies in different banks.
  int thread, row, block, chunk;
  uint32_t memory;
  uint32_t copied;  // of this thread, in the first slot
  uint32_t place;   // in a tile, of the first half of its first chunk
  RingWalk<Layout::kRowSlots> ring;
  int to = 0, from = 0;             // slots of what is copied
  int num_rows = 0;                 // of the unit that is copied
  uint32_t offsets[Step::kChunks];  // of this thread's rows of it, as in UnitRows
  uint32_t scale_offset = 0;        // of row `thread`, in scales

  __device__ __forceinline__ RowWidener(uint8_t* block_memory, uint32_t barriers, int index)
      : thread(index),
        row(index / 16 * 2 + index / 4 % 2),
        block(index / 8 % 2),
        chunk(index % 4),
        memory(shared_address(block_memory)),
        copied(memory + Layout::kCopiedAt + index * 16),
        place(block * (kMaxRows * kSwizzledRowBytes) +
              swizzled_chunk(static_cast<uint32_t>(row), static_cast<uint32_t>(2 * chunk))),
        ring{barriers + 8 * Layout::kRowBarriers} {}

  static __device__ __forceinline__ void advance(int& slot) {
    if (++slot == Layout::kCopiedSlots) slot = 0;
  }
  __device__ __forceinline__ uint32_t copied_scale(int slot) const {
    return copied + slot * Step::kBytes + Step::kScalesAt - thread * 12;
  }

  __device__ __forceinline__ void begin_unit(const UnitRows& rows) {
    num_rows = rows.count;
#pragma unroll
    for (int i = 0; i < Step::kChunks; ++i) {
      const int own = row + i * Step::kPassRows;
      offsets[i] = own < num_rows ? rows.offsets[own] : 0;
    }
    scale_offset = thread < num_rows ? rows.offsets[thread] / 8 : 0;
  }

  __device__ __forceinline__ void copy(const ExpertMatMulParams& params, int step) {
    const uint32_t codes = copied + to * Step::kBytes;
    const auto at = static_cast<uint32_t>(step * (kStepK / 16) + block * 4 + chunk);
#pragma unroll
    for (int i = 0; i < Step::kChunks; ++i) {
      if (row + i * Step::kPassRows >= num_rows) break;
      copy_16_to_shared(codes + i * kGatherers * 16,
                        params.x_codes + static_cast<size_t>(offsets[i] + at) * 16);
    }
    if (thread < num_rows) {
      copy_4_to_shared(copied_scale(to), params.x_scales + scale_offset + step);
    }
    commit_copies();
    advance(to);
  }

  // Chunk i in FP16 to the tile at `tile`.
  __device__ __forceinline__ void write_chunk(uint32_t tile, int i, const uint4& words) const {
    // From pass to pass the swizzle differs in one bit.
    static_assert(Step::kPassRows % 8 == 4 && kMaxRows <= kGatherers);
    const uint32_t pass = tile + static_cast<uint32_t>(i * Step::kPassRows) * kSwizzledRowBytes;
    const uint32_t first = place ^ (i % 2 == 0 ? 0 : 64);
    write_shared_16(pass + first,
                    {e4m3x2_to_f16x2(words.x),
                     e4m3x2_to_f16x2(words.y),
                     e4m3x2_to_f16x2(words.z),
                     e4m3x2_to_f16x2(words.w)});
    write_shared_16(pass + (first ^ 16),
                    {e4m3x2_to_f16x2(words.x >> 16),
                     e4m3x2_to_f16x2(words.y >> 16),
                     e4m3x2_to_f16x2(words.z >> 16),
                     e4m3x2_to_f16x2(words.w >> 16)});
  }

  // The oldest step that was copied. Rows that are absent become whatever was there before.
  __device__ __forceinline__ void widen() {
    constexpr int kBatch = 2;  // chunks that are read at once, as registers allow
    ring.wait_empty();
    const uint32_t codes = copied + from * Step::kBytes;
    const uint32_t tile = memory + ring.slot * Layout::kTileBytes;
#pragma unroll
    for (int begin = 0; begin < Step::kChunks; begin += kBatch) {
      uint4 words[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        words[i] = read_shared_16(codes + (begin + i) * kGatherers * 16);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (row + (begin + i) * Step::kPassRows < kMaxRows) write_chunk(tile, begin + i, words[i]);
      }
    }
    static_assert(Step::kChunks % kBatch == 0);
    if (thread < kMaxRows) {
      write_shared_4(memory + Layout::kScalesAt + ring.slot * Layout::kScaleBytes + thread * 4,
                     read_shared_4(copied_scale(from)));
    }
    warp_arrive(ring.full(), thread % 32);
    ring.next();
    advance(from);
  }
};

// As gather_rows(), with the rows in FP16: copies are ahead of what is widened. A fence here would
// wait for them, so that consumers have it, as for the rows of other formats.
template <class Layout, int kMaxRows>
__device__ __forceinline__ void widen_rows(const ExpertMatMulParams& params,
                                           uint8_t* memory,
                                           uint32_t barriers,
                                           int thread) {
  constexpr int kAhead = Layout::kCopiedSlots - 1;
  const PrefillShape shape = prefill_shape<Layout>(params);
  RowWidener<Layout, kMaxRows> widener(memory, barriers, thread);
  int unit_slot = 0, num_copied = 0;
  for (int unit = static_cast<int>(blockIdx.x); unit < shape.num_units;
       unit += static_cast<int>(gridDim.x)) {
    widener.begin_unit(
        find_rows<kMaxRows>(params,
                            unit / shape.slot_units,
                            memory + Layout::kUnitsAt + unit_slot * Layout::kUnitBytes,
                            thread));
    if (++unit_slot == Layout::kUnitSlots) unit_slot = 0;
#pragma unroll 1
    for (int step = 0; step < shape.steps; ++step) {
      widener.copy(params, step);
      if (num_copied < kAhead) {
        ++num_copied;
        continue;
      }
      wait_for_copies<kAhead>();
      widener.widen();
    }
  }
  wait_for_copies<0>();
  for (; num_copied > 0; --num_copied) widener.widen();
}

// Fills the ring of packed weights; one thread.
template <class Layout>
__device__ __forceinline__ void copy_weights(const ExpertMatMulParams& params,
                                             uint8_t* memory,
                                             uint32_t barriers) {
  const uint32_t packed = shared_address(memory + Layout::kPackedAt);
  const uint64_t policy = evict_first_policy();
  const PrefillShape shape = prefill_shape<Layout>(params);
  const int stages = shape.steps / 2;
  RingWalk<Layout::kPackedSlots> ring{barriers + 8 * Layout::kPackedBarriers};
  const auto expert_of = [&](int unit) {
    return unit < shape.num_units ? __ldcg(params.slot_experts + unit / shape.slot_units) : 0;
  };
  int next_expert = expert_of(static_cast<int>(blockIdx.x));  // read a unit ahead
  for (int unit = static_cast<int>(blockIdx.x); unit < shape.num_units;
       unit += static_cast<int>(gridDim.x)) {
    const int expert = next_expert, panel = unit % shape.slot_units * Layout::kPanels;
    next_expert = expert_of(unit + static_cast<int>(gridDim.x));
    const int num_panels = min(Layout::kPanels, shape.panels - panel);
    const size_t panel_bytes = static_cast<size_t>(stages) * Layout::kPanelBytes;
    const uint8_t* source =
        params.weights + (static_cast<size_t>(expert) * shape.panels + panel) * panel_bytes;
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage, source += Layout::kPanelBytes) {
      ring.wait_empty();
      barrier_arrive_expect(ring.full(), num_panels * Layout::kPanelBytes);
#pragma unroll 1
      for (int i = 0; i < num_panels; ++i) {
        bulk_copy_to_shared(packed + ring.slot * Layout::kPackedBytes + i * Layout::kPanelBytes,
                            source + i * panel_bytes,
                            Layout::kPanelBytes,
                            ring.full(),
                            policy);
      }
      ring.next();
    }
  }
}

// The rings as a consumer warp reads them.
template <class Layout>
struct PrefillRings {
  const uint8_t* memory;
  uint64_t tiles;        // descriptor of the first slot
  const uint8_t* slabs;  // of this warp, in the first slot
  RingWalk<Layout::kRowSlots> rows;
  RingWalk<Layout::kPackedSlots> packed;

  __device__ __forceinline__ uint64_t tile() const {
    return tiles + static_cast<uint64_t>(rows.slot * (Layout::kTileBytes / 16));
  }
  const __device__ __forceinline__ float* scales() const {
    return reinterpret_cast<const float*>(memory + Layout::kScalesAt +
                                          rows.slot * Layout::kScaleBytes);
  }
  const __device__ __forceinline__ uint8_t* slab() const {
    return slabs + packed.slot * Layout::kPackedBytes;
  }
  template <int kSlots>
  static __device__ __forceinline__ void release(RingWalk<kSlots>& ring, int lane) {
    warp_arrive(ring.empty(), lane);
    ring.next();
  }
};

// Multiplies and writes; warpgroup `group` one panel of a unit.
template <class Format, class Layout, int kMaxRows>
__device__ __forceinline__ void consume(const ExpertMatMulParams& params,
                                        const uint4& tables,
                                        const uint8_t* memory,
                                        uint32_t barriers) {
  constexpr int kAccumulators = kColumnGroup / 2;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int group = warp / 4;
  const PrefillShape shape = prefill_shape<Layout>(params);
  PrefillRings<Layout> rings{
      .memory = memory,
      .tiles = swizzled_descriptor(shared_address(memory), 16),
      .slabs = memory + Layout::kPackedAt + warp * Layout::Panels::kSlabBytes,
      .rows = {barriers + 8 * Layout::kRowBarriers},
      .packed = {barriers + 8 * Layout::kPackedBarriers}};
  int unit_slot = 0;
  for (int unit = static_cast<int>(blockIdx.x); unit < shape.num_units;
       unit += static_cast<int>(gridDim.x)) {
    rings.rows.wait_full();
    const uint8_t* const info = memory + Layout::kUnitsAt + unit_slot * Layout::kUnitBytes;
    if (++unit_slot == Layout::kUnitSlots) unit_slot = 0;
    float acc[Layout::kGroups][kAccumulators] = {};
    const int rows = reinterpret_cast<const PrefillUnit*>(info)->rows;
    Format::multiply(rings, tables, shape.steps / 2, rows, lane, acc);
    const int2* const columns = reinterpret_cast<const int2*>(info + sizeof(PrefillUnit));
    const PrefillUnit own = *reinterpret_cast<const PrefillUnit*>(info);
    const int panel = unit % shape.slot_units * Layout::kPanels + group;
    if (panel >= shape.panels) continue;
    const int slab = panel * 4 + warp % 4;
    const float* const multipliers =
        params.row_multipliers + static_cast<size_t>(own.expert) * params.n + slab * 16;
    const float top = __ldg(multipliers + g) * Layout::Panels::kSumFactor;
    const float bottom = __ldg(multipliers + g + 8) * Layout::Panels::kSumFactor;
#pragma unroll
    for (int i = 0; i < Layout::kGroups; ++i) {
      if (i * kColumnGroup >= own.rows) break;
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

template <class Format, int kPanels, int kMaxRows>
__global__ void __launch_bounds__(PrefillLayout<Format, kPanels, kMaxRows>::kThreads, 1)
    expert_prefill(const ExpertMatMulParams params) {
  using Layout = PrefillLayout<Format, kPanels, kMaxRows>;
  extern __shared__ __align__(1024) uint8_t prefill_memory[];  // as the swizzle wants
  uint8_t* const memory = prefill_memory;
  __shared__ __align__(8) uint64_t barriers[Layout::kBarriers];
  __shared__ uint4 tables;
  const uint32_t first = shared_address(barriers);
  if (threadIdx.x == 0) {
    tables = Format::table_words();
    const auto init = [&](int at, int slots, int full_arrivals) {
      for (int i = 0; i < slots; ++i) {
        barrier_init(first + 8 * (at + i), full_arrivals);
        barrier_init(first + 8 * (at + slots + i), kPanels * 4 * kWarpArrivals);  // consumers
      }
    };
    init(Layout::kRowBarriers,
         Layout::kRowSlots,
         Layout::kWidensRows ? kGatherers / 32 * kWarpArrivals : kGatherers + 1);
    init(Layout::kPackedBarriers, Layout::kPackedSlots, 1);
    fence_barrier_init();
  }
  launch_dependents();
  __syncthreads();
  const int producer = static_cast<int>(threadIdx.x) - kPanels * kWarpgroup;
  if (producer < 0) {
    take_registers<Layout::kConsumerRegisters>();
    wait_for_predecessors();
    consume<Format, Layout, kMaxRows>(params, tables, memory, first);
    return;
  }
  give_registers_back<Layout::kProducerRegisters>();
  wait_for_predecessors();
  if (producer >= 32) {
    if constexpr (Layout::kWidensRows) {
      widen_rows<Layout, kMaxRows>(params, memory, first, producer - 32);
    } else {
      gather_rows<Layout, kMaxRows>(params, memory, first, producer - 32);
    }
  } else if (producer == 0) {
    copy_weights<Layout>(params, memory, first);
  }
}

}  // namespace nibble::kernels::cuda
