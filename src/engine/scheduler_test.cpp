#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include "engine/engine_testing.h"

namespace nibble::engine {
namespace {

using ::nibble::engine::testing::FakeTokenizer;

class SchedulerTest : public ::testing::Test {
 protected:
  std::unique_ptr<Sequence> make_sequence(std::string id,
                                          size_t num_prompt,
                                          std::string owner = {},
                                          int32_t priority = 0) {
    Request request;
    request.id = std::move(id);
    request.owner = std::move(owner);
    request.priority = priority;
    request.prompt_ids.assign(num_prompt, 0);
    return std::make_unique<Sequence>(
        std::move(request), [](Output&&) {}, tokenizer_, 100, 0, TimePoint{});
  }

  // "a3 b1": id and number of tokens of each chunk. Then pretends that the step happened: chunks
  // that complete a sequence gain a token.
  std::string run_step(Scheduler& scheduler) {
    std::string text;
    num_tokens_ = 0;
    for (const ScheduledChunk& chunk : scheduler.schedule()) {
      num_tokens_ += chunk.num_tokens;
      if (!text.empty()) text += ' ';
      text += chunk.sequence->request.id + std::to_string(chunk.num_tokens);
      chunk.sequence->num_computed += chunk.num_tokens;
      if (chunk.sequence->num_pending() == 0) chunk.sequence->token_ids.push_back(0);
    }
    scheduler.check_invariants();
    return text;
  }

  FakeTokenizer tokenizer_{{"x"}};
  int32_t num_tokens_ = 0;  // of the last step
};

TEST_F(SchedulerTest, SplitsPrefillFairlyUnderTheBudgetAndDecodesFirst) {
  Scheduler scheduler({.num_slots = 3,
                       .kv = {.num_pages = 16, .page_size = 4},
                       .max_tokens_per_step = 5,
                       .prefill_chunk_tokens = 4});
  scheduler.add(make_sequence("a", 3));
  scheduler.add(make_sequence("b", 9));
  EXPECT_EQ(run_step(scheduler), "a2 b2");
  EXPECT_EQ(run_step(scheduler), "a1 b3");
  EXPECT_EQ(run_step(scheduler), "a1 b4");
  EXPECT_EQ(run_step(scheduler), "a1 b1");
  scheduler.add(make_sequence("c", 4));
  EXPECT_EQ(run_step(scheduler), "a1 b1 c3");
  EXPECT_EQ(run_step(scheduler), "a1 b1 c1");
}

TEST_F(SchedulerTest, SharesBetweenOwnersBeforeRequests) {
  Scheduler scheduler({.num_slots = 4,
                       .kv = {.num_pages = 32, .page_size = 4},
                       .max_tokens_per_step = 16,
                       .prefill_chunk_tokens = 12});
  for (const char* id : {"a", "b", "c"}) scheduler.add(make_sequence(id, 20, "one"));
  scheduler.add(make_sequence("d", 20, "two"));
  EXPECT_EQ(run_step(scheduler), "a2 b2 c2 d6");
}

TEST_F(SchedulerTest, TheOwnerWhoHadLeastStartsNext) {
  Scheduler scheduler({.num_slots = 1,
                       .kv = {.num_pages = 8, .page_size = 4},
                       .max_tokens_per_step = 8,
                       .prefill_chunk_tokens = 8});
  scheduler.add(make_sequence("a", 4, "one"));
  scheduler.add(make_sequence("b", 4, "one"));
  scheduler.add(make_sequence("c", 4, "two"));
  EXPECT_EQ(run_step(scheduler), "a4");
  scheduler.remove(*scheduler.find("a"));
  EXPECT_EQ(run_step(scheduler), "c4");
  scheduler.remove(*scheduler.find("c"));
  EXPECT_EQ(run_step(scheduler), "b4");
}

TEST_F(SchedulerTest, PrefillKeepsTheGapOfDecodingSequencesWithinTheBound) {
  Scheduler scheduler({.num_slots = 2,
                       .kv = {.num_pages = 600, .page_size = 4},
                       .max_tokens_per_step = 1000,
                       .prefill_chunk_tokens = 1000,
                       .max_gap = std::chrono::milliseconds(100)});
  const auto tick = [&] { scheduler.observe_step(std::chrono::milliseconds(1) * num_tokens_); };
  scheduler.add(make_sequence("a", 32));
  EXPECT_EQ(run_step(scheduler), "a32");
  tick();
  EXPECT_EQ(run_step(scheduler), "a1");
  tick();
  scheduler.add(make_sequence("b", 2000));
  EXPECT_EQ(run_step(scheduler), "a1 b49");  // 70 ms by 1.4, less that of a
  tick();
  scheduler.remove(*scheduler.find("a"));
  EXPECT_EQ(run_step(scheduler), "b1000");  // nobody waits
}

TEST_F(SchedulerTest, TheOldestAdvancesWhereTheBudgetIsLessThanATokenForEachOwner) {
  Scheduler scheduler({.num_slots = 3,
                       .kv = {.num_pages = 32, .page_size = 4},
                       .max_tokens_per_step = 16,
                       .prefill_chunk_tokens = 2});
  scheduler.add(make_sequence("a", 5, "three"));
  scheduler.add(make_sequence("b", 5, "one"));
  scheduler.add(make_sequence("c", 5, "two"));
  EXPECT_EQ(run_step(scheduler), "a1 b1");
}

TEST_F(SchedulerTest, HigherPrioritiesStartAndPrefillFirst) {
  Scheduler scheduler({.num_slots = 3,
                       .kv = {.num_pages = 32, .page_size = 4},
                       .max_tokens_per_step = 16,
                       .prefill_chunk_tokens = 16});
  scheduler.add(make_sequence("a", 40));
  scheduler.add(make_sequence("b", 10));
  scheduler.add(make_sequence("c", 20, "", 1));
  EXPECT_EQ(run_step(scheduler), "a2 c14");  // the oldest is sure of an eighth
  EXPECT_EQ(run_step(scheduler), "a6 c6 b4");
}

TEST_F(SchedulerTest, APriorityTakesSlotAndPagesFromALowerOne) {
  Scheduler scheduler({.num_slots = 2,
                       .kv = {.num_pages = 8, .page_size = 4},
                       .max_tokens_per_step = 64,
                       .prefill_chunk_tokens = 64});
  scheduler.add(make_sequence("a", 4));
  scheduler.add(make_sequence("b", 4));
  EXPECT_EQ(run_step(scheduler), "a4 b4");
  scheduler.add(make_sequence("c", 12, "", 5));
  EXPECT_EQ(run_step(scheduler), "a1 c12");
  EXPECT_EQ(scheduler.find("b")->num_preemptions, 1);
  scheduler.add(make_sequence("d", 4, "", 6));
  EXPECT_EQ(run_step(scheduler), "a1 d4");  // the oldest stays whatever comes
  scheduler.remove(*scheduler.find("a"));
  scheduler.remove(*scheduler.find("d"));
  EXPECT_EQ(run_step(scheduler), "b5 c13");
}

TEST_F(SchedulerTest, StartsInOrderOfArrivalWhenASlotIsFree) {
  Scheduler scheduler({.num_slots = 1,
                       .kv = {.num_pages = 4, .page_size = 4},
                       .max_tokens_per_step = 8,
                       .prefill_chunk_tokens = 8});
  scheduler.add(make_sequence("a", 2));
  scheduler.add(make_sequence("b", 2));
  EXPECT_EQ(run_step(scheduler), "a2");
  EXPECT_EQ(run_step(scheduler), "a1");
  EXPECT_EQ(scheduler.num_waiting(), 1);
  scheduler.remove(*scheduler.find("a"));
  EXPECT_EQ(run_step(scheduler), "b2");
  scheduler.remove(*scheduler.find("b"));
  EXPECT_EQ(run_step(scheduler), "");
  EXPECT_EQ(scheduler.kv().pages().num_used(), 0);
}

TEST_F(SchedulerTest, WaitsForThePagesOfAllKnownTokens) {
  Scheduler scheduler({.num_slots = 2,
                       .kv = {.num_pages = 3, .page_size = 4},
                       .max_tokens_per_step = 8,
                       .prefill_chunk_tokens = 8});
  scheduler.add(make_sequence("a", 4));
  scheduler.add(make_sequence("b", 9));
  EXPECT_EQ(run_step(scheduler), "a4");
  EXPECT_EQ(scheduler.kv().pages().num_used(), 1);
  scheduler.remove(*scheduler.find("a"));
  EXPECT_EQ(run_step(scheduler), "b8");
  EXPECT_EQ(scheduler.kv().pages().num_used(), 3);
}

TEST_F(SchedulerTest, PreemptsTheNewestAndComputesItAgain) {
  Scheduler scheduler({.num_slots = 2,
                       .kv = {.num_pages = 3, .page_size = 4},
                       .max_tokens_per_step = 16,
                       .prefill_chunk_tokens = 16});
  scheduler.add(make_sequence("a", 4));
  scheduler.add(make_sequence("b", 3));
  EXPECT_EQ(run_step(scheduler), "a4 b3");
  EXPECT_EQ(run_step(scheduler), "a1 b1");  // 2 pages and 1 page: full
  EXPECT_EQ(run_step(scheduler), "a1");     // b needs a second page
  EXPECT_EQ(scheduler.num_preemptions(), 1);
  EXPECT_EQ(scheduler.num_waiting(), 1);
  EXPECT_EQ(scheduler.find("b")->num_computed, 0);
  EXPECT_EQ(scheduler.find("b")->num_tokens(), 5);
  scheduler.remove(*scheduler.find("a"));
  EXPECT_EQ(run_step(scheduler), "b5");
}

TEST_F(SchedulerTest, RemovesWaitingSequences) {
  Scheduler scheduler({.num_slots = 1,
                       .kv = {.num_pages = 4, .page_size = 4},
                       .max_tokens_per_step = 8,
                       .prefill_chunk_tokens = 8});
  scheduler.add(make_sequence("a", 1));
  scheduler.add(make_sequence("b", 1));
  run_step(scheduler);
  EXPECT_EQ(scheduler.remove(*scheduler.find("b"))->request.id, "b");
  EXPECT_EQ(scheduler.find("b"), nullptr);
  EXPECT_EQ(scheduler.any()->request.id, "a");
}

}  // namespace
}  // namespace nibble::engine
