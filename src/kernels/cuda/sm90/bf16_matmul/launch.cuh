// Starting the BF16 product.
#pragma once

#include <algorithm>

#include "kernels/bf16_panel64.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/sm90/bf16_matmul/kernel.cuh"
#include "kernels/device_args.h"

namespace nibble::kernels::cuda {

static_assert(kBf16TileBytes == kernels::kBf16PanelTileBytes);
static_assert(kBf16SliceTokens == kSliceRows);

template <int kColumns, int kTerms>
Result<void> launch_bf16(Bf16MatMulParams params,
                         const DeviceMatMulArgs& args,
                         device::Stream& stream) {
  using Shape = Bf16Shape<kColumns, kTerms>;
  // Of a multiprocessor's 228 KB, less the 1 KB that the system takes of each block.
  constexpr int32_t kRing = (227 << 10) - kBf16Barriers * 8;
  params.ring_stages = std::min(kRing / Shape::kStageBytes, kBf16MaxStages);
  return launch_kernel(
      &bf16_matmul<kColumns, kTerms>,
      {.grid = static_cast<uint32_t>(args.num_units) / Shape::kCluster * Shape::kCluster,
       .block = kBf16Threads,
       .shared_bytes = params.ring_stages * Shape::kStageBytes,
       .is_dependent = args.is_dependent,
       .cluster = Shape::kCluster},
      stream,
      params);
}

inline Bf16MatMulParams bf16_params(const std::byte* x, const DeviceMatMulArgs& args) {
  const PackedWeight& weight = *args.weight;
  DCHECK(weight.layout == PackedLayout::kBf16Panel64);
  DCHECK(args.m >= 1 && args.y != nullptr) << args.m;
  DCHECK(weight.k % (kBf16TileK * args.splits) == 0) << weight.k;
  DCHECK(weight.n % (kBf16PanelRows * args.groups) == 0) << weight.n;
  const auto panels = static_cast<int>(weight.n / kBf16PanelRows);
  return {.x = reinterpret_cast<const uint8_t*>(x),
          .m = args.m,
          .weights = reinterpret_cast<const uint8_t*>(weight.codes),
          .panels = panels,
          .panels_per_group = panels / args.groups,
          .tiles = static_cast<int>(weight.k / kBf16TileK),
          .splits = args.splits,
          .y = args.y,
          .ring_stages = 0};
}

}  // namespace nibble::kernels::cuda
