#include "hub/rate.h"

#include <gtest/gtest.h>

namespace nibble::hub {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(RateMeter, DividesBytesByTime) {
  RateMeter meter;
  EXPECT_EQ(meter.bytes_per_second(), std::nullopt);
  const TimePoint start{};
  meter.add(start, 1000);
  meter.add(start + milliseconds(100), 5000);  // too soon to count
  EXPECT_EQ(meter.bytes_per_second(), std::nullopt);
  meter.add(start + seconds(2), 5000);
  EXPECT_EQ(meter.bytes_per_second(), 2000.0);
  EXPECT_EQ(meter.time_for(10'000), seconds(5));
}

TEST(RateMeter, ForgetsTheDistantPast) {
  RateMeter meter;
  TimePoint now{};
  for (int32_t i = 0; i < 100; ++i) meter.add(now += seconds(1), 0);
  EXPECT_EQ(meter.time_for(1), std::nullopt);
  int64_t bytes = 0;
  for (int32_t i = 0; i < 60; ++i) meter.add(now += seconds(1), bytes += 500);
  EXPECT_EQ(meter.bytes_per_second(), 500.0);
}

}  // namespace
}  // namespace nibble::hub
