#include <algorithm>
#include <bit>

#include "base/checked_math.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/sm90/indexer/kernel.cuh"
#include "kernels/cuda/sm90/indexer/launch.h"

namespace nibble::kernels::cuda {

static_assert(kIndexerMaxSelectColumns == kIndexerSelectColumns);

Result<void> launch_indexer_score_sm90(const DeviceIndexerScoreArgs& args, device::Stream& stream) {
  DCHECK(args.heads == kIndexHeads) << args.heads;
  const auto per_page = static_cast<uint32_t>(args.keys.entries_per_page);
  DCHECK(std::has_single_bit(per_page)) << per_page;
  const auto most_tiles =
      static_cast<int32_t>(ceil_div(args.columns, int64_t{IndexerScoreShape::kTileEntries}));
  // One has a multiprocessor: no more than have room at once.
  const int32_t blocks = std::min(std::max(args.num_units / args.m, 1), most_tiles);
  DCHECK(args.beside.head_dim <= kHeadGroups * kGroup && args.beside.head_dim % 4 == 0);
  const IndexerScoreParams params{.q = static_cast<const uint8_t*>(args.q),
                                  .head_weights = args.head_weights,
                                  .q_sums = args.q_sums,
                                  .weights = args.weights,
                                  .positions = args.positions,
                                  .rotation = args.rotation,
                                  .beside = args.beside,
                                  .m = args.m,
                                  .keys = static_cast<const uint8_t*>(args.keys.pool),
                                  .pages = args.keys.pages,
                                  .counts = args.keys.counts,
                                  .max_pages = args.keys.max_pages,
                                  .page_shift = std::countr_zero(per_page),
                                  .unscored_count = args.unscored_count,
                                  .blocks_per_token = blocks,
                                  .scores = args.scores,
                                  .columns = args.columns,
                                  .selection = args.selection};
  const bool selects = args.selection.k > 0;
  DCHECK(!selects || args.columns <= kIndexerSelectColumns) << args.columns;
  DCHECK(!selects || args.unscored_count == args.selection.k) << args.selection.k;
  return launch_kernel(selects ? &indexer_score<true> : &indexer_score<false>,
                       {.grid = static_cast<uint32_t>(args.m * blocks),
                        .block = IndexerScoreShape::kThreads,
                        .shared_bytes = IndexerScoreShape::kBytes,
                        .is_dependent = args.is_dependent},
                       stream,
                       params);
}

}  // namespace nibble::kernels::cuda
