// The expert product of sm_90a for one token, whose experts are all different: every slot is one
// row. With DeviceGroupedMatMulArgs::down both products of the experts are one launch.
//
// A unit is a panel of a slot. A block takes every gridDim-th of the first product's units, then of
// the second's, so that all blocks work on the same few slots at a time and the activated rows of
// the first slots are complete long before the second product asks for them. There are too few
// panels to give every warpgroup its own: four share a panel, each with a quarter of k. Quarters
// are added in ascending order. With MXFP4 that is the order of kernel.cuh, so that a row has the
// same bits alone and among others; formats with scales in sums have an order of their own here.
//
// The consumers do nothing but decode and multiply; four more warps work for them:
//  - one keeps the warpgroups' rings of weight stages flowing, by bulk copies and across the
//    boundary between the products;
//  - one adds the quarters, writes a panel's outputs and counts the slot's panels;
//  - two bring rows of activations, of the second product as soon as their slot is complete, and
//    quantise them.
// What these read and write waits in line behind the weights that are on their way, some
// microseconds, which the consumers must not see; deeper rings would make the line longer.
//
// Blocks wait for each other, so all of them have to be resident: the grid is one block per
// multiprocessor, and the next launch is not let in before all have begun.
//
// How a row lies in shared memory is the format's: PlainRow or DiagonalRow.
//
// Bytes: 0.53 (MXFP4) or 0.56 per weight of each expert. FLOPs: 2 n k per pair and product.
#pragma once

#include "kernels/cuda/common/fp8.cuh"
#include "kernels/cuda/sm90/expert_matmul/formats.cuh"

namespace nibble::kernels::cuda {

inline constexpr int kMaxRowSlots = 32;  // lanes of a warp, which hold the slots' experts

struct OneRowParams {
  ExpertMatMulParams products[2];
  int num_products;
  int* counters;  // DeviceDownProduct::counters
};

template <class Panels>
struct OneRowLayout {
  static constexpr int kThreads = kParts * 128;  // of the consumers: a warpgroup per part of k
  static constexpr int kHelpers = 128;
  static constexpr int kStageBytes = 4 * Panels::kSlabBytes;
  static constexpr int kMaxRingSlots = 8;
  static constexpr int kRowBuffers = 4;
  static constexpr int kPanelBuffers = 4;
  // Shared memory of a block: rings, parts of panels, rows of activations, scales, and what the
  // last core matrix overlaps with.
  static constexpr int kPartBytes = kPanelBuffers * kParts * 64 * 4;
  static constexpr int kOverlapBytes = 128;

  // k: the larger one.
  __host__ __device__ static constexpr int fixed_bytes(int k) {
    return kPartBytes + kRowBuffers * (Panels::Row::bytes(k) + k / 128 * 4) + kOverlapBytes;
  }
};

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
  int first_total;  // units of the first product
  int total;
  int panels[2];  // of a slot

  __device__ __forceinline__ explicit Units(const OneRowParams& params)
      : next(static_cast<int>(blockIdx.x)),
        panels{params.products[0].n / 64, params.products[1].n / 64} {
    first_total = params.products[0].max_slots * panels[0];
    total = first_total + (params.num_products == 2 ? params.products[0].max_slots * panels[1] : 0);
  }
  __device__ __forceinline__ bool has_next() const { return next < total; }
};
struct Unit {
  int product;
  int slot;
  int panel;
};
__device__ __forceinline__ Unit take_unit(Units& units) {
  const int product = units.next < units.first_total ? 0 : 1;
  const int i = product == 0 ? units.next : units.next - units.first_total;
  const int panels = product == 0 ? units.panels[0] : units.panels[1];
  units.next += static_cast<int>(gridDim.x);
  return {product, i / panels, i % panels};
}

// Which row of activations a unit needs; rows of the products differ.
__device__ __forceinline__ int row_of(const OneRowParams& params, const Unit& unit) {
  return unit.product == 0 ? unit.slot / params.products[0].pairs_per_row : -1 - unit.slot;
}

// Feeds the ring of warpgroup `group`; one thread each, which do not wait for each other.
//   experts: of the slots, in shared memory
template <class Panels>
__device__ __forceinline__ void produce_stages(const OneRowParams& params,
                                               const int* experts,
                                               int group,
                                               uint32_t ring,
                                               uint32_t full,
                                               uint32_t empty,
                                               int num_ring_slots) {
  constexpr int kStageBytes = OneRowLayout<Panels>::kStageBytes;
  const uint64_t policy = evict_first_policy();
  int slot = 0;
  uint32_t parity = 1;
  for (Units units(params); units.has_next();) {
    const Unit unit = take_unit(units);
    const int expert = experts[unit.slot];
    if (expert < 0) continue;
    const ExpertMatMulParams& product = params.products[unit.product];
    const int stages = product.k / kStageK, begin = part_begin(stages, group);
    const int count = part_begin(stages, group + 1) - begin;
    const uint8_t* source =
        product.weights +
        ((static_cast<size_t>(expert) * (product.n / 64) + unit.panel) * stages + begin) *
            kStageBytes;
    for (int stage = 0; stage < count; ++stage, source += kStageBytes) {
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

// Adds the parts of panels and writes their outputs. One warp: lane 8 s + g has rows g and g + 8 of
// slab s.
//   parts: [kPanelBuffers][kParts][64]
template <class Panels>
__device__ __forceinline__ void finish_panels(const OneRowParams& params,
                                              int lane_expert,
                                              const float* parts,
                                              uint32_t full,
                                              uint32_t empty) {
  const int lane = threadIdx.x % 32, row = lane / 8 * 16 + lane % 8;
  BufferTurn<OneRowLayout<Panels>::kPanelBuffers> turn;
  for (Units units(params); units.has_next();) {
    const Unit unit = take_unit(units);
    const int expert = __shfl_sync(~0U, lane_expert, unit.slot);
    if (expert < 0) continue;
    const ExpertMatMulParams& product = params.products[unit.product];
    const float* const multipliers =
        product.row_multipliers + static_cast<size_t>(expert) * product.n + unit.panel * 64 + row;
    const float top = __ldg(multipliers) * Panels::kSumFactor;
    const float bottom = __ldg(multipliers + 8) * Panels::kSumFactor;
    const float weight =
        product.pair_weights == nullptr ? 1.0f : __ldcg(product.pair_weights + unit.slot);
    barrier_wait(full + 8 * turn.index, turn.parity);
    const float* const own = parts + turn.index * kParts * 64 + row;
    float first = 0, second = 0;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      first += own[part * 64];
      second += own[part * 64 + 8];
    }
    warp_arrive(empty + 8 * turn.index, lane);
    turn.advance();
    store_column(product,
                 first * top,
                 second * bottom,
                 unit.slot,
                 weight,
                 unit.panel * 4 + lane / 8,
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
  constexpr int kBatch = 8, kWarps = kRowThreads / 32;
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
      const float v[4] = {__uint_as_float(packed[i].x << 16),
                          __uint_as_float(packed[i].x & 0xFFFF0000U),
                          __uint_as_float(packed[i].y << 16),
                          __uint_as_float(packed[i].y & 0xFFFF0000U)};
      const float amax =
          warp_max(fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3]))));
      const uint32_t exponent = e4m3_scale_exponent(amax);
      *reinterpret_cast<uint32_t*>(codes + Row::place(group * 8 + lane / 4) + lane % 4 * 4) =
          to_e4m3x4(v, inverse_power_of_two(exponent));
      if (lane == 0) scales[group] = power_of_two(exponent);
    }
  }
}

// Brings every row that the units ask for into the row buffers, ahead of them. Two warps.
//   codes, scales: buffer 0; strides in bytes and values
template <class Panels>
__device__ __forceinline__ void bring_rows(const OneRowParams& params,
                                           int lane_expert,
                                           int thread,
                                           int max_k,
                                           uint8_t* codes,
                                           float* scales,
                                           uint32_t full,
                                           uint32_t empty) {
  using Row = typename Panels::Row;
  constexpr int kLoaders = 1;  // named barrier of the two warps
  BufferTurn<OneRowLayout<Panels>::kRowBuffers> turn;
  int last_row = 0;
  bool is_first = true;
  for (Units units(params); units.has_next();) {
    const Unit unit = take_unit(units);
    const int expert = __shfl_sync(~0U, lane_expert, unit.slot);
    const int row = row_of(params, unit);
    if (!is_first && row == last_row) continue;
    is_first = false;
    last_row = row;
    barrier_wait(empty + 8 * turn.index, turn.parity ^ 1);
    const ExpertMatMulParams& product = params.products[unit.product];
    uint8_t* const own_codes = codes + turn.index * Row::bytes(max_k);
    float* const own_scales = scales + turn.index * (max_k / 128);
    if (unit.product == 1 && expert >= 0) {
      if (thread == 0) {
        const int panels = params.products[0].n / 64;
        while (load_acquire(params.counters + unit.slot) < panels) {
        }
      }
      named_barrier_sync(kLoaders, kRowThreads);
      quantize_row<Row>(product, unit.slot, thread, own_codes, own_scales);
    } else if (unit.product == 0) {
      if (product.x_bf16 != nullptr) {
        quantize_row<Row>(product, row, thread, own_codes, own_scales);
      } else {
        copy_row<Row>(product, row, thread, own_codes, own_scales);
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

// Block: the consumers, then the helpers.
template <class Panels>
__global__ void __launch_bounds__(OneRowLayout<Panels>::kThreads + OneRowLayout<Panels>::kHelpers,
                                  1)
    one_row_expert_matmul(const OneRowParams params, int num_ring_slots) {
  using Layout = OneRowLayout<Panels>;
  using Row = typename Panels::Row;
  constexpr int kRowBuffers = Layout::kRowBuffers, kPanelBuffers = Layout::kPanelBuffers;
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ __align__(8) uint64_t ring_barriers[2 * kParts * Layout::kMaxRingSlots];
  __shared__ __align__(8) uint64_t row_barriers[2 * kRowBuffers];
  __shared__ __align__(8) uint64_t panel_barriers[2 * kPanelBuffers];
  __shared__ uint4 tables;
  __shared__ int experts[kMaxRowSlots];  // for the warp that feeds the rings
  const int max_k = max(params.products[0].k, params.products[1].k);
  const int ring_bytes = num_ring_slots * Layout::kStageBytes;
  float* const parts = reinterpret_cast<float*>(memory + kParts * ring_bytes);
  uint8_t* const row_codes = reinterpret_cast<uint8_t*>(parts) + Layout::kPartBytes;
  const int row_bytes = Row::bytes(max_k);
  float* const row_scales = reinterpret_cast<float*>(row_codes + kRowBuffers * row_bytes);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const uint32_t full = shared_address(ring_barriers);
  const uint32_t empty = full + 8 * kParts * Layout::kMaxRingSlots;
  const uint32_t row_full = shared_address(row_barriers), row_empty = row_full + 8 * kRowBuffers;
  const uint32_t panel_full = shared_address(panel_barriers);
  const uint32_t panel_empty = panel_full + 8 * kPanelBuffers;
  // Of a single product the next launch may take the slots for ready: it must not come before the
  // wait.
  const bool has_down = params.num_products == 2;
  if (has_down) launch_dependents();
  if (threadIdx.x == 0) {
    tables = Panels::table_words();
    for (int i = 0; i < kParts * Layout::kMaxRingSlots; ++i) {
      barrier_init(full + 8 * i, 1);
      barrier_init(empty + 8 * i, 4 * kWarpArrivals);
    }
    for (int i = 0; i < kRowBuffers; ++i) {
      barrier_init(row_full + 8 * i, kRowThreads / 32 * kWarpArrivals);
      barrier_init(row_empty + 8 * i, Layout::kThreads / 32 * kWarpArrivals);
    }
    for (int i = 0; i < kPanelBuffers; ++i) {
      barrier_init(panel_full + 8 * i, Layout::kThreads / 32 * kWarpArrivals);
      barrier_init(panel_empty + 8 * i, kWarpArrivals);
    }
    fence_barrier_init();
  }
  if constexpr (Row::kHasZeros) {
    for (int i = threadIdx.x; i < kRowBuffers * row_bytes / 16; i += blockDim.x) {
      reinterpret_cast<uint4*>(row_codes)[i] = {0, 0, 0, 0};
    }
    fence_async_proxy();
  }
  __syncthreads();

  const int max_slots = params.products[0].max_slots;
  const int* const slot_experts = params.products[0].slot_experts;
  const auto expert_of_lane = [&] { return lane < max_slots ? __ldcg(slot_experts + lane) : -1; };
  if (warp >= kParts * 4) {
    give_registers_back<64>();
    const int helper = warp - kParts * 4;
    if (helper != 0 || !params.products[0].slots_are_ready) wait_for_predecessors();
    const int lane_expert = expert_of_lane();
    if (helper == 0) {
      experts[lane] = lane_expert;
      __syncwarp();
      if (lane >= kParts) return;
      produce_stages<Panels>(params,
                             experts,
                             lane,
                             shared_address(memory) + lane * ring_bytes,
                             full + 8 * Layout::kMaxRingSlots * lane,
                             empty + 8 * Layout::kMaxRingSlots * lane,
                             num_ring_slots);
    } else if (helper == 1) {
      finish_panels<Panels>(params, lane_expert, parts, panel_full, panel_empty);
    } else {
      bring_rows<Panels>(params,
                         lane_expert,
                         threadIdx.x - (Layout::kThreads + 64),
                         max_k,
                         row_codes,
                         row_scales,
                         row_full,
                         row_empty);
    }
    return;
  }
  take_registers<104>();

  const int group = warp / 4, warp_in_group = warp % 4;
  StageRing ring{.stages = memory + group * ring_bytes + warp_in_group * Panels::kSlabBytes,
                 .full = full + 8 * Layout::kMaxRingSlots * group,
                 .empty = empty + 8 * Layout::kMaxRingSlots * group,
                 .num_slots = num_ring_slots,
                 .stage_bytes = Layout::kStageBytes,
                 .slot = 0,
                 .parity = 0};
  keep_in_register(ring.full);
  keep_in_register(ring.empty);
  const auto staged_row = [&](int buffer) {
    // Strides between core matrices of a DiagonalRow differ: who multiplies adds them.
    return StagedRow{.tile = side_by_side_word(shared_address(row_codes) + buffer * row_bytes,
                                               Row::kHasZeros ? 0 : 16),
                     .scales = row_scales + buffer * (max_k / 128),
                     .tables = &tables};
  };
  wait_for_predecessors();
  if (!has_down) launch_dependents();
  const int lane_expert = expert_of_lane();

  BufferTurn<kRowBuffers> row_turn;
  BufferTurn<kPanelBuffers> panel_turn;
  StagedRow staged{};
  int last_row = 0, held_buffer = -1;
  for (Units units(params); units.has_next();) {
    const Unit unit = take_unit(units);
    const int row = row_of(params, unit);
    if (held_buffer < 0 || row != last_row) {
      if (held_buffer >= 0) warp_arrive(row_empty + 8 * held_buffer, lane);
      last_row = row;
      held_buffer = row_turn.index;
      barrier_wait(row_full + 8 * row_turn.index, row_turn.parity);
      staged = staged_row(held_buffer);
      row_turn.advance();
    }
    if (__shfl_sync(~0U, lane_expert, unit.slot) < 0) continue;
    const int stages = params.products[unit.product].k / kStageK;
    const float2 sums = Panels::multiply_row(
        ring, staged, part_begin(stages, group), part_begin(stages, group + 1), stages, lane);
    barrier_wait(panel_empty + 8 * panel_turn.index, panel_turn.parity ^ 1);
    if (t == 0) {
      float* const own = parts + (panel_turn.index * kParts + group) * 64 + warp_in_group * 16 + g;
      own[0] = sums.x;
      own[8] = sums.y;
    }
    warp_arrive(panel_full + 8 * panel_turn.index, lane);
    panel_turn.advance();
  }
}

}  // namespace nibble::kernels::cuda
