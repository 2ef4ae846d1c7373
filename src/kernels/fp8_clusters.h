// How the blocks of one launch share an FP8 product whose parts of k meet within clusters.
#pragma once

#include <cstdint>

namespace nibble::kernels {

// A cluster of blocks owns outputs in units of 128, two panels of kFp8Panel64; its blocks share k.
struct Fp8Clusters {
  int32_t blocks = 1;  // of a cluster: 1, 2, 4 or 8
  int32_t clusters = 1;
};

// Tiles of k that a block of a cluster can take.
inline constexpr int64_t kMaxFp8ClusterTiles = 32;

// The division with the least work of the busiest block, in the smallest clusters. Of the shape
// alone, so that sums do not depend on the load.
//   n, k: multiples of 128; k such that some division leaves a block kMaxFp8ClusterTiles
Fp8Clusters choose_fp8_clusters(int64_t n, int64_t k, int32_t num_units);

}  // namespace nibble::kernels
