#include <algorithm>

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/sm90/fp8_matmul/kernel.cuh"
#include "kernels/cuda/sm90/fp8_matmul/launch.h"
#include "kernels/fp8_panel64.h"

namespace nibble::kernels::cuda {
namespace {

static_assert(kFp8TileBytes == kernels::kFp8TileBytes);

// Half of a multiprocessor's 228 KB, less the 1 KB that the system takes of each block.
constexpr int32_t kBlockBytes = 113 << 10;

template <int kColumns, bool kQuantize>
Result<void> launch(Fp8MatMulParams params, const DeviceMatMulArgs& args, device::Stream& stream) {
  using Memory = Fp8MatMulMemory<kColumns>;
  const int32_t stage = Memory::stage_bytes(params.block_bytes);
  constexpr int32_t kOther = Memory::kPartialBytes + Memory::template static_bytes<kQuantize>();
  params.ring_stages =
      std::min((kBlockBytes - kOther) / stage, kFp8MaxStages) / kFp8Warpgroups * kFp8Warpgroups;
  return launch_kernel(&fp8_matmul<kColumns, kQuantize>,
                       {.grid = static_cast<uint32_t>(args.num_units) / 2 * 2,
                        .block = kFp8Consumers + 32,
                        .shared_bytes = params.ring_stages * stage + Memory::kPartialBytes,
                        .is_dependent = args.is_dependent,
                        .cluster = kQuantize ? 2U : 1U},
                       stream,
                       params);
}

}  // namespace

Result<void> launch_fp8_matmul_sm90(const DeviceMatMulArgs& args, device::Stream& stream) {
  const PackedWeight& weight = *args.weight;
  const bool quantize = args.y_fp8 != nullptr;
  DCHECK(weight.layout == PackedLayout::kFp8Panel64);
  DCHECK(args.m >= 1 && args.m <= kMaxFp8Tokens) << args.m;
  DCHECK(weight.k % (256 * args.splits) == 0 && weight.k / args.splits <= kFp8MaxTiles * 128)
      << weight.k;
  DCHECK(weight.n % (kFp8PanelRows * (quantize ? 2 : 1) * args.groups) == 0) << weight.n;
  DCHECK(!quantize || args.splits == 1) << args.splits;
  const Fp8MatMulParams params{.x = reinterpret_cast<const uint8_t*>(args.x.fp8_blocks),
                               .m = args.m,
                               .block_bytes = static_cast<int>(fp8_block_bytes(args.m)),
                               .groups = args.groups,
                               .weights = reinterpret_cast<const uint8_t*>(weight.codes),
                               .weight_scales = reinterpret_cast<const float*>(weight.scales),
                               .panels = static_cast<int>(weight.n / kFp8PanelRows),
                               .tiles = static_cast<int>(weight.k / kFp8TileK),
                               .splits = args.splits,
                               .y = args.y,
                               .y_fp8 = reinterpret_cast<uint8_t*>(args.y_fp8),
                               .ring_stages = 0};
  if (args.m <= 8) {
    return quantize ? launch<8, true>(params, args, stream)
                    : launch<8, false>(params, args, stream);
  }
  return quantize ? launch<16, true>(params, args, stream)
                  : launch<16, false>(params, args, stream);
}

}  // namespace nibble::kernels::cuda
