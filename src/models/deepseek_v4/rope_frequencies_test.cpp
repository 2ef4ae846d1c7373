#include <gtest/gtest.h>

#include "models/deepseek_v4/pass.h"

namespace nibble::models::deepseek_v4 {
namespace {

void expect_close(float actual, double expected) { EXPECT_NEAR(actual / expected, 1.0, 1e-7); }

// The table of the model specification, section 8.
TEST(RopeFrequencies, FollowYarnInCompressedLayersOnly) {
  Config config;
  config.rope_scaling = RopeScaling{};
  const RopeFrequencies frequencies = make_rope_frequencies(config);
  ASSERT_EQ(frequencies.of(0).size(), 32U);
  ASSERT_EQ(frequencies.of(128).size(), 32U);
  struct Row {
    size_t i;
    double window_only;
    double compressed;
  };
  for (const Row& row : {Row{0, 1.0, 1.0},
                         Row{1, 7.4989421e-01, 6.8765602e-01},
                         Row{8, 1.0e-01, 5.0e-02},
                         Row{15, 1.3335214e-02, 3.6355386e-03},
                         Row{16, 1.0e-02, 2.2656250e-03},
                         Row{20, 3.1622777e-03, 2.9697778e-04},
                         Row{24, 1.0e-03, 1.9531250e-05},
                         Row{25, 7.4989421e-04, 5.3723127e-06},
                         Row{31, 1.3335214e-04, 5.6805290e-07}}) {
    expect_close(frequencies.of(0)[row.i], row.window_only);
    expect_close(frequencies.of(4)[row.i], row.compressed);
  }
}

TEST(RopeFrequencies, ArePlainWithoutRopeScaling) {
  const RopeFrequencies frequencies = make_rope_frequencies(Config{});
  expect_close(frequencies.of(4)[16], 2.5e-03);
  expect_close(frequencies.of(0)[16], 1.0e-02);
}

}  // namespace
}  // namespace nibble::models::deepseek_v4
