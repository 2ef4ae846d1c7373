// The expert product of sm_90a for few rows per expert. Design and measurements: spec "h200-facts"
// 5 and 9.
//
// Weights are the M operand, rows of x the N operand, so that one or two rows per expert waste
// nothing. A block owns a contiguous range of (slot, panel) units. Each warpgroup has a ring of
// weight stages of its own, which one lane of the producer warp keeps flowing by bulk copies;
// decoded codes stay in registers (formats.cuh).
//
// The warpgroups of a block work on different panels, each over all of k. A sum is that of the
// quarters of k in ascending order, which one_row_kernel.cuh gives to different warpgroups: with
// MXFP4 its bits do not depend on the slots' rows. With formats whose scales are in sums, slots of
// 16 rows that are half empty are multiplied as slots of 8.
//
// Bytes: 0.53 (MXFP4) or 0.56 per weight of each distinct expert, read once per slot. FLOPs: 2 n k
// per pair.
#pragma once

#include "kernels/cuda/common/fp8.cuh"
#include "kernels/cuda/sm90/expert_matmul/formats.cuh"

namespace nibble::kernels::cuda {

inline constexpr int kMaxRingSlots = 8;
inline constexpr int kQuantizedRows = 4;  // that a warp quantises at a time

// How a launch with slots of kRows is laid out.
template <class Panels, int kSlotRows>
struct ExpertMatMulLayout {
  static constexpr int kRows = kSlotRows;
  // Rows that lie side by side. Eight of a format that needs zeros have as many of those behind
  // them, as half empty slots of 16 have.
  static constexpr int kPlaces = Panels::kNeedsZeros ? 16 : kRows;
  static constexpr int kWarpgroups = 4;
  static constexpr int kRoundPanels = kWarpgroups;    // at a time
  static constexpr int kThreads = kWarpgroups * 128;  // of the consumers
  // Four producer warps: consumers take over registers, which whole warpgroups give.
  static constexpr int kProducers = 128;
  static constexpr int kAccumulators = kRows / 2;
  static constexpr int kStageBytes = 4 * Panels::kSlabBytes;
  // Shared memory of a block: rings, zeros, activations, zeros, scales.
  static constexpr int kZeroBytes = Panels::kNeedsZeros && kRows == kPlaces ? kRows * 16 : 0;
  static constexpr int kTileStride = kPlaces * 16;  // bytes of 16 k of all rows

  __host__ __device__ static constexpr int fixed_bytes(int k) {
    return 2 * kZeroBytes + k * kPlaces + k / 128 * kRows * 4;
  }
};

// A contiguous range of panels of all slots, in rounds of up to kRoundPanels panels of one slot.
struct PanelRange {
  int begin;
  int end;
};
// Blocks that have several rounds have whole ones: panels are shared out by so many.
template <int kRoundPanels>
__device__ __forceinline__ int panel_granule(int total, int panels) {
  const bool are_many = total >= 4 * kRoundPanels * static_cast<int>(gridDim.x);
  return panels % kRoundPanels == 0 && are_many ? kRoundPanels : 1;
}
// The same number for every block.   panels: of a slot
template <int kRoundPanels>
__device__ __forceinline__ PanelRange equal_share(int num_slots, int panels) {
  const int total = num_slots * panels, granule = panel_granule<kRoundPanels>(total, panels);
  const auto begin = [&](unsigned block) {
    return static_cast<int>(static_cast<long long>(total / granule) * block / gridDim.x) * granule;
  };
  return {begin(blockIdx.x), begin(blockIdx.x + 1)};
}

// Slots of a launch that may be shared out by what they cost.
inline constexpr int kMaxWeighedSlots = 1024;

struct SlotCosts {
  uint32_t full[kMaxWeighedSlots / 32];  // a bit per slot: more than eight rows
  int begins[2];                         // of this block's share and of the next one's
};

// Where the share of `block` begins when all take the same time, in panels.
template <class Panels, int kRoundPanels>
__device__ __forceinline__ int weighed_begin(const uint32_t* full,
                                             int num_slots,
                                             int panels,
                                             unsigned block) {
  constexpr int kMore = Panels::kFullCost - Panels::kHalfCost;
  const auto cost = [&](int first) {  // of 32 slots
    const int count = min(32, num_slots - first);
    return panels * (count * Panels::kHalfCost + __popc(full[first / 32]) * kMore);
  };
  int total = 0;
  for (int first = 0; first < num_slots; first += 32) total += cost(first);
  int left = static_cast<int>(static_cast<long long>(total) * block / gridDim.x);
  int slot = 0;
  while (slot < num_slots && left >= cost(slot)) {
    left -= cost(slot);
    slot += 32;
  }
  if (slot >= num_slots) return num_slots * panels;
  const uint32_t bits = full[slot / 32];
  for (;; ++slot) {
    const int panel_cost = Panels::kHalfCost + static_cast<int>(bits >> slot % 32 & 1U) * kMore;
    if (left < panels * panel_cost) {
      const int granule = panel_granule<kRoundPanels>(num_slots * panels, panels);
      return slot * panels + left / panel_cost / granule * granule;
    }
    left -= panels * panel_cost;
  }
}

// Fills `costs`; the whole block, behind its predecessors.
template <class Panels, int kRows, int kRoundPanels>
__device__ __forceinline__ void weigh_slots(const ExpertMatMulParams& params, SlotCosts& costs) {
  const int num_slots = __ldcg(params.slot_count), thread = static_cast<int>(threadIdx.x);
  for (int first = thread / 32 * 32; first < num_slots; first += static_cast<int>(blockDim.x)) {
    const int slot = first + thread % 32;
    const bool is_full = slot < num_slots && __ldcg(params.slot_pairs + slot * kRows + 8) >= 0;
    const uint32_t bits = __ballot_sync(~0U, is_full);
    if (thread % 32 == 0) costs.full[first / 32] = bits;
  }
  __syncthreads();
  if (thread < 2) {
    costs.begins[thread] = weighed_begin<Panels, kRoundPanels>(
        costs.full, num_slots, params.n / 64, blockIdx.x + threadIdx.x);
  }
  __syncthreads();
}

template <int kRoundPanels>
struct PanelRounds {
  int next;
  int end;
  int panels;  // of a slot

  __device__ __forceinline__ PanelRounds(PanelRange range, int panels_per_slot)
      : next(range.begin), end(range.end), panels(panels_per_slot) {}
};

template <int kRoundPanels>
__device__ __forceinline__ PanelRange block_share(const ExpertMatMulParams& params,
                                                  const SlotCosts* costs) {
  if (costs != nullptr) return {costs->begins[0], costs->begins[1]};
  return equal_share<kRoundPanels>(__ldcg(params.slot_count), params.n / 64);
}

struct PanelRound {
  int slot;
  int panel;  // the first
  int count;
};
template <int kRoundPanels>
__device__ __forceinline__ PanelRound take_round(PanelRounds<kRoundPanels>& rounds) {
  const int slot = rounds.next / rounds.panels, panel = rounds.next % rounds.panels;
  const int count = min(min(kRoundPanels, rounds.panels - panel), rounds.end - rounds.next);
  rounds.next += count;
  return {slot, panel, count};
}

// Feeds the ring of warpgroup `group`; one thread each.
//   costs: null where blocks have equal shares
template <class Panels, int kRows>
__device__ __forceinline__ void produce_stages(const ExpertMatMulParams& params,
                                               const SlotCosts* costs,
                                               int group,
                                               uint32_t ring,
                                               uint32_t full,
                                               uint32_t empty,
                                               int num_ring_slots) {
  using Layout = ExpertMatMulLayout<Panels, kRows>;
  constexpr int kStageBytes = Layout::kStageBytes;
  const int panels = params.n / 64, stages = params.k / kStageK;
  const uint64_t policy = evict_first_policy();
  wait_for_predecessors();
  // The first slot of this block if no slot is empty: read beside the count, which is a round trip
  // to memory saved whenever the guess is right.
  constexpr int kRoundPanels = Layout::kRoundPanels;
  const int guess = equal_share<kRoundPanels>(params.max_slots, panels).begin / panels;
  int next_expert = guess < params.max_slots ? __ldcg(params.slot_experts + guess) : -1;
  PanelRounds<kRoundPanels> rounds(block_share<kRoundPanels>(params, costs), panels);
  if (rounds.next == rounds.end) return;
  if (rounds.next / panels != guess) {
    next_expert = __ldcg(params.slot_experts + rounds.next / panels);
  }
  int slot = 0, loaded_slot = -1, expert = -1;
  uint32_t parity = 1;
  while (rounds.next < rounds.end) {
    const PanelRound round = take_round(rounds);
    if (round.slot != loaded_slot) {
      loaded_slot = round.slot;
      expert = next_expert;  // read a slot ahead: its latency would stall the ring
      if ((round.slot + 1) * panels < rounds.end) {
        next_expert = __ldcg(params.slot_experts + round.slot + 1);
      }
    }
    if (group >= round.count) continue;
    const uint8_t* source =
        params.weights +
        (static_cast<size_t>(expert) * panels + round.panel + group) * stages * kStageBytes;
    for (int stage = 0; stage < stages; ++stage, source += kStageBytes) {
      barrier_wait(empty + 8 * slot, parity);
      barrier_arrive_expect(full + 8 * slot, kStageBytes);
      bulk_copy_to_shared(ring + slot * kStageBytes, source, kStageBytes, full + 8 * slot, policy);
      if (++slot == num_ring_slots) {
        slot = 0;
        parity ^= 1;
      }
    }
  }
}

// What a thread needs of a slot.
template <int kRows>
struct SlotRows {
  static constexpr int kColumns = kRows / 4;  // of this thread
  int expert;
  int row_pair;         // of the row whose activations this thread brings
  bool is_half;         // no row beyond the first eight
  int pairs[kColumns];  // of columns 2t, 2t + 1 of each tile; -1: none
  float weights[kColumns];

  // row: that this thread brings
  __device__ __forceinline__ void read(const ExpertMatMulParams& params, int slot, int row, int t) {
    expert = __ldcg(params.slot_experts + slot);
    const int* const slot_pairs = params.slot_pairs + slot * kRows;
    row_pair = __ldcg(slot_pairs + row);
#pragma unroll
    for (int tile = 0; tile < kColumns / 2; ++tile) {
      const int2 two = __ldcg(reinterpret_cast<const int2*>(slot_pairs + tile * 8 + 2 * t));
      pairs[tile * 2] = two.x;
      pairs[tile * 2 + 1] = two.y;
    }
    // Pairs come first in a slot: column 8 is taken if any behind it is.
    is_half = kColumns > 2 && __shfl_sync(~0U, pairs[kColumns - 2], 0) < 0;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      weights[i] = pairs[i] < 0 || params.pair_weights == nullptr
                       ? 1.0f
                       : __ldcg(params.pair_weights + pairs[i]);
    }
  }
};

// Copies activation rows into core-matrix order: 16 bytes of k per row, rows side by side. Each
// thread serves one row; x_row < 0 is an absent row and becomes zeros.
template <class Layout>
__device__ __forceinline__ void copy_activations(
    const ExpertMatMulParams& params, int x_row, int row, uint8_t* activations, float* scales) {
  constexpr int kRows = Layout::kRows, kThreads = Layout::kThreads;
  const int blocks = params.k / 16, groups = params.k / 128;
  const size_t source_row = x_row < 0 ? 0 : static_cast<size_t>(x_row);
  const uint4* const source =
      reinterpret_cast<const uint4*>(params.x_codes + source_row * params.k);
  for (int i = threadIdx.x / kRows; i < groups; i += kThreads / kRows) {
    scales[i * kRows + row] = x_row < 0 ? 0.0f : __ldcg(params.x_scales + source_row * groups + i);
  }
#pragma unroll 4
  for (int i = threadIdx.x / kRows; i < blocks; i += kThreads / kRows) {
    const uint4 codes = x_row < 0 ? uint4{0, 0, 0, 0} : __ldcg(source + i);
    *reinterpret_cast<uint4*>(activations + (i * Layout::kPlaces + row) * 16) = codes;
  }
}

// acc += a panel times a slot's rows; `is_half`: the first eight.
template <class Panels, int kRows, int kAccumulators>
__device__ __forceinline__ void multiply_panel(StageRing& ring,
                                               const StagedRows& rows,
                                               bool is_half,
                                               int stages,
                                               int lane,
                                               float (&acc)[kAccumulators]) {
  if constexpr (kRows > 8 && Panels::kHalvesSlots) {
    if (is_half) {
      float half[4] = {};
      Panels::template multiply<kRows>(ring, rows, 0, stages, stages, lane, half);
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[i] += half[i];
      return;
    }
  }
  Panels::template multiply<kRows>(ring, rows, 0, stages, stages, lane, acc);
}

// The same for rows of bf16, which it quantises. A warp has 128 values of each of four rows at a
// time: neighbouring lanes serve different rows, so that their stores fall into different banks,
// and each eight values from `8 part` and from `64 + 8 part` on.
template <class Layout>
__device__ __forceinline__ void quantize_activations(
    const ExpertMatMulParams& params, int x_row, int row, uint8_t* activations, float* scales) {
  constexpr int kRows = Layout::kRows;
  constexpr int kQuads = kRows / kQuantizedRows, kStep = Layout::kThreads / 32 / kQuads;
  const int lane = threadIdx.x % 32, part = lane / kQuantizedRows;
  const int groups = params.k / 128;
  const auto* const source =
      reinterpret_cast<const uint4*>(params.x_bf16 + static_cast<size_t>(max(x_row, 0)) * params.k);
#pragma unroll 2
  for (int group = threadIdx.x / 32 / kQuads; group < groups; group += kStep) {
    uint4 packed[2] = {};
    if (x_row >= 0) {
      packed[0] = __ldcg(source + group * 16 + part);
      packed[1] = __ldcg(source + group * 16 + 8 + part);
    }
    float values[16];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint4& four = packed[i / 4];
      const uint32_t two = i % 4 == 0 ? four.x : i % 4 == 1 ? four.y : i % 4 == 2 ? four.z : four.w;
      values[2 * i] = __uint_as_float(two << 16);
      values[2 * i + 1] = __uint_as_float(two & 0xFFFF0000U);
    }
    float amax = 0;
#pragma unroll
    for (const float value : values) amax = fmaxf(amax, fabsf(value));
#pragma unroll
    for (int step = kQuantizedRows; step < 32; step *= 2) {
      amax = fmaxf(amax, __shfl_xor_sync(~0U, amax, step));
    }
    const uint32_t exponent = e4m3_scale_exponent(amax);
    const float inverse = inverse_power_of_two(exponent);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float(&v)[16] = values;
      const float low[4] = {v[8 * half], v[8 * half + 1], v[8 * half + 2], v[8 * half + 3]};
      const float high[4] = {v[8 * half + 4], v[8 * half + 5], v[8 * half + 6], v[8 * half + 7]};
      const int chunk = group * 8 + half * 4 + part / 2;
      uint8_t* const to = activations + (chunk * Layout::kPlaces + row) * 16 + part % 2 * 8;
      *reinterpret_cast<uint2*>(to) = {to_e4m3x4(low, inverse), to_e4m3x4(high, inverse)};
    }
    if (part == 0) scales[group * kRows + row] = x_row < 0 ? 0.0f : power_of_two(exponent);
  }
}

// Brings the rows of a slot. All consumers.
template <class Layout>
__device__ __forceinline__ void load_activations(const ExpertMatMulParams& params,
                                                 const SlotRows<Layout::kRows>& slot,
                                                 int row,
                                                 uint8_t* activations,
                                                 float* scales) {
  const int x_row = slot.row_pair < 0 ? -1 : slot.row_pair / params.pairs_per_row;
  if (params.x_bf16 != nullptr) {
    quantize_activations<Layout>(params, x_row, row, activations, scales);
  } else {
    copy_activations<Layout>(params, x_row, row, activations, scales);
  }
}
// The row that a consumer thread brings.
template <int kRows>
__device__ __forceinline__ int row_of_thread(const ExpertMatMulParams& params) {
  if (params.x_bf16 == nullptr) return threadIdx.x % kRows;
  const int warp = threadIdx.x / 32;
  return warp % (kRows / kQuantizedRows) * kQuantizedRows + threadIdx.x % kQuantizedRows;
}

// Barriers of `count` stages: a producer fills them, a warpgroup empties them.
__device__ __forceinline__ void init_ring_barriers(uint32_t full, uint32_t empty, int count) {
  for (int i = 0; i < count; ++i) {
    barrier_init(full + 8 * i, 1);
    barrier_init(empty + 8 * i, 4 * kWarpArrivals);
  }
  fence_barrier_init();
}

// Zeros around the activations and behind the rows of each 16 k. The whole block.
template <class Layout>
__device__ __forceinline__ void clear_zeros(uint8_t* first_zeros,
                                            uint8_t* activations,
                                            uint8_t* last_zeros,
                                            int k) {
  constexpr int kBlockThreads = Layout::kThreads + Layout::kProducers;
  for (int i = threadIdx.x; i < Layout::kZeroBytes; i += kBlockThreads) {
    first_zeros[i] = 0;
    last_zeros[i] = 0;
  }
  constexpr int kEmptyPlaces = Layout::kPlaces - Layout::kRows;
  if constexpr (kEmptyPlaces > 0) {
    for (int i = threadIdx.x; i < k / 16 * kEmptyPlaces; i += kBlockThreads) {
      const int place = i / kEmptyPlaces * Layout::kPlaces + Layout::kRows + i % kEmptyPlaces;
      *reinterpret_cast<uint4*>(activations + place * 16) = {};
    }
  }
}

// Reads a slot and brings its rows, once everybody is done with those before. All consumers.
template <class Layout>
__device__ __forceinline__ void bring_slot(const ExpertMatMulParams& params,
                                           int index,
                                           int t,
                                           SlotRows<Layout::kRows>& slot,
                                           uint8_t* activations,
                                           float* scales) {
  constexpr int kConsumers = 7;  // named barrier of all consumers
  const int own_row = row_of_thread<Layout::kRows>(params);
  slot.read(params, index, own_row, t);
  named_barrier_sync(kConsumers, Layout::kThreads);
  load_activations<Layout>(params, slot, own_row, activations, scales);
  fence_async_proxy();
  named_barrier_sync(kConsumers, Layout::kThreads);
}

// Writes rows g and g + 8 of a slab.   top, bottom: the rows' multipliers
template <int kRows, int kAccumulators>
__device__ __forceinline__ void store_panel(const ExpertMatMulParams& params,
                                            const SlotRows<kRows>& slot,
                                            const float (&acc)[kAccumulators],
                                            float top,
                                            float bottom,
                                            int slab,
                                            int g) {
#pragma unroll
  for (int i = 0; i < kAccumulators / 2; ++i) {
    const int column = i / 2 * 4 + i % 2;
    if (slot.pairs[i] < 0) continue;
    store_column(params,
                 acc[column] * top,
                 acc[column + 2] * bottom,
                 slot.pairs[i],
                 slot.weights[i],
                 slab,
                 g);
  }
}

// Block: the consumers, then the producers.
template <class Panels, int kRows>
__global__ void __launch_bounds__(ExpertMatMulLayout<Panels, kRows>::kThreads +
                                      ExpertMatMulLayout<Panels, kRows>::kProducers,
                                  1)
    expert_matmul(const ExpertMatMulParams params, int num_ring_slots) {
  using Layout = ExpertMatMulLayout<Panels, kRows>;
  constexpr int kWarpgroups = Layout::kWarpgroups;
  constexpr int kAccumulators = Layout::kAccumulators;
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ __align__(8) uint64_t barriers[2 * kWarpgroups * kMaxRingSlots];
  __shared__ uint4 tables;
  const int ring_bytes = num_ring_slots * Layout::kStageBytes;
  uint8_t* const first_zeros = memory + kWarpgroups * ring_bytes;
  uint8_t* const activations = first_zeros + Layout::kZeroBytes;
  uint8_t* const last_zeros = activations + params.k * Layout::kPlaces;
  float* const scales = reinterpret_cast<float*>(last_zeros + Layout::kZeroBytes);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const uint32_t full = shared_address(barriers);
  const uint32_t empty = full + 8 * kWarpgroups * kMaxRingSlots;
  if (threadIdx.x == 0) {
    tables = Panels::table_words();
    init_ring_barriers(full, empty, kWarpgroups * kMaxRingSlots);
  }
  if constexpr (Panels::kNeedsZeros) {
    clear_zeros<Layout>(first_zeros, activations, last_zeros, params.k);
    fence_async_proxy();
  }
  launch_dependents();
  __syncthreads();
  const SlotCosts* costs = nullptr;
  if constexpr (kRows > 8 && Panels::kFullCost > Panels::kHalfCost) {
    __shared__ SlotCosts slot_costs;
    if (params.max_slots <= kMaxWeighedSlots) {
      wait_for_predecessors();
      weigh_slots<Panels, kRows, Layout::kRoundPanels>(params, slot_costs);
      costs = &slot_costs;
    }
  }

  if (warp >= kWarpgroups * 4) {
    give_registers_back<24>();
    const int group = warp - kWarpgroups * 4;
    if (lane == 0) {
      produce_stages<Panels, kRows>(params,
                                    costs,
                                    group,
                                    shared_address(memory) + group * ring_bytes,
                                    full + 8 * kMaxRingSlots * group,
                                    empty + 8 * kMaxRingSlots * group,
                                    num_ring_slots);
    }
    return;
  }
  take_registers<112>();

  const int group = warp / 4, warp_in_group = warp % 4;
  uint32_t slabs = shared_address(memory) + group * ring_bytes + warp_in_group * Panels::kSlabBytes;
  keep_in_register(slabs);
  StageRing ring{.stages = static_cast<const uint8_t*>(__cvta_shared_to_generic(slabs)),
                 .full = full + 8 * kMaxRingSlots * group,
                 .empty = empty + 8 * kMaxRingSlots * group,
                 .num_slots = num_ring_slots,
                 .stage_bytes = Layout::kStageBytes,
                 .slot = 0,
                 .parity = 0};
  keep_in_register(ring.full);
  keep_in_register(ring.empty);
  uint32_t x_address = shared_address(activations);
  keep_in_register(x_address);
  const auto tile = [](uint32_t address, uint32_t next_16_k) {
    return core_matrix_descriptor(address, next_16_k - address, 128);
  };
  const StagedRows rows{
      .tile = tile(x_address, x_address + Layout::kTileStride),
      .zeros_first = tile(shared_address(first_zeros), x_address + Layout::kTileStride),
      .zeros_second = tile(x_address, shared_address(last_zeros)),
      .pairs = core_matrix_descriptor(x_address, 128, 128),
      .scales = scales,
      .tables = &tables};
  wait_for_predecessors();

  const int panels = params.n / 64, stages = params.k / kStageK;
  PanelRounds<Layout::kRoundPanels> rounds(block_share<Layout::kRoundPanels>(params, costs),
                                           panels);
  SlotRows<kRows> slot{};
  int loaded_slot = -1;
  while (rounds.next < rounds.end) {
    const PanelRound round = take_round(rounds);
    if (round.slot != loaded_slot) {
      bring_slot<Layout>(params, round.slot, t, slot, activations, scales);
      loaded_slot = round.slot;
    }
    if (group >= round.count) continue;
    const int panel = round.panel + group;
    const int slab = panel * 4 + warp_in_group;
    const float* const multipliers =
        params.row_multipliers + static_cast<size_t>(slot.expert) * params.n + slab * 16;
    const float top = __ldg(multipliers + g) * Panels::kSumFactor;
    const float bottom = __ldg(multipliers + g + 8) * Panels::kSumFactor;
    float acc[kAccumulators] = {};
    multiply_panel<Panels, kRows>(ring, rows, slot.is_half, stages, lane, acc);
    store_panel<kRows>(params, slot, acc, top, bottom, slab, g);
  }
}

}  // namespace nibble::kernels::cuda
