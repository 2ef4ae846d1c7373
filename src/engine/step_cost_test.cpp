#include "engine/step_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace nibble::engine {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr StepLoad kMixed{.num_decode = 4, .num_prefill = 50};

// 20 ms for four sequences, 1 ms a token; and all steps were as expected for long.
StepCost settled_cost() {
  StepCost cost;
  cost.observe({.num_prefill = 100}, milliseconds(100));
  cost.observe({.num_decode = 4}, milliseconds(20));
  for (int i = 0; i < 300; ++i) cost.observe(kMixed, milliseconds(70));
  return cost;
}

TEST(StepCost, FitsPrefillBesideDecoding) {
  StepCost cost = settled_cost();
  EXPECT_EQ(cost.prefill_within(milliseconds(150), 4), 85);  // 70% of 150 ms, less 20 ms
  EXPECT_EQ(cost.prefill_within(milliseconds(150), 8), 65);  // twice the sequences, twice the time
  EXPECT_EQ(cost.prefill_within(milliseconds(150), 1), 85);
}

TEST(StepCost, BeginsWithCare) {
  StepCost cost;
  cost.observe({.num_prefill = 500}, milliseconds(50));  // 0.1 ms a token
  cost.observe({.num_decode = 4}, milliseconds(20));
  EXPECT_EQ(cost.prefill_within(milliseconds(150), 4), 550);  // 70% of 150 ms by 1.4, less 20 ms
}

TEST(StepCost, GrowsFromWhatItHasSeen) {
  StepCost cost;
  EXPECT_EQ(cost.prefill_within(milliseconds(150), 1), 64);
  cost.observe({.num_decode = 1, .num_prefill = 64}, microseconds(64));
  EXPECT_EQ(cost.prefill_within(milliseconds(150), 1), 256);
}

TEST(StepCost, PlansLessWhereStepsOvershootNowAndThen) {
  StepCost cost = settled_cost();
  cost.observe(kMixed, milliseconds(140));  // twice what was expected
  for (int i = 0; i < 8; ++i) cost.observe(kMixed, milliseconds(70));
  EXPECT_LT(cost.prefill_within(milliseconds(150), 4), 50);
  for (int i = 0; i < 300; ++i) cost.observe(kMixed, milliseconds(70));
  EXPECT_EQ(cost.prefill_within(milliseconds(150), 4), 85);
}

TEST(StepCost, LeavesPrefillALittleWhereDecodingTakesTheLimit) {
  StepCost cost;
  cost.observe({.num_prefill = 100}, milliseconds(100));
  cost.observe({.num_decode = 8}, milliseconds(400));
  EXPECT_EQ(cost.prefill_within(milliseconds(150), 8), 15);
  cost.observe({.num_prefill = 100}, std::chrono::seconds(1000));
  EXPECT_EQ(cost.prefill_within(milliseconds(150), 8), 1);
}

TEST(StepCost, SmallChunksOfShortPromptsDoNotSpoilTheEstimate) {
  StepCost cost = settled_cost();
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(cost.prefill_within(milliseconds(150), 4), 85);
    cost.observe({.num_decode = 4, .num_prefill = 1}, milliseconds(20));
    cost.observe({.num_decode = 4, .num_prefill = 1}, milliseconds(80));
  }
}

// A machine that stood still once must not leave prefill with a token per step for ever.
TEST(StepCost, FindsBackAfterTheMachineStoodStill) {
  for (const StepLoad load : {kMixed, StepLoad{.num_decode = 4}}) {
    StepCost cost = settled_cost();
    cost.observe(load, std::chrono::seconds(5));
    EXPECT_LT(cost.prefill_within(milliseconds(150), 4), 16);
    int32_t num_tokens = 0;
    for (int i = 0; i < 150; ++i) {
      num_tokens = cost.prefill_within(milliseconds(150), 4);
      cost.observe({.num_decode = 4, .num_prefill = num_tokens}, milliseconds(20 + num_tokens));
    }
    EXPECT_GE(num_tokens, 75);
  }
}

// 12,000 tokens beside eight streams. A token costs more as the context grows, and every step takes
// up to half as long again as it should.
TEST(StepCost, HoldsTheBoundWhileTheContextGrowsOnAnUnsteadyMachine) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    const auto step_time = [&](int32_t num_decode, int32_t num_prefill, int32_t context) {
      const double unsteady = 1 + 0.5 * static_cast<double>(random() % 1000) / 1000;
      const double token_us = 800 * (1 + 0.5 * context / 12'000);
      return microseconds(
          static_cast<int64_t>((num_decode * 2500 + num_prefill * token_us) * unsteady));
    };
    StepCost cost;
    for (int i = 0; i < 8; ++i) cost.observe({.num_prefill = 64}, step_time(0, 64, 0));
    for (int i = 0; i < 50; ++i) cost.observe({.num_decode = 8}, step_time(8, 0, 0));
    int32_t num_steps = 0;
    for (int32_t context = 0; context < 12'000; ++num_steps) {
      const int32_t chunk = cost.prefill_within(milliseconds(150), 8);
      const auto duration = step_time(8, chunk, context);
      EXPECT_LE(duration, milliseconds(150)) << "seed " << seed << ", at " << context;
      cost.observe({.num_decode = 8, .num_prefill = chunk}, duration);
      context += chunk;
    }
    EXPECT_LE(num_steps, 300) << "seed " << seed;  // 40 tokens a step on average
  }
}

}  // namespace
}  // namespace nibble::engine
