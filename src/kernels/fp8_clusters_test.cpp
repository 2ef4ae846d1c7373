#include "kernels/fp8_clusters.h"

#include <gtest/gtest.h>

#include "kernels/fp8_panel64.h"

namespace nibble::kernels {
namespace {

constexpr int32_t kH200Units = 132;

TEST(Fp8Clusters, GiveNearlyEveryMultiprocessorOfAnH200ABlock) {
  struct Case {
    int64_t n, k;
    int32_t blocks, clusters;
  };
  const Case cases[] = {{32768, 1024, 1, 132},
                        {8192, 4096, 2, 64},
                        {16384, 8192, 2, 66},
                        {4096, 8192, 4, 32},
                        {4096, 4096, 4, 32},
                        {4096, 2048, 4, 32},
                        {8192, 1024, 2, 64},
                        {1536, 4096, 8, 12}};
  for (const Case& c : cases) {
    const Fp8Clusters shape = choose_fp8_clusters(c.n, c.k, kH200Units);
    EXPECT_EQ(shape.blocks, c.blocks) << c.n << "x" << c.k;
    EXPECT_EQ(shape.clusters, c.clusters) << c.n << "x" << c.k;
  }
}

TEST(Fp8Clusters, TakeEveryShapeWithinTheKernelsLimits) {
  for (int64_t n = 128; n <= 40960; n += 128 * 7) {
    for (int64_t k = 256; k <= 8192; k += 256) {
      const Fp8Clusters shape = choose_fp8_clusters(n, k, kH200Units);
      EXPECT_EQ(k / kFp8TileK % shape.blocks, 0) << n << "x" << k;
      EXPECT_LE(k / kFp8TileK / shape.blocks, kMaxFp8ClusterTiles) << n << "x" << k;
      EXPECT_LE(shape.clusters, n / 128) << n << "x" << k;
      EXPECT_LE(shape.clusters * shape.blocks, kH200Units) << n << "x" << k;
    }
  }
}

}  // namespace
}  // namespace nibble::kernels
