#include "engine/kv_plan.h"

#include <gtest/gtest.h>

namespace nibble::engine {
namespace {

models::ModelInfo info() {
  return {.page_size = 256,
          .slot_bytes = 4'000'000,
          .page_bytes = 200'000,
          .snapshot_bytes = 1'000'000};
}

TEST(KvPlan, TakesWhatIsSensibleWhereMemoryIsPlentiful) {
  const auto plan = plan_kv(info(), {.budget_bytes = 10'000'000'000, .max_context = 16384});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->num_slots, 32);
  EXPECT_EQ(plan->num_pages, 1024);     // 8192 tokens for each
  EXPECT_EQ(plan->num_snapshots, 102);  // half the bytes of the pages
  EXPECT_EQ(plan->num_tokens(), 262'144);
  EXPECT_EQ(
      plan->describe(),
      "KV memory 434 MB: 32 requests at a time, 262144 tokens in 1024 pages, contexts of 16384 "
      "tokens, 102 resume points");
}

TEST(KvPlan, NeverExceedsTheBudget) {
  for (int64_t budget = 20'000'000; budget < 2'000'000'000; budget += 7'654'321) {
    const auto plan = plan_kv(info(), {.budget_bytes = budget, .max_context = 4096});
    ASSERT_TRUE(plan.ok());
    EXPECT_LE(plan->num_bytes(), budget);
    EXPECT_LE(plan->slots_bytes, std::max<int64_t>(budget / 4, info().slot_bytes));
    EXPECT_GE(plan->num_tokens(), 4096);
    EXPECT_GE(plan->num_slots, 1);
  }
}

TEST(KvPlan, RefusesWhatCannotHoldOneContext) {
  const auto plan = plan_kv(info(), {.budget_bytes = 15'000'000, .max_context = 16384});
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code, Errc::kExhausted);
  EXPECT_EQ(plan.error().message,
            "KV memory: 1 requests at a time and one context of 16384 tokens take 17 MB, but 15 MB "
            "are allowed; shorten the context, run fewer requests, or allow more");
}

TEST(KvPlan, ShortensTheContextWhereAllowed) {
  const auto plan =
      plan_kv(info(), {.budget_bytes = 15'000'000, .max_context = 16384, .may_shorten = true});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->max_context, 55 * 256);  // 11 MB beside the slot
  EXPECT_LE(plan->num_bytes(), 15'000'000);
}

TEST(KvPlan, FollowsExplicitCounts) {
  const auto plan = plan_kv(info(),
                            {.budget_bytes = 1'000'000'000,
                             .max_context = 1024,
                             .num_slots = 3,
                             .num_pages = 50,
                             .has_prefix_cache = false});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->num_slots, 3);
  EXPECT_EQ(plan->num_pages, 50);
  EXPECT_EQ(plan->num_snapshots, 0);
  EXPECT_EQ(plan->num_bytes(), 3 * 4'000'000 + 50 * 200'000);
}

}  // namespace
}  // namespace nibble::engine
