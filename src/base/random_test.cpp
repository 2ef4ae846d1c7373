#include "base/random.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

// Reference: the published C code of SplitMix64, started with seed 1234567.
TEST(Random, MatchesSplitMix64) {
  EXPECT_EQ(split_mix64(1234567, 0), 6457827717110365317ULL);
  EXPECT_EQ(split_mix64(1234567, 1), 3203168211198807973ULL);
  EXPECT_EQ(split_mix64(1234567, 2), 9817491932198370423ULL);
}

TEST(Random, IsUniformInTheUnitInterval) {
  double sum = 0;
  double sum_of_squares = 0;
  constexpr int kCount = 100'000;
  for (uint64_t i = 0; i < kCount; ++i) {
    const double u = uniform_at(42, i);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    sum_of_squares += u * u;
  }
  // Standard errors are 0.0009 and 0.0009; the bounds are ten of them.
  EXPECT_NEAR(sum / kCount, 0.5, 0.01);
  EXPECT_NEAR(sum_of_squares / kCount, 1.0 / 3.0, 0.01);
}

TEST(Random, NeighbouringSeedsShareNoNumbers) {
  for (uint64_t shift = 0; shift < 8; ++shift) {
    EXPECT_NE(uniform_at(1, shift), uniform_at(0, shift + 1));
    EXPECT_NE(uniform_at(1, shift + 1), uniform_at(0, shift));
  }
}

}  // namespace
}  // namespace nibble
