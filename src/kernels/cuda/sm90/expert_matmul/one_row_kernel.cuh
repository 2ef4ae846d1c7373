// The expert product of sm_90a in slots of one row: for one token, whose experts are all different,
// or for a few, of which some share an expert and read it twice. With DeviceGroupedMatMulArgs::down
// both products of the experts are one launch, which may begin with the choice of the experts and
// the shared expert's second product (beside.cuh).
//
// A unit is a panel of a slot. A block takes every gridDim-th of the units of the product beside,
// then of the first product's, then of the second's, so that all blocks work on the same few slots
// at a time and the activated rows of the first slots are complete long before the second product
// asks for them. There are too few panels to give every warpgroup its own: four share a panel, each
// with a quarter of k. Quarters are added in ascending order. With MXFP4 that is the order of
// kernel.cuh, so that a row has the same bits alone and among others; formats with scales in sums
// have an order of their own here.
//
// The consumers do nothing but decode and multiply; four more warps work for them:
//  - one keeps the warpgroups' rings of weight stages flowing, by bulk copies and across the
//    boundary between the products;
//  - one tells the others the experts, adds the quarters, writes a panel's outputs and counts the
//    slot's panels;
//  - two bring rows of activations, of the second product as soon as their slot is complete, and
//    quantise them.
// What these read and write waits in line behind the weights that are on their way, some
// microseconds, which the consumers must not see; deeper rings would make the line longer.
//
// Where the launch chooses, every block does so for itself: the consumers that have no part in the
// product beside score the experts, which costs less than a launch that tells all blocks.
//
// Blocks wait for each other, so all of them have to be resident: the grid is one block per
// multiprocessor, and the next launch is not let in before all have begun.
//
// How a row lies in shared memory is the format's: PlainRow or DiagonalRow.
//
// Bytes: 0.53 (MXFP4) or 0.56 per weight of each expert. FLOPs: 2 n k per pair and product.
#pragma once

#include "kernels/cuda/common/fp8.cuh"
#include "kernels/cuda/ops/choice.cuh"
#include "kernels/cuda/sm90/expert_matmul/beside.cuh"
#include "kernels/cuda/sm90/expert_matmul/formats.cuh"

namespace nibble::kernels::cuda {

static_assert(kMaxRowSlots <= 32);  // lanes of a warp, which hold the slots' experts

struct OneRowParams {
  ExpertMatMulParams products[2];
  int num_products;
  int* counters;                   // DeviceDownProduct::counters
  DeviceSelectExpertsArgs choice;  // tokens.m 0: slots are given
  BesideParams beside;
};
// Number of the product beside the experts' first and second.
inline constexpr int kBesideProduct = 2;

inline constexpr int kMaxChosenFrom = 512;  // experts

template <class Panels>
struct OneRowLayout {
  static constexpr int kThreads = kParts * 128;  // of the consumers: a warpgroup per part of k
  static constexpr int kHelpers = 128;
  static constexpr int kStageBytes = 4 * Panels::kSlabBytes;
  static constexpr int kMaxRingSlots = 8;
  static_assert(2 * kStageBytes >= 8 * kMaxChosenFrom);  // a ring, of scores and candidates
};
inline constexpr int kRowBuffers = 3;
inline constexpr int kPanelBuffers = 4;

// Barriers and small arrays of a block.
struct OneRowShared {
  uint64_t ring_full[kParts][8];
  uint64_t ring_empty[kParts][8];
  uint64_t row_full[kRowBuffers];
  uint64_t row_empty[kRowBuffers];
  uint64_t panel_full[kPanelBuffers];
  uint64_t panel_empty[kPanelBuffers];
  uint64_t scored;  // all experts
  uint64_t chosen;  // `experts` is complete
  uint4 tables;
  int experts[kMaxRowSlots];               // of the slots
  float parts[kPanelBuffers][kParts][64];  // of panels
};

// What a block has in dynamic shared memory: rings, rows of activations and that of the product
// beside, scales, and what the last core matrix overlaps with.
struct OneRowMemory {
  static constexpr int kOverlapBytes = 128;

  uint8_t* rings;
  int ring_bytes;  // of a warpgroup
  int row_bytes;
  int row_groups;      // scales of a row
  uint8_t* row_codes;  // [kRowBuffers][row_bytes]
  uint8_t* beside_codes;
  float* row_scales;  // [kRowBuffers][row_groups]
  float* beside_scales;
  // For the choice, [kMaxChosenFrom] each: in a ring that stays empty until it is made.
  float* scores;
  uint32_t* candidates;

  // Bytes without the rings.   k: the larger one of the experts' products; beside_k: of that beside
  __host__ __device__ static constexpr int fixed_bytes(int row_bytes, int k, int beside_k) {
    return kRowBuffers * row_bytes + beside_k + (kRowBuffers * k + beside_k) / 128 * 4 +
           kOverlapBytes;
  }
  __device__ __forceinline__
  OneRowMemory(uint8_t* memory, int ring_size, int row_size, int k, int beside_k)
      : rings(memory),
        ring_bytes(ring_size),
        row_bytes(row_size),
        row_groups(k / 128),
        row_codes(memory + kParts * ring_size),
        beside_codes(row_codes + kRowBuffers * row_size),
        row_scales(reinterpret_cast<float*>(beside_codes + beside_k)),
        beside_scales(row_scales + kRowBuffers * row_groups),
        scores(reinterpret_cast<float*>(memory + kBesideGroups * ring_size)),
        candidates(reinterpret_cast<uint32_t*>(scores + kMaxChosenFrom)) {}
};
__host__ __device__ inline int max_k_of(const OneRowParams& params) {
  const int first = params.products[0].k, second = params.products[1].k;
  return first > second ? first : second;
}

// Buffers that one side fills and the other empties, in turn. Phases of a buffer alternate.
template <int kBuffers>
struct BufferTurn {
  int index = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++index == kBuffers) {
      index = 0;
      parity ^= 1;
    }
  }
};

// The units of this block, one after the other.
struct Units {
  int next;
  int beside_total;  // units of the product beside
  int first_total;   // with those of the first product
  int total;
  int panels[2];  // of a slot

  __device__ __forceinline__ explicit Units(const OneRowParams& params)
      : next(static_cast<int>(blockIdx.x)),
        beside_total(params.beside.panels * kBesideHalves),
        panels{params.products[0].n / 64, params.products[1].n / 64} {
    first_total = beside_total + params.products[0].max_slots * panels[0];
    total = first_total + (params.num_products == 2 ? params.products[0].max_slots * panels[1] : 0);
  }
  __device__ __forceinline__ bool has_next() const { return next < total; }
};
struct Unit {
  int product;
  int slot;
  int index;  // of the panel; of the product beside: BesideUnit's
};
__device__ __forceinline__ Unit take_unit(Units& units) {
  const int unit = units.next;
  units.next += static_cast<int>(gridDim.x);
  if (unit < units.beside_total) return {kBesideProduct, 0, unit};
  const int product = unit < units.first_total ? 0 : 1;
  const int i = unit - (product == 0 ? units.beside_total : units.first_total);
  const int panels = product == 0 ? units.panels[0] : units.panels[1];
  return {product, i / panels, i % panels};
}

// Which row of activations a unit needs; rows of the products differ.
__device__ __forceinline__ int row_of(const OneRowParams& params, const Unit& unit) {
  return unit.product == 0 ? unit.slot / params.products[0].pairs_per_row : -1 - unit.slot;
}

// Feeds the ring of warpgroup `group`; one thread each, which do not wait for each other.
template <class Panels>
__device__ __forceinline__ void produce_stages(const OneRowParams& params,
                                               OneRowShared& shared,
                                               const OneRowMemory& memory,
                                               int group,
                                               int num_ring_slots) {
  constexpr int kStageBytes = OneRowLayout<Panels>::kStageBytes;
  const uint64_t policy = evict_first_policy();
  const uint32_t ring = shared_address(memory.rings) + group * memory.ring_bytes;
  const uint32_t full = shared_address(shared.ring_full[group]);
  const uint32_t empty = shared_address(shared.ring_empty[group]);
  int slot = 0;
  uint32_t parity = 1;
  const auto produce = [&](const uint8_t* source, int num_bytes) {
    barrier_arrive_expect(full + 8 * slot, num_bytes);
    bulk_copy_to_shared(ring + slot * kStageBytes, source, num_bytes, full + 8 * slot, policy);
    if (++slot == num_ring_slots) {
      slot = 0;
      parity ^= 1;
    }
  };
  Units units(params);
  while (units.next < units.beside_total) {
    const BesideUnit unit(take_unit(units).index);
    if (group >= kBesideGroups) continue;
    const int tile = unit.panel * params.beside.tiles + unit.first_tile(params.beside, group);
    const uint8_t* source = params.beside.weights + static_cast<size_t>(tile) * kBesideTileBytes;
    for (int i = 0; i < beside_tiles_of_group(params.beside); ++i) {
      barrier_wait(empty + 8 * slot, parity);
      produce(source + i * kBesideGroups * kBesideTileBytes, kBesideTileBytes);
    }
  }
  barrier_wait(shared_address(&shared.chosen), 0);
  const uint8_t* source = nullptr;
  int left = 0;  // stages of the unit
  const auto next_unit = [&] {
    while (left == 0 && units.has_next()) {
      const Unit unit = take_unit(units);
      const int expert = shared.experts[unit.slot];
      if (expert < 0) continue;
      const ExpertMatMulParams& product = params.products[unit.product];
      const int stages = product.k / kStageK, begin = part_begin(stages, group);
      left = part_begin(stages, group + 1) - begin;
      source = product.weights +
               ((static_cast<size_t>(expert) * (product.n / 64) + unit.index) * stages + begin) *
                   kStageBytes;
    }
  };
  // Whichever ring has room gets its next stage: a blocking wait would hold up all lanes.
  for (next_unit(); left > 0;) {
    if (!barrier_has_ended(empty + 8 * slot, parity)) continue;
    produce(source, kStageBytes);
    source += kStageBytes;
    --left;
    next_unit();
  }
}

// Expert and weight of slot `lane`, which it chooses where the launch does. One warp; the first
// block's writes the choice down for others.
__device__ __forceinline__ ChosenExpert find_slots(const OneRowParams& params,
                                                   OneRowShared& shared,
                                                   const OneRowMemory& memory) {
  const int lane = threadIdx.x % 32;
  const ExpertMatMulParams& product = params.products[0];
  const DeviceSelectExpertsArgs& choice = params.choice;
  if (choice.tokens.m == 0) {
    if (!product.slots_are_ready) wait_for_predecessors();
    if (lane >= product.max_slots) return {-1, 0};
    const float weight =
        product.pair_weights == nullptr ? 1.0f : __ldcg(product.pair_weights + lane);
    return {__ldcg(product.slot_experts + lane), weight};
  }
  const bool is_padding = choice.tokens.sequences[0] < 0;
  wait_for_predecessors();
  const int given = is_padding ? 0 : given_expert(choice, 0);
  barrier_wait(shared_address(&shared.scored), 0);
  ChosenExpert chosen = choice.num_experts <= 256
                            ? choose_experts<8>(choice, given, memory.scores, memory.candidates)
                            : choose_experts<16>(choice, given, memory.scores, memory.candidates);
  fence_async_proxy();  // bulk copies overwrite the scores
  if (is_padding) chosen = {-1, 0};
  if (blockIdx.x == 0 && lane < choice.choices) {
    choice.ids[lane] = chosen.id;
    choice.weights[lane] = chosen.weight;
  }
  return chosen;
}

// Adds the parts of panels and writes their outputs. One warp: lane 8 s + g has rows g and g + 8 of
// slab s.
//   slot: see find_slots()
template <class Panels>
__device__ __forceinline__ void finish_panels(const OneRowParams& params,
                                              OneRowShared& shared,
                                              const ChosenExpert& slot) {
  const int lane = threadIdx.x % 32, row = lane / 8 * 16 + lane % 8;
  const uint32_t full = shared_address(shared.panel_full);
  const uint32_t empty = shared_address(shared.panel_empty);
  BufferTurn<kPanelBuffers> turn;
  const auto take_sum = [&](int count) {
    barrier_wait(full + 8 * turn.index, turn.parity);
    const float* const own = shared.parts[turn.index][0] + row;
    float2 sum = {0, 0};
#pragma unroll
    for (int part = 0; part < count; ++part) {
      sum.x += own[part * 64];
      sum.y += own[part * 64 + 8];
    }
    warp_arrive(empty + 8 * turn.index, lane);
    turn.advance();
    return sum;
  };
  Units units(params);
  while (units.next < units.beside_total) {
    const BesideUnit unit(take_unit(units).index);
    const float2 sum = take_sum(kBesideGroups);
    float* const y = params.beside.y + (unit.half * params.beside.panels + unit.panel) * 64 + row;
    y[0] = sum.x;
    y[8] = sum.y;
  }
  while (units.has_next()) {
    const Unit unit = take_unit(units);
    const int expert = __shfl_sync(~0U, slot.id, unit.slot);
    const float weight = __shfl_sync(~0U, slot.weight, unit.slot);
    if (expert < 0) continue;
    const ExpertMatMulParams& product = params.products[unit.product];
    const float* const multipliers =
        product.row_multipliers + static_cast<size_t>(expert) * product.n + unit.index * 64 + row;
    const float top = __ldg(multipliers) * Panels::kSumFactor;
    const float bottom = __ldg(multipliers + 8) * Panels::kSumFactor;
    const float2 sum = take_sum(kParts);
    store_column(product,
                 sum.x * top,
                 sum.y * bottom,
                 unit.slot,
                 weight,
                 unit.index * 4 + lane / 8,
                 lane % 8);
    if (unit.product == 0 && params.num_products == 2) {
      __syncwarp();
      if (lane == 0) add_release(params.counters + unit.slot);
    }
  }
}

constexpr int kRowThreads = 64;  // that bring rows

// Copies a row's codes and scales.
template <class Row>
__device__ __forceinline__ void copy_row(
    const ExpertMatMulParams& product, int x_row, int thread, uint8_t* codes, float* scales) {
  const int blocks = product.k / 16, groups = product.k / 128;
  const auto* const source =
      reinterpret_cast<const uint4*>(product.x_codes + static_cast<size_t>(x_row) * product.k);
  const float* const source_scales = product.x_scales + static_cast<size_t>(x_row) * groups;
  if (thread < groups) scales[thread] = __ldcg(source_scales + thread);
#pragma unroll 4
  for (int i = thread; i < blocks; i += kRowThreads) {
    *reinterpret_cast<uint4*>(codes + Row::place(i)) = __ldcg(source + i);
  }
}

// The same for a row of bf16, which it quantises. Each warp takes 128 values at a time, and reads
// kBatch times as many before it begins.
template <class Row>
__device__ __forceinline__ void quantize_row(
    const ExpertMatMulParams& product, int x_row, int thread, uint8_t* codes, float* scales) {
  constexpr int kBatch = Row::kHasZeros ? 4 : 8, kWarps = kRowThreads / 32;
  const int lane = thread % 32, groups = product.k / 128;
  const auto* const source =
      reinterpret_cast<const uint2*>(product.x_bf16 + static_cast<size_t>(x_row) * product.k);
  for (int first = thread / 32; first < groups; first += kBatch * kWarps) {
    uint2 packed[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int group = first + i * kWarps;
      packed[i] = group < groups ? __ldcg(source + group * 32 + lane) : uint2{0, 0};
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int group = first + i * kWarps;
      if (group >= groups) break;
      const float4 v = {__uint_as_float(packed[i].x << 16),
                        __uint_as_float(packed[i].x & 0xFFFF0000U),
                        __uint_as_float(packed[i].y << 16),
                        __uint_as_float(packed[i].y & 0xFFFF0000U)};
      const uint32_t exponent = e4m3_scale_exponent(warp_max(largest_of(v)));
      *reinterpret_cast<uint32_t*>(codes + Row::place(group * 8 + lane / 4) + lane % 4 * 4) =
          e4m3_codes(v, exponent);
      if (lane == 0) scales[group] = power_of_two(exponent);
    }
  }
}

// Brings every row that the experts' units ask for into the row buffers, ahead of them. Two warps.
template <class Row>
__device__ __forceinline__ void bring_rows(const OneRowParams& params,
                                           OneRowShared& shared,
                                           const OneRowMemory& memory,
                                           int thread) {
  constexpr int kLoaders = 1;  // named barrier of the two warps
  const uint32_t full = shared_address(shared.row_full), empty = shared_address(shared.row_empty);
  BufferTurn<kRowBuffers> turn;
  int last_row = 0;
  bool is_first = true;
  Units units(params);
  while (units.next < units.beside_total) take_unit(units);
  while (units.has_next()) {
    const Unit unit = take_unit(units);
    const int row = row_of(params, unit);
    if (!is_first && row == last_row) continue;
    is_first = false;
    last_row = row;
    barrier_wait(empty + 8 * turn.index, turn.parity ^ 1);
    const ExpertMatMulParams& product = params.products[unit.product];
    uint8_t* const codes = memory.row_codes + turn.index * memory.row_bytes;
    float* const scales = memory.row_scales + turn.index * memory.row_groups;
    if (unit.product == 0) {
      if (product.x_bf16 != nullptr) {
        quantize_row<Row>(product, row, thread, codes, scales);
      } else {
        copy_row<Row>(product, row, thread, codes, scales);
      }
    } else {
      barrier_wait(shared_address(&shared.chosen), 0);
      if (shared.experts[unit.slot] >= 0) {
        if (thread == 0) {
          const int panels = params.products[0].n / 64;
          while (load_acquire(params.counters + unit.slot) < panels) {
          }
        }
        named_barrier_sync(kLoaders, kRowThreads);
        quantize_row<Row>(product, unit.slot, thread, codes, scales);
      }
    }
    fence_async_proxy();
    warp_arrive(full + 8 * turn.index, thread % 32);
    turn.advance();
  }
  if (params.num_products != 2 || thread != 0) return;
  // The last block to come here knows that every counter has been read for the last time.
  const int max_slots = params.products[0].max_slots;
  if (add_acquire_release(params.counters + max_slots) != static_cast<int>(gridDim.x) - 1) return;
  for (int i = 0; i <= max_slots; ++i) params.counters[i] = 0;
}

// Where a warpgroup's parts of panels go.
struct PartsOutput {
  OneRowShared& shared;
  int group;
  BufferTurn<kPanelBuffers> turn = {};

  // sums: in lanes 4 g, of rows g and g + 8 of the warp's slab
  __device__ __forceinline__ void publish(float2 sums) {
    const int lane = threadIdx.x % 32, warp_in_group = threadIdx.x / 32 % 4;
    barrier_wait(shared_address(shared.panel_empty + turn.index), turn.parity ^ 1);
    if (lane % 4 == 0) {
      float* const own = shared.parts[turn.index][group] + warp_in_group * 16 + lane / 4;
      own[0] = sums.x;
      own[8] = sums.y;
    }
    warp_arrive(shared_address(shared.panel_full + turn.index), lane);
    turn.advance();
  }
};

// The units of the product beside: the consumers that have a part in it.
__device__ __forceinline__ void consume_beside(const OneRowParams& params,
                                               const OneRowMemory& memory,
                                               Units& units,
                                               StageRing& ring,
                                               PartsOutput& output) {
  const BesideParams& beside = params.beside;
  const int lane = threadIdx.x % 32, num_tiles = beside_tiles_of_group(beside);
  const uint32_t row = shared_address(memory.beside_codes);
  int activated = 0;  // halves of the row, a bit each
  while (units.next < units.beside_total) {
    const BesideUnit unit(take_unit(units).index);
    float acc[4] = {};
    if (output.group < kBesideGroups) {
      const int first_tile = unit.first_tile(beside, output.group);
      const float* const scales = beside.weight_scales + unit.panel * beside.tiles + first_tile;
      const float weight_scales = lane < num_tiles ? __ldg(scales + kBesideGroups * lane) : 0.0f;
      if ((activated >> unit.half & 1) == 0) {
        wait_for_predecessors();
        activate_beside_row(beside, unit.half, memory.beside_codes, memory.beside_scales);
        activated |= 1 << unit.half;
      }
      multiply_beside(ring,
                      shared_address(memory.rings) + output.group * memory.ring_bytes,
                      core_matrix_descriptor(row, 16, 128),
                      memory.beside_scales,
                      weight_scales,
                      first_tile,
                      num_tiles,
                      acc);
    }
    output.publish({acc[0], acc[2]});
  }
}

// The units of the experts, all consumers.
template <class Panels>
__device__ __forceinline__ void consume_experts(const OneRowParams& params,
                                                OneRowShared& shared,
                                                const OneRowMemory& memory,
                                                Units& units,
                                                StageRing& ring,
                                                PartsOutput& output) {
  const int lane = threadIdx.x % 32;
  const auto staged_row = [&](int buffer) {
    const uint32_t codes = shared_address(memory.row_codes) + buffer * memory.row_bytes;
    // Strides between core matrices of a DiagonalRow differ: who multiplies adds them.
    return StagedRow{.tile = side_by_side_word(codes, Panels::Row::kHasZeros ? 0 : 16),
                     .scales = memory.row_scales + buffer * memory.row_groups,
                     .tables = &shared.tables};
  };
  BufferTurn<kRowBuffers> row_turn;
  StagedRow staged{};
  int last_row = 0, held_buffer = -1;
  barrier_wait(shared_address(&shared.chosen), 0);
  const int lane_expert = shared.experts[lane];
  while (units.has_next()) {
    const Unit unit = take_unit(units);
    const int row = row_of(params, unit);
    if (held_buffer < 0 || row != last_row) {
      if (held_buffer >= 0) warp_arrive(shared_address(shared.row_empty + held_buffer), lane);
      last_row = row;
      held_buffer = row_turn.index;
      barrier_wait(shared_address(shared.row_full + row_turn.index), row_turn.parity);
      staged = staged_row(held_buffer);
      row_turn.advance();
    }
    if (__shfl_sync(~0U, lane_expert, unit.slot) < 0) continue;
    const int stages = params.products[unit.product].k / kStageK, group = output.group;
    output.publish(Panels::multiply_row(
        ring, staged, part_begin(stages, group), part_begin(stages, group + 1), stages, lane));
  }
}

__device__ __forceinline__ void init_barriers(OneRowShared& shared, int num_consumer_warps) {
  const auto init = [](uint64_t& barrier, int arrivals) {
    barrier_init(shared_address(&barrier), arrivals);
  };
  const int all = num_consumer_warps * kWarpArrivals;
  for (int part = 0; part < kParts; ++part) {
    for (uint64_t& barrier : shared.ring_full[part]) init(barrier, 1);
    for (uint64_t& barrier : shared.ring_empty[part]) init(barrier, 4 * kWarpArrivals);
  }
  for (uint64_t& barrier : shared.row_full) init(barrier, kRowThreads / 32 * kWarpArrivals);
  for (uint64_t& barrier : shared.row_empty) init(barrier, all);
  for (uint64_t& barrier : shared.panel_full) init(barrier, all);
  for (uint64_t& barrier : shared.panel_empty) init(barrier, kWarpArrivals);
  init(shared.scored, (num_consumer_warps - kBesideThreads / 32) * kWarpArrivals);
  init(shared.chosen, kWarpArrivals);
  fence_barrier_init();
}

// The four warps beside the consumers.
template <class Panels>
__device__ __forceinline__ void help(const OneRowParams& params,
                                     OneRowShared& shared,
                                     const OneRowMemory& memory,
                                     int num_ring_slots) {
  const int lane = threadIdx.x % 32, thread = threadIdx.x - OneRowLayout<Panels>::kThreads;
  if (thread < 32) {
    if (lane < kParts) produce_stages<Panels>(params, shared, memory, lane, num_ring_slots);
  } else if (thread < 64) {
    const ChosenExpert slot = find_slots(params, shared, memory);
    shared.experts[lane] = slot.id;
    warp_arrive(shared_address(&shared.chosen), lane);
    wait_for_predecessors();
    finish_panels<Panels>(params, shared, slot);
  } else {
    wait_for_predecessors();
    bring_rows<typename Panels::Row>(params, shared, memory, thread - 64);
  }
}

// Block: the consumers, then the helpers.
template <class Panels>
__global__ void __launch_bounds__(OneRowLayout<Panels>::kThreads + OneRowLayout<Panels>::kHelpers,
                                  1)
    one_row_expert_matmul(const OneRowParams params, int num_ring_slots) {
  using Layout = OneRowLayout<Panels>;
  extern __shared__ __align__(128) uint8_t dynamic_memory[];
  __shared__ __align__(16) OneRowShared shared;
  const int max_k = max_k_of(params);
  const OneRowMemory memory(dynamic_memory,
                            num_ring_slots * Layout::kStageBytes,
                            Panels::Row::bytes(max_k),
                            max_k,
                            params.beside.tiles * kBesideTileK);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = warp / 4;
  // Of a single product the next launch may take the slots for ready: it must not come before the
  // wait.
  const bool has_down = params.num_products == 2;
  if (has_down) launch_dependents();
  if (threadIdx.x == 0) {
    shared.tables = Panels::table_words();
    init_barriers(shared, Layout::kThreads / 32);
  }
  if constexpr (Panels::Row::kHasZeros) {
    for (int i = threadIdx.x; i < kRowBuffers * memory.row_bytes / 16; i += blockDim.x) {
      reinterpret_cast<uint4*>(memory.row_codes)[i] = {0, 0, 0, 0};
    }
    fence_async_proxy();
  }
  __syncthreads();
  if (warp >= kParts * 4) {
    give_registers_back<64>();
    help<Panels>(params, shared, memory, num_ring_slots);
    return;
  }
  take_registers<104>();

  StageRing ring{.stages = memory.rings + group * memory.ring_bytes + warp % 4 * Panels::kSlabBytes,
                 .full = shared_address(shared.ring_full[group]),
                 .empty = shared_address(shared.ring_empty[group]),
                 .num_slots = num_ring_slots,
                 .stage_bytes = Layout::kStageBytes,
                 .slot = 0,
                 .parity = 0};
  keep_in_register(ring.full);
  keep_in_register(ring.empty);
  PartsOutput output{.shared = shared, .group = group};
  if (params.choice.tokens.m != 0 && group >= kBesideGroups) {
    wait_for_predecessors();
    score_experts(params.choice,
                  0,
                  threadIdx.x - kBesideThreads,
                  Layout::kThreads - kBesideThreads,
                  params.choice.num_experts <= 256 ? 256 : kMaxChosenFrom,
                  memory.scores,
                  memory.candidates);
    warp_arrive(shared_address(&shared.scored), lane);
  }
  Units units(params);
  consume_beside(params, memory, units, ring, output);
  wait_for_predecessors();
  if (!has_down) launch_dependents();
  consume_experts<Panels>(params, shared, memory, units, ring, output);
}

}  // namespace nibble::kernels::cuda
