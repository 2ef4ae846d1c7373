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

template <int kWarpgroups, int kRows, bool kSwiglu, int kBlocksPerUnit>
Result<void> launch(const ExpertMatMulParams& params,
                    const DeviceGroupedMatMulArgs& args,
                    const ExpertMatMulShape& shape,
                    device::Stream& stream) {
  const int32_t fixed = ExpertMatMulMemory<kWarpgroups, kRows>::fixed_bytes(params.k);
  return launch_kernel(&expert_matmul<kWarpgroups, kRows, kSwiglu, kBlocksPerUnit>,
                       {.grid = static_cast<uint32_t>(args.num_units * kBlocksPerUnit),
                        .block = kWarpgroups * 128 + 32,
                        .shared_bytes = shape.ring_stages * kStageBytes + fixed,
                        .is_dependent = args.is_dependent},
                       stream,
                       params,
                       shape.ring_stages);
}

template <int kWarpgroups, int kRows, int kBlocksPerUnit>
Result<void> launch(const ExpertMatMulParams& params,
                    const DeviceGroupedMatMulArgs& args,
                    const ExpertMatMulShape& shape,
                    device::Stream& stream) {
  return args.swiglu
             ? launch<kWarpgroups, kRows, true, kBlocksPerUnit>(params, args, shape, stream)
             : launch<kWarpgroups, kRows, false, kBlocksPerUnit>(params, args, shape, stream);
}

template <int kWarpgroups, int kBlocksPerUnit>
Result<void> launch(const ExpertMatMulParams& params,
                    const DeviceGroupedMatMulArgs& args,
                    const ExpertMatMulShape& shape,
                    device::Stream& stream) {
  return args.slots.rows == kSmallSlotRows
             ? launch<kWarpgroups, kSmallSlotRows, kBlocksPerUnit>(params, args, shape, stream)
             : launch<kWarpgroups, kLargeSlotRows, kBlocksPerUnit>(params, args, shape, stream);
}

int32_t fixed_bytes(int32_t warpgroups, int32_t rows, int64_t k) {
  const auto depth = static_cast<int>(k);
  const bool is_small = rows == kSmallSlotRows;
  switch (warpgroups) {
    case 4:
      return is_small ? ExpertMatMulMemory<4, kSmallSlotRows>::fixed_bytes(depth)
                      : ExpertMatMulMemory<4, kLargeSlotRows>::fixed_bytes(depth);
    case 2:
      return is_small ? ExpertMatMulMemory<2, kSmallSlotRows>::fixed_bytes(depth)
                      : ExpertMatMulMemory<2, kLargeSlotRows>::fixed_bytes(depth);
    default:
      return is_small ? ExpertMatMulMemory<1, kSmallSlotRows>::fixed_bytes(depth)
                      : ExpertMatMulMemory<1, kLargeSlotRows>::fixed_bytes(depth);
  }
}

}  // namespace

ExpertMatMulShape expert_matmul_shape(const DeviceGroupedMatMulArgs& args) {
  constexpr int32_t kSharedBytes = 226 << 10;  // of 228 KB: static arrays, 1 KB per block
  constexpr int32_t kFewSlots = 16;            // a short ring starts sooner
  const int64_t stages = args.weight->k / kStageK;
  const bool has_few_slots = args.slots.max_slots <= kFewSlots;
  ExpertMatMulShape shape{.warpgroups = 1, .blocks_per_unit = 1, .ring_stages = 4};
  if (stages % 4 == 0 && stages >= 16) {
    shape = {.warpgroups = 4, .blocks_per_unit = 1, .ring_stages = has_few_slots ? 8 : 12};
  } else if (stages % 2 == 0) {
    // Panels of short k end often; a second block computes while one of them does.
    shape = has_few_slots ? ExpertMatMulShape{2, 1, 8} : ExpertMatMulShape{2, 2, 6};
  }
  const int32_t fixed = fixed_bytes(shape.warpgroups, args.slots.rows, args.weight->k);
  const int32_t fitting = (kSharedBytes / shape.blocks_per_unit - fixed) / kStageBytes;
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
  DCHECK(args.slots.rows == kSmallSlotRows || args.slots.rows == kLargeSlotRows);
  DCHECK(shape.ring_stages % shape.warpgroups == 0 && shape.ring_stages <= kMaxStages);
  const ExpertMatMulParams params{.x_codes = reinterpret_cast<const uint8_t*>(args.x.codes),
                                  .x_scales = args.x.scales,
                                  .pairs_per_row = args.pairs_per_row,
                                  .weights = reinterpret_cast<const uint8_t*>(weight.codes),
                                  .row_multipliers = weight.global_scales,
                                  .slot_count = args.slots.count,
                                  .max_slots = args.slots.max_slots,
                                  .slot_experts = args.slots.experts,
                                  .slot_pairs = args.slots.pairs,
                                  .limit = args.limit > 0 ? args.limit : INFINITY,
                                  .pair_weights = args.pair_weights,
                                  .y = args.y,
                                  .n = static_cast<int>(weight.n),
                                  .k = static_cast<int>(weight.k)};
  const bool one_block = shape.blocks_per_unit == 1;
  switch (shape.warpgroups) {
    case 4:
      return launch<4, 1>(params, args, shape, stream);
    case 2:
      return one_block ? launch<2, 1>(params, args, shape, stream)
                       : launch<2, 2>(params, args, shape, stream);
    default:
      return launch<1, 1>(params, args, shape, stream);
  }
}

}  // namespace nibble::kernels::cuda
