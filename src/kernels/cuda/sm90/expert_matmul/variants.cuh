// The launches of one weight format, and what every launch of the expert product prepares.
#pragma once

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/sm90/expert_matmul/kernel.cuh"
#include "kernels/cuda/sm90/expert_matmul/launch.h"
#include "kernels/cuda/sm90/expert_matmul/one_row_kernel.cuh"
#include "kernels/fp8_panel64.h"
#include "kernels/panel64.h"

namespace nibble::kernels::cuda {

inline ExpertMatMulParams expert_params(const DeviceGroupedMatMulArgs& args) {
  const PackedWeight& weight = *args.weight;
  DCHECK(weight.layout == PackedLayout::kPanel64);
  DCHECK(weight.n % kPanelRows == 0 && weight.k % kPanelStageK == 0);
  return {.x_codes = reinterpret_cast<const uint8_t*>(args.x.fp8),
          .x_scales = args.x.fp8_scales,
          .x_bf16 = static_cast<const __nv_bfloat16*>(args.x.bf16),
          .pairs_per_row = args.pairs_per_row,
          .weights = reinterpret_cast<const uint8_t*>(weight.codes),
          .row_multipliers = weight.global_scales,
          .slot_count = args.slots.count,
          .max_slots = args.slots.max_slots,
          .slot_experts = args.slots.experts,
          .slot_pairs = args.slots.pairs,
          .slots_are_ready = args.slots_are_ready,
          .swiglu = args.swiglu,
          .limit = args.limit > 0 ? args.limit : INFINITY,
          .pair_weights = args.pair_weights,
          .y = args.y,
          .n = static_cast<int>(weight.n),
          .k = static_cast<int>(weight.k)};
}

// Of 228 KB per multiprocessor: 1 KB per block is taken, the static arrays come on top.
inline constexpr int32_t kExpertSharedBytes = 226 << 10;
inline constexpr int32_t kOneRowSharedBytes =
    (227 << 10) - static_cast<int32_t>(sizeof(OneRowShared));

// The shared expert's second product: its row is made from args.choice.
inline BesideParams beside_params(const DeviceGroupedMatMulArgs& args) {
  if (args.beside.weight == nullptr) return {};
  const PackedWeight& weight = *args.beside.weight;
  const DeviceSwiglu& shared = args.choice.shared;
  static_assert(kBesideSplits == kBesideHalves && kBesideTileBytes == kFp8TileBytes);
  constexpr int64_t kPartK = kBesideHalves * kBesideGroups * kBesideTileK;
  DCHECK(weight.layout == PackedLayout::kFp8Panel64 && args.beside.groups == 1);
  DCHECK(args.beside.m == 1 && args.beside.splits == kBesideSplits) << args.beside.splits;
  DCHECK(shared.m == 1 && shared.n == weight.k) << shared.n;
  DCHECK(weight.n % kFp8PanelRows == 0 && weight.k % kPartK == 0) << weight.k;
  DCHECK(weight.k / kPartK <= 32) << weight.k;  // lanes, which hold the tiles' scales
  return {.gate_up = shared.x,
          .limit = shared.limit > 0 ? shared.limit : INFINITY,
          .weights = reinterpret_cast<const uint8_t*>(weight.codes),
          .weight_scales = reinterpret_cast<const float*>(weight.scales),
          .y = args.beside.y,
          .panels = static_cast<int>(weight.n / kFp8PanelRows),
          .tiles = static_cast<int>(weight.k / kBesideTileK)};
}

inline OneRowParams one_row_params(const DeviceGroupedMatMulArgs& args) {
  OneRowParams params{.products = {expert_params(args), {}},
                      .num_products = 1,
                      .counters = args.down.counters,
                      .choice = args.choice,
                      .beside = beside_params(args)};
  if (args.down.weight == nullptr) return params;
  DCHECK(args.swiglu && args.down.counters != nullptr);
  DeviceGroupedMatMulArgs down = args;
  down.x = {.bf16 = args.y};
  down.pairs_per_row = 1;
  down.weight = args.down.weight;
  down.swiglu = false;
  down.pair_weights = nullptr;
  down.y = args.down.y;
  params.products[1] = expert_params(down);
  params.num_products = 2;
  return params;
}

template <class Panels>
Result<void> launch_one_row(const DeviceGroupedMatMulArgs& args, device::Stream& stream) {
  using Layout = OneRowLayout<Panels>;
  // What reads of a few bytes wait for: everything that was asked for before them.
  constexpr int32_t kMostRingSlots = 3;
  const OneRowParams params = one_row_params(args);
  const int32_t max_k = max_k_of(params);
  const int32_t fixed = OneRowMemory::fixed_bytes(
      Panels::Row::bytes(max_k), max_k, params.beside.tiles * kBesideTileK);
  const int32_t part_slots = (kOneRowSharedBytes - fixed) / (kParts * Layout::kStageBytes);
  const int32_t ring_slots = std::min(kMostRingSlots, part_slots);
  DCHECK(max_k <= kMaxK && ring_slots >= 2 && ring_slots <= Layout::kMaxRingSlots) << max_k;
  DCHECK(args.slots.max_slots <= kMaxRowSlots) << args.slots.max_slots;
  DCHECK(args.choice.tokens.m == 0 || args.slots.max_slots == args.choice.choices);
  DCHECK(args.choice.slots.count == nullptr && !args.choice.reuse_ids);
  DCHECK(args.choice.num_experts <= kMaxChosenFrom) << args.choice.num_experts;
  return launch_kernel(&one_row_expert_matmul<Panels>,
                       {.grid = static_cast<uint32_t>(args.num_units),
                        .block = Layout::kThreads + Layout::kHelpers,
                        .shared_bytes = ring_slots * kParts * Layout::kStageBytes + fixed,
                        .is_dependent = args.is_dependent},
                       stream,
                       params,
                       ring_slots);
}

template <class Panels, int kRows>
Result<void> launch_rows(const DeviceGroupedMatMulArgs& args, device::Stream& stream) {
  using Layout = ExpertMatMulLayout<Panels, kRows>;
  // More in flight does not read faster.
  constexpr int32_t kMostRingSlots = 4;
  const ExpertMatMulParams params = expert_params(args);
  const int32_t fixed = Layout::fixed_bytes(params.k);
  const int32_t warpgroup_stages =
      (kExpertSharedBytes - fixed) / (Layout::kWarpgroups * Layout::kStageBytes);
  const int32_t ring_slots = std::min(kMostRingSlots, warpgroup_stages);
  DCHECK(params.k <= kMaxK && ring_slots >= 2 && ring_slots <= kMaxRingSlots) << params.k;
  return launch_kernel(
      &expert_matmul<Panels, kRows>,
      {.grid = static_cast<uint32_t>(args.num_units),
       .block = Layout::kThreads + Layout::kProducers,
       .shared_bytes = ring_slots * Layout::kWarpgroups * Layout::kStageBytes + fixed,
       .is_dependent = args.is_dependent},
      stream,
      params,
      ring_slots);
}

template <class Panels>
Result<void> launch_format(const DeviceGroupedMatMulArgs& args, device::Stream& stream) {
  switch (args.slots.rows) {
    case kOneSlotRow:
      return launch_one_row<Panels>(args, stream);
    case kSmallSlotRows:
      return launch_rows<Panels, kSmallSlotRows>(args, stream);
    default:
      DCHECK(args.slots.rows == kLargeSlotRows) << args.slots.rows;
      return launch_rows<Panels, kLargeSlotRows>(args, stream);
  }
}

}  // namespace nibble::kernels::cuda
