#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/sm90/stream_turn/kernel.cuh"
#include "kernels/cuda/sm90/stream_turn/launch.h"

namespace nibble::kernels::cuda {
namespace {

template <int kGroups>
Result<void> launch(const DeviceStreamTurnArgs& args, device::Stream& stream) {
  using Turn = StreamTurn<kGroups>;
  return launch_kernel(&stream_turn<kGroups>,
                       {.grid = static_cast<uint32_t>(args.update.m * kTurnCluster),
                        .block = Turn::kThreads,
                        .shared_bytes = Turn::kFnBytes,
                        .is_dependent = args.is_dependent,
                        .cluster = kTurnCluster},
                       stream,
                       args);
}

}  // namespace

Result<void> launch_stream_turn_sm90(const DeviceStreamTurnArgs& args, device::Stream& stream) {
  const DeviceStreamUpdateArgs& update = args.update;
  DCHECK(update.hc_mult == kTurnStreams && update.num_mix <= kTurnMix) << update.hc_mult;
  DCHECK(update.hidden % kGroup == 0) << update.hidden;
  DCHECK(args.mix.m <= update.m) << args.mix.m;
  constexpr int64_t kFewColumns = int64_t{StreamTurn<2>::kColumns} * kTurnCluster;
  return update.hidden <= kFewColumns ? launch<2>(args, stream) : launch<4>(args, stream);
}

}  // namespace nibble::kernels::cuda
