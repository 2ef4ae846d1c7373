#include "bench_client/arrivals.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "bench_client/random.h"

namespace nibble::bench_client {
namespace {

// Mean and squared coefficient of variation of the gaps.
struct Gaps {
  double mean = 0;
  double squared_variation = 0;
};

Gaps gaps_of(const std::vector<Duration>& arrivals) {
  double sum = 0;
  double squares = 0;
  const auto count = static_cast<double>(arrivals.size() - 1);
  for (size_t i = 1; i < arrivals.size(); ++i) {
    const double gap = to_seconds(arrivals[i] - arrivals[i - 1]);
    sum += gap;
    squares += gap * gap;
  }
  const double mean = sum / count;
  return {mean, (squares / count - mean * mean) / (mean * mean)};
}

std::vector<Duration> schedule(double rate, double burstiness, uint64_t seed = 1) {
  Random random(seed);
  return schedule_arrivals(20'000, {.request_rate = rate, .burstiness = burstiness}, random);
}

TEST(Arrivals, APoissonProcessHasTheRateAndTheVariationOne) {
  const Gaps gaps = gaps_of(schedule(50, 1));
  EXPECT_NEAR(gaps.mean, 0.02, 1e-6);
  EXPECT_NEAR(gaps.squared_variation, 1.0, 0.05);
}

TEST(Arrivals, BurstinessIsTheShapeOfTheGaps) {
  EXPECT_NEAR(gaps_of(schedule(50, 4)).squared_variation, 0.25, 0.02);
  EXPECT_NEAR(gaps_of(schedule(50, 0.25)).squared_variation, 4.0, 0.4);
}

TEST(Arrivals, TheLastOneFallsWhereTheRatePutsIt) {
  Random random(3);
  const auto arrivals = schedule_arrivals(11, {.request_rate = 2}, random);
  EXPECT_EQ(arrivals.front(), Duration::zero());
  EXPECT_NEAR(to_seconds(arrivals.back()), 5.0, 1e-6);
  EXPECT_TRUE(std::is_sorted(arrivals.begin(), arrivals.end()));
}

TEST(Arrivals, AnInfiniteRateStartsAllAtOnce) {
  Random random(1);
  EXPECT_EQ(schedule_arrivals(3, {}, random), std::vector<Duration>(3, Duration::zero()));
}

TEST(Arrivals, TheSeedDecides) {
  EXPECT_EQ(schedule(5, 1, 7), schedule(5, 1, 7));
  EXPECT_NE(schedule(5, 1, 7), schedule(5, 1, 8));
}

// The first outputs of the published SplitMix64 for seed 1234567.
TEST(Random, IsSplitMix64) {
  Random random(1234567);
  EXPECT_EQ(random.next(), 6457827717110365317U);
  EXPECT_EQ(random.next(), 3203168211198807973U);
  EXPECT_EQ(random.next(), 9817491932198370423U);
}

TEST(Random, DrawsEveryNumberOfARangeAndNoOther) {
  Random random(5);
  std::vector<int32_t> counts(4);
  for (int32_t i = 0; i < 4000; ++i) ++counts[static_cast<size_t>(random.between(0, 3))];
  for (const int32_t count : counts) EXPECT_NEAR(count, 1000, 150);
}

}  // namespace
}  // namespace nibble::bench_client
