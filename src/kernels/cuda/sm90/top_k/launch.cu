#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/sm90/top_k/kernel.cuh"
#include "kernels/cuda/sm90/top_k/launch.h"

namespace nibble::kernels::cuda {
namespace {

static_assert(kTopKMaxColumns == kTopKPart * kTopKMaxCluster);
static_assert(kTopKMaxSelected == kTopKMaxK && kTopKMaxK * kTopKMaxCluster <= kTopKPart);

int32_t cluster_of(int64_t columns) { return columns > kTopKPart ? kTopKMaxCluster : 1; }

}  // namespace

int64_t top_k_workspace_bytes(int32_t m, int32_t k, int64_t columns) {
  const int32_t cluster = cluster_of(columns);
  return cluster == 1 ? 0 : int64_t{m} * cluster * k * 8;
}

Result<void> launch_top_k(const DeviceTopKArgs& args, device::Stream& stream) {
  DCHECK(args.columns <= kTopKMaxColumns && args.columns % 4 == 0) << args.columns;
  DCHECK(args.k <= kTopKMaxSelected && args.k % 4 == 0) << args.k;
  const int32_t cluster = cluster_of(args.columns);
  const int64_t num_candidates = int64_t{args.m} * cluster * args.k;
  const TopKParams params{
      .scores = args.scores,
      .counts = args.counts,
      .columns = args.columns,
      .k = args.k,
      .pages = args.pages,
      .max_pages = args.max_pages,
      .entries_per_page = args.entries_per_page,
      .indices = args.indices,
      .num_selected = args.num_selected,
      .skips_short_rows = args.skips_short_rows,
      .candidate_keys = reinterpret_cast<uint32_t*>(args.workspace),
      .candidate_indices = reinterpret_cast<int32_t*>(args.workspace) + num_candidates};
  return launch_kernel(&top_k,
                       {.grid = static_cast<uint32_t>(args.m * cluster),
                        .block = kTopKThreads,
                        .shared_bytes = sizeof(TopKState),
                        .is_dependent = args.is_dependent,
                        .cluster = static_cast<uint32_t>(cluster)},
                       stream,
                       params,
                       cluster);
}

}  // namespace nibble::kernels::cuda
