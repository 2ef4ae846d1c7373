// Launching the expert product of one format.
#pragma once

#include <cmath>

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/sm120/expert_matmul/kernel.cuh"
#include "kernels/device_args.h"
#include "kernels/slab16.h"

namespace nibble::kernels::cuda {

inline constexpr int kSlabRingStages = 4;  // 34 KB in flight per block; 22 KB fill the memory

template <class Slab, int kRows>
Result<void> launch_slab_experts(const SlabExpertParams& params,
                                 const DeviceGroupedMatMulArgs& args,
                                 device::Stream& stream) {
  using Memory = SlabBlockMemory<Slab, slab_tiles_of(kRows), kSlabRingStages>;
  static_assert(Memory::kBytes * kSlabBlocksPerUnit <= 98 << 10);
  const LaunchShape shape{.grid = static_cast<uint32_t>(args.num_units * kSlabBlocksPerUnit),
                          .block = kSlabThreads,
                          .shared_bytes = Memory::kBytes,
                          .is_dependent = args.is_dependent};
  return args.swiglu
             ? launch_kernel(
                   &slab_expert_matmul<Slab, kRows, kSlabRingStages, true>, shape, stream, params)
             : launch_kernel(
                   &slab_expert_matmul<Slab, kRows, kSlabRingStages, false>, shape, stream, params);
}

inline SlabExpertParams slab_expert_params(const DeviceGroupedMatMulArgs& args) {
  const PackedWeight& weight = *args.weight;
  DCHECK(weight.layout == PackedLayout::kSlab16);
  DCHECK(weight.n % kSlabRows == 0 && weight.k % kSlabStageK == 0) << weight.n << "x" << weight.k;
  return {.x_codes = reinterpret_cast<const uint8_t*>(args.x.fp8),
          .x_scales = args.x.fp8_scales,
          .x_bf16 = static_cast<const uint16_t*>(args.x.bf16),
          .pairs_per_row = args.pairs_per_row,
          .weights = reinterpret_cast<const uint8_t*>(weight.codes),
          .row_multipliers = weight.global_scales,
          .slot_count = args.slots.count,
          .max_slots = args.slots.max_slots,
          .slot_experts = args.slots.experts,
          .slot_pairs = args.slots.pairs,
          .slots_are_ready = args.slots_are_ready,
          .limit = args.limit > 0 ? args.limit : INFINITY,
          .pair_weights = args.pair_weights,
          .y = args.y,
          .n = static_cast<int>(weight.n),
          .k = static_cast<int>(weight.k)};
}

template <class Slab>
Result<void> launch_slab_experts(const DeviceGroupedMatMulArgs& args, device::Stream& stream) {
  const SlabExpertParams params = slab_expert_params(args);
  switch (args.slots.rows) {
    case 1:
      return launch_slab_experts<Slab, 1>(params, args, stream);
    case 8:
      return launch_slab_experts<Slab, 8>(params, args, stream);
    default:
      DCHECK(args.slots.rows == 16) << args.slots.rows;
      return launch_slab_experts<Slab, 16>(params, args, stream);
  }
}

}  // namespace nibble::kernels::cuda
