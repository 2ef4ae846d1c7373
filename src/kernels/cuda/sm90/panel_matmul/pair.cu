#include "kernels/cuda/sm90/panel_matmul/launch.cuh"

namespace nibble::kernels::cuda {
namespace {

template <int kColumns>
Result<void> launch(const DeviceMatMulPairArgs& args, device::Stream& stream) {
  const int32_t grid = args.first.num_units;
  PanelMatMulParams fp8 = panel_params(args.first, PanelMath::kFp8, args.first_blocks);
  PanelMatMulParams bf16 =
      panel_params(args.second, PanelMath::kBf16Terms, grid - args.first_blocks);
  bf16.first_block = args.first_blocks;
  const int32_t fp8_bytes = size_panel_ring<kColumns, false>(fp8);
  const int32_t bf16_bytes = size_panel_ring<kColumns, false>(bf16);
  return launch_kernel(&panel_matmul_pair<kColumns>,
                       {.grid = static_cast<uint32_t>(grid),
                        .block = kPanelConsumers + 32,
                        .shared_bytes = std::max(fp8_bytes, bf16_bytes),
                        .is_dependent = args.first.is_dependent},
                       stream,
                       fp8,
                       bf16);
}

}  // namespace

Result<void> launch_matmul_pair_sm90(const DeviceMatMulPairArgs& args, device::Stream& stream) {
  DCHECK(args.first.m == args.second.m && args.first.num_units == args.second.num_units);
  DCHECK(args.first_blocks > 0 && args.first_blocks < args.first.num_units) << args.first_blocks;
  DCHECK(args.first.weight->k / args.first.splits <= kPanelMaxScales * kFp8TileK);
  return args.first.m <= 8 ? launch<8>(args, stream) : launch<16>(args, stream);
}

}  // namespace nibble::kernels::cuda
