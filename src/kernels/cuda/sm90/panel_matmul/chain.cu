#include "kernels/cuda/sm90/panel_matmul/chain_kernel.cuh"
#include "kernels/cuda/sm90/panel_matmul/launch.cuh"
#include "kernels/matmul_chain.h"

namespace nibble::kernels::cuda {
namespace {

// Which items each phase has and how blocks share them; with one half everything is in the first.
void set_phases(const DeviceMatMulChainArgs& args, PanelChainParams& params) {
  const int halves = chain_halves(args.second.weight->k, args.second.splits);
  std::array<ChainPart, kNumChainPhases> shared;
  for (int phase = 0; phase < kNumChainPhases; ++phase) {
    const int half = phase == kOtherHalf || phase == kSecondOfOtherHalf ? 1 : 0;
    const PanelMatMulParams& product = is_of_first(phase) ? params.first : params.second;
    PanelPart& part = params.parts[phase];
    part = whole_product(product);
    if (is_of_first(phase)) {
      part.first_panel = half * product.panels / halves;
    } else {
      part.num_splits = product.splits / halves;
      part.first_split = half * part.num_splits;
    }
    if (half == halves) continue;
    shared[static_cast<size_t>(phase)] = {
        .items = int64_t{product.panels} * product.splits / halves,
        .bytes = int64_t{product.tiles} / product.splits * kPanelTileBytes};
  }
  const ChainShares shares = share_chain_items(shared, args.first.num_units);
  for (size_t p = 0; p < shares.size(); ++p) {
    std::copy(shares[p].begin(), shares[p].end(), params.begins[p]);
  }
}

}  // namespace

Result<void> launch_matmul_chain_sm90(const DeviceMatMulChainArgs& args, device::Stream& stream) {
  using Memory = PanelMatMulMemory<kMaxChainTokens>;
  const int32_t grid = args.first.num_units;
  DCHECK(args.first.m == args.second.m && args.first.m <= kMaxChainTokens) << args.first.m;
  CHECK(grid == args.second.num_units && grid <= kMaxChainBlocks) << grid;
  DCHECK(args.second.weight->k == args.first.weight->n && args.second.groups == 1);
  DCHECK(args.first.weight->k / args.first.splits <= kPanelMaxScales * kFp8TileK);
  DCHECK(args.second.weight->k / args.second.splits <= kPanelMaxScales * kFp8TileK);
  PanelChainParams params{};
  params.first = panel_params(args.first, PanelMath::kFp8, grid);
  params.second = panel_params(args.second, PanelMath::kFp8, grid);
  params.stage_bytes = Memory::stage_bytes(params.first.block_bytes, args.first.m);
  params.num_stages = num_panel_stages<kMaxChainTokens>(params.stage_bytes);
  params.blocks = reinterpret_cast<uint8_t*>(args.second.x.fp8_blocks);
  params.ready = args.counters;
  params.arrivals = params.ready + args.second.splits;
  params.done = params.arrivals + args.second.weight->k / kFp8TileK;
  set_phases(args, params);
  return launch_kernel(
      &panel_matmul_chain,
      {.grid = static_cast<uint32_t>(grid),
       .block = kPanelThreads,
       .shared_bytes = params.num_stages * params.stage_bytes + Memory::kPartialBytes,
       .is_dependent = args.first.is_dependent},
      stream,
      params);
}

}  // namespace nibble::kernels::cuda
