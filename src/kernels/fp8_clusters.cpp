#include "kernels/fp8_clusters.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/checked_math.h"
#include "kernels/fp8_panel64.h"

namespace nibble::kernels {

Fp8Clusters choose_fp8_clusters(int64_t n, int64_t k, int32_t num_units) {
  constexpr int32_t kMostBlocks = 8;  // of a cluster that every GPU of the generation can place
  const int64_t units = n / (2 * kFp8PanelRows), tiles = k / kFp8TileK;
  Fp8Clusters best{.blocks = 0, .clusters = 0};
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int32_t blocks = 1; blocks <= std::min(kMostBlocks, num_units); blocks *= 2) {
    if (tiles % blocks != 0) break;
    if (tiles / blocks > kMaxFp8ClusterTiles) continue;
    const int64_t clusters = std::min(units, int64_t{num_units / blocks});
    const int64_t busiest = ceil_div(units, clusters) * (tiles / blocks);
    if (busiest >= least) continue;
    least = busiest;
    best = {.blocks = blocks, .clusters = static_cast<int32_t>(clusters)};
  }
  CHECK(best.blocks > 0) << n << "x" << k << " on " << num_units;
  return best;
}

}  // namespace nibble::kernels
