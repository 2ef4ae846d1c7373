#include "engine/step_cost.h"

#include <gtest/gtest.h>

namespace nibble::engine {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

TEST(StepCost, FitsPrefillBesideDecoding) {
  StepCost cost;
  cost.observe({.num_decode = 0, .num_prefill = 500}, milliseconds(50));  // 0.1 ms a token
  cost.observe({.num_decode = 4}, milliseconds(20));
  // 70% of 150 ms, less 20 ms.
  EXPECT_EQ(cost.prefill_within(milliseconds(150), 4), 850);
  EXPECT_EQ(cost.prefill_within(milliseconds(150), 8), 650);  // twice the sequences, twice the time
  EXPECT_EQ(cost.prefill_within(milliseconds(150), 1), 850);
}

TEST(StepCost, GrowsFromWhatItHasSeen) {
  StepCost cost;
  EXPECT_EQ(cost.prefill_within(milliseconds(150), 1), 64);
  cost.observe({.num_decode = 1, .num_prefill = 64}, microseconds(64));
  EXPECT_EQ(cost.prefill_within(milliseconds(150), 1), 256);
}

TEST(StepCost, BelievesACostlierStepAtOnceAndACheaperOneSlowly) {
  StepCost cost;
  cost.observe({.num_prefill = 100}, milliseconds(10));
  cost.observe({.num_prefill = 100}, milliseconds(100));
  EXPECT_EQ(cost.prefill_within(milliseconds(100), 1), 70);
  cost.observe({.num_prefill = 100}, milliseconds(20));
  EXPECT_EQ(cost.prefill_within(milliseconds(100), 1), 87);  // 0.8 ms a token
}

TEST(StepCost, LeavesPrefillALittleWhereDecodingTakesTheLimit) {
  StepCost cost;
  cost.observe({.num_prefill = 100}, milliseconds(100));
  cost.observe({.num_decode = 8}, milliseconds(400));
  EXPECT_EQ(cost.prefill_within(milliseconds(150), 8), 15);
  cost.observe({.num_prefill = 100}, std::chrono::seconds(100));
  EXPECT_EQ(cost.prefill_within(milliseconds(150), 8), 1);
}

TEST(StepCost, PlansLessWhereStepsOvershootNowAndThen) {
  StepCost cost;
  cost.observe({.num_prefill = 100}, milliseconds(100));
  cost.observe({.num_decode = 4}, milliseconds(20));
  EXPECT_EQ(cost.prefill_within(milliseconds(150), 4), 85);
  cost.observe({.num_decode = 4, .num_prefill = 50}, milliseconds(140));  // expected 70
  for (int i = 0; i < 8; ++i) {
    cost.observe({.num_decode = 4, .num_prefill = 50}, milliseconds(70));
  }
  EXPECT_LT(cost.prefill_within(milliseconds(150), 4), 50);
  for (int i = 0; i < 200; ++i) {
    cost.observe({.num_decode = 4, .num_prefill = 50}, milliseconds(70));
  }
  EXPECT_EQ(cost.prefill_within(milliseconds(150), 4), 85);
}

TEST(StepCost, SmallChunksDoNotSpoilTheEstimate) {
  StepCost cost;
  cost.observe({.num_prefill = 500}, milliseconds(50));
  cost.observe({.num_prefill = 1}, milliseconds(50));
  EXPECT_EQ(cost.prefill_within(milliseconds(100), 0), 700);
}

}  // namespace
}  // namespace nibble::engine
