// Starting the dense products for few tokens.
#pragma once

#include <algorithm>

#include "kernels/bf16_panel64.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/sm90/panel_matmul/kernel.cuh"
#include "kernels/cuda/sm90/panel_matmul/launch.h"
#include "kernels/fp8_panel64.h"

namespace nibble::kernels::cuda {

static_assert(kPanelTileBytes == kFp8TileBytes && kPanelTileBytes == kBf16PanelTileBytes);
static_assert(kPanelTerms == kBf16Terms);

// Half or all of a multiprocessor's 228 KB, less the 1 KB that the system takes of each block.
inline constexpr int32_t kPanelBlockBytes = 113 << 10, kLonePanelBlockBytes = 227 << 10;

// The arguments of a product, all blocks of `grid` for it.
inline PanelMatMulParams panel_params(const DeviceMatMulArgs& args, PanelMath math, int32_t grid) {
  const PackedWeight& weight = *args.weight;
  const bool is_fp8 = math == PanelMath::kFp8;
  const int64_t tile_k = is_fp8 ? kFp8TileK : kBf16PanelTileK;
  DCHECK(weight.layout == (is_fp8 ? PackedLayout::kFp8Panel64 : PackedLayout::kBf16Panel64));
  DCHECK(args.m >= 1 && args.m <= kMaxPanelTokens) << args.m;
  DCHECK(weight.k % (kPanelWarpgroups * tile_k * args.splits) == 0) << weight.k;
  DCHECK(weight.n % (kFp8PanelRows * args.groups) == 0) << weight.n;
  return {.x = reinterpret_cast<const uint8_t*>(is_fp8 ? args.x.fp8_blocks : args.x.bf16_terms),
          .m = args.m,
          .block_bytes = static_cast<int>(is_fp8 ? fp8_block_bytes(args.m)
                                                 : bf16_block_bytes(args.m, kBf16Terms)),
          .groups = args.groups,
          .weights = reinterpret_cast<const uint8_t*>(weight.codes),
          .weight_scales = reinterpret_cast<const float*>(weight.scales),
          .panels = static_cast<int>(weight.n / kFp8PanelRows),
          .tiles = static_cast<int>(weight.k / tile_k),
          .splits = args.splits,
          .y = args.y,
          .ring_stages = 0,
          .first_block = 0,
          .num_blocks = grid};
}

// Makes the ring of a product as long as the block's shared memory allows, and returns how much of
// it the block needs.
template <int kColumns>
int32_t size_panel_ring(PanelMatMulParams& params, int32_t most_bytes) {
  using Memory = PanelMatMulMemory<kColumns>;
  constexpr int32_t kOther = Memory::kPartialBytes + Memory::kStaticBytes;
  const int32_t stage = Memory::stage_bytes(params.block_bytes, params.m);
  params.ring_stages = std::min((most_bytes - kOther) / stage, kPanelMaxStages) / kPanelWarpgroups *
                       kPanelWarpgroups;
  return params.ring_stages * stage + Memory::kPartialBytes;
}

template <int kColumns, PanelMath kMath>
Result<void> launch_panels(const DeviceMatMulArgs& args, device::Stream& stream) {
  PanelMatMulParams params = panel_params(args, kMath, args.num_units);
  const int32_t shared_bytes = size_panel_ring<kColumns>(params, kPanelBlockBytes);
  return launch_kernel(&panel_matmul<kColumns, kMath>,
                       {.grid = static_cast<uint32_t>(args.num_units),
                        .block = kPanelThreads,
                        .shared_bytes = shared_bytes,
                        .is_dependent = args.is_dependent},
                       stream,
                       params);
}

}  // namespace nibble::kernels::cuda
