#include <algorithm>
#include <cmath>

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/sm90/expert_matmul/kernel.cuh"
#include "kernels/cuda/sm90/expert_matmul/launch.h"
#include "kernels/panel64.h"

namespace nibble::kernels::cuda {
namespace {

static_assert(kStageBytes == kPanelStageBytes && kStageK == kPanelStageK);
static_assert(kSlabBytes == kPanelSlabBytes);

constexpr int32_t kSharedBytes = 226 << 10;  // of 228 KB: static arrays, 1 KB per block

// The compiled variants, as types.
template <int kWarpgroups_, int kRows_, int kBlocksPerUnit_>
struct Variant {
  static constexpr int kWarpgroups = kWarpgroups_, kRows = kRows_;
  static constexpr int kBlocksPerUnit = kBlocksPerUnit_;  // that registers and memory are for
  using Memory = ExpertMatMulMemory<kWarpgroups, kRows>;
};

// Calls `use` with the variant of `shape` for slots of `rows`.
template <int kRows, class Use>
auto with_variant(const ExpertMatMulShape& shape, const Use& use) {
  switch (shape.warpgroups) {
    case 4:
      return use(Variant<4, kRows, 1>{});
    case 2:
      return shape.blocks_per_unit == 1 ? use(Variant<2, kRows, 1>{}) : use(Variant<2, kRows, 2>{});
    default:
      return use(Variant<1, kRows, 1>{});
  }
}
template <class Use>
auto with_variant(const ExpertMatMulShape& shape, int32_t rows, const Use& use) {
  switch (rows) {
    case kOneSlotRow:
      return with_variant<kOneSlotRow>(shape, use);
    case kSmallSlotRows:
      return with_variant<kSmallSlotRows>(shape, use);
    default:
      return with_variant<kLargeSlotRows>(shape, use);
  }
}

template <class V, bool kSwiglu>
Result<void> launch(const ExpertMatMulParams& params,
                    const DeviceGroupedMatMulArgs& args,
                    const ExpertMatMulShape& shape,
                    device::Stream& stream) {
  return launch_kernel(
      &expert_matmul<V::kWarpgroups, V::kRows, kSwiglu, V::kBlocksPerUnit>,
      {.grid = static_cast<uint32_t>(args.num_units * shape.blocks_per_unit),
       .block = V::kWarpgroups * 128 + 32,
       .shared_bytes = shape.ring_stages * kStageBytes + V::Memory::fixed_bytes(params.k),
       .is_dependent = args.is_dependent},
      stream,
      params,
      shape.ring_stages);
}

}  // namespace

ExpertMatMulShape expert_matmul_shape(const DeviceGroupedMatMulArgs& args) {
  constexpr int32_t kFewSlots = 16;  // a short ring starts sooner
  const int64_t stages = args.weight->k / kStageK;
  const bool has_few_slots = args.slots.max_slots <= kFewSlots;
  ExpertMatMulShape shape{.warpgroups = 1, .blocks_per_unit = 1, .ring_stages = 4};
  if (stages % 4 == 0 && stages >= 16) {
    shape = {.warpgroups = 4, .blocks_per_unit = 1, .ring_stages = has_few_slots ? 8 : 12};
  } else if (stages % 2 == 0) {
    // Panels of short k end often; a second block computes while one of them does.
    shape = has_few_slots ? ExpertMatMulShape{2, 1, 8} : ExpertMatMulShape{2, 2, 6};
    // One block only: two of a launch would share a multiprocessor that the last one leaves early.
    if (args.slots.rows == kOneSlotRow) shape = {2, 1, 14};
  }
  const int32_t fitting = with_variant(shape, args.slots.rows, [&](auto variant) {
    const auto k = static_cast<int>(args.weight->k);
    return (kSharedBytes / decltype(variant)::kBlocksPerUnit -
            decltype(variant)::Memory::fixed_bytes(k)) /
           kStageBytes;
  });
  shape.ring_stages = std::min(shape.ring_stages, fitting) / shape.warpgroups * shape.warpgroups;
  return shape;
}

Result<void> launch_expert_matmul_sm90(const DeviceGroupedMatMulArgs& args,
                                       device::Stream& stream) {
  return launch_expert_matmul_sm90_shaped(args, expert_matmul_shape(args), stream);
}

Result<void> launch_expert_matmul_sm90_shaped(const DeviceGroupedMatMulArgs& args,
                                              const ExpertMatMulShape& shape,
                                              device::Stream& stream) {
  const PackedWeight& weight = *args.weight;
  DCHECK(weight.layout == PackedLayout::kPanel64);
  DCHECK(weight.n % kPanelRows == 0 && weight.k % kStageK == 0 && weight.k <= kMaxK);
  DCHECK(args.slots.rows == kOneSlotRow || args.slots.rows == kSmallSlotRows ||
         args.slots.rows == kLargeSlotRows);
  DCHECK(args.slots.rows == kOneSlotRow || (args.x.bf16 == nullptr && !args.slots_are_ready));
  DCHECK(shape.ring_stages % shape.warpgroups == 0 && shape.ring_stages <= kMaxStages);
  const ExpertMatMulParams params{.x_codes = reinterpret_cast<const uint8_t*>(args.x.fp8),
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
                                  .limit = args.limit > 0 ? args.limit : INFINITY,
                                  .pair_weights = args.pair_weights,
                                  .y = args.y,
                                  .n = static_cast<int>(weight.n),
                                  .k = static_cast<int>(weight.k)};
  return with_variant(shape, args.slots.rows, [&](auto variant) {
    using V = decltype(variant);
    return args.swiglu ? launch<V, true>(params, args, shape, stream)
                       : launch<V, false>(params, args, shape, stream);
  });
}

}  // namespace nibble::kernels::cuda
