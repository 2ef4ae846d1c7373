// Starting the BF16 product for one number of terms.
#pragma once

#include <algorithm>

#include "kernels/bf16_panel64.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/sm90/bf16_matmul/kernel.cuh"
#include "kernels/device_args.h"

namespace nibble::kernels::cuda {

static_assert(kBf16TileBytes == kernels::kBf16PanelTileBytes);

template <int kColumns, int kTerms, int kBlocks>
Result<void> launch_bf16(Bf16MatMulParams params,
                         const DeviceMatMulArgs& args,
                         device::Stream& stream) {
  constexpr int32_t kStage = Bf16Stage<kColumns, kTerms>::kBytes;
  // Of a multiprocessor's 228 KB, less the 1 KB that the system takes of each block.
  constexpr int32_t kFetch = Bf16Fetch<kColumns, kTerms>::kBytes;
  constexpr int32_t kRing = (228 << 10) / kBlocks - (1 << 10) - kBf16Barriers * 8 - kFetch;
  params.ring_stages = std::min(kRing / kStage, kBf16MaxStages);
  return launch_kernel(&bf16_matmul<kColumns, kTerms, kBlocks>,
                       {.grid = static_cast<uint32_t>(args.num_units),
                        .block = kBf16Threads,
                        .shared_bytes = params.ring_stages * kStage + kFetch,
                        .is_dependent = args.is_dependent},
                       stream,
                       params);
}

template <int kTerms>
Result<void> launch_bf16_terms(const void* x,
                               const DeviceMatMulArgs& args,
                               device::Stream& stream) {
  const PackedWeight& weight = *args.weight;
  DCHECK(weight.layout == PackedLayout::kBf16Panel64);
  DCHECK(args.m >= 1 && args.y != nullptr) << args.m;
  DCHECK(weight.k % (kBf16TileK * args.splits) == 0) << weight.k;
  DCHECK(weight.n % (kBf16PanelRows * args.groups) == 0) << weight.n;
  const auto panels = static_cast<int>(weight.n / kBf16PanelRows);
  const Bf16MatMulParams params{.x = x,
                                .m = args.m,
                                .row_stride = args.groups * weight.k,
                                .weights = reinterpret_cast<const uint8_t*>(weight.codes),
                                .panels = panels,
                                .panels_per_group = panels / args.groups,
                                .tiles = static_cast<int>(weight.k / kBf16TileK),
                                .splits = args.splits,
                                .y = args.y,
                                .ring_stages = 0};
  if (args.m <= 8) return launch_bf16<8, kTerms, 2>(params, args, stream);
  if (args.m <= 16) return launch_bf16<16, kTerms, 2>(params, args, stream);
  if (args.m <= 32) return launch_bf16<32, kTerms, 1>(params, args, stream);
  if (args.m <= 64) return launch_bf16<64, kTerms, 1>(params, args, stream);
  return launch_bf16<128, kTerms, 1>(params, args, stream);
}

}  // namespace nibble::kernels::cuda
