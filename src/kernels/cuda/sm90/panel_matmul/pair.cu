#include "kernels/cuda/sm90/panel_matmul/launch.cuh"

namespace nibble::kernels::cuda {
namespace {

// Before pairs small ops run on a few multiprocessors: blocks of which two fit would go in twos to
// others. Their rings are longer than that.
static_assert(kPanelMaxStages * kPanelTileBytes > kPanelBlockBytes);
template <int kColumns, PanelMath kSecond>
Result<void> launch(const DeviceMatMulPairArgs& args, device::Stream& stream) {
  const int32_t grid = args.first.num_units;
  PanelMatMulParams first = panel_params(args.first, PanelMath::kFp8, args.first_blocks);
  PanelMatMulParams second = panel_params(args.second, kSecond, grid - args.first_blocks);
  second.first_block = args.first_blocks;
  const int32_t first_bytes = size_panel_ring<kColumns>(first, kLonePanelBlockBytes);
  const int32_t second_bytes = size_panel_ring<kColumns>(second, kLonePanelBlockBytes);
  return launch_kernel(&panel_matmul_pair<kColumns, kSecond>,
                       {.grid = static_cast<uint32_t>(grid),
                        .block = kPanelThreads,
                        .shared_bytes = std::max(first_bytes, second_bytes),
                        .is_dependent = args.first.is_dependent},
                       stream,
                       first,
                       second);
}

template <int kColumns>
Result<void> launch(const DeviceMatMulPairArgs& args, device::Stream& stream) {
  return args.second.weight->layout == PackedLayout::kFp8Panel64
             ? launch<kColumns, PanelMath::kFp8>(args, stream)
             : launch<kColumns, PanelMath::kBf16Terms>(args, stream);
}

}  // namespace

Result<void> launch_matmul_pair_sm90(const DeviceMatMulPairArgs& args, device::Stream& stream) {
  DCHECK(args.first.m == args.second.m && args.first.num_units == args.second.num_units);
  DCHECK(args.first_blocks > 0 && args.first_blocks < args.first.num_units) << args.first_blocks;
  DCHECK(args.first.weight->k / args.first.splits <= kPanelMaxScales * kFp8TileK);
  return args.first.m <= 8 ? launch<8>(args, stream) : launch<16>(args, stream);
}

}  // namespace nibble::kernels::cuda
