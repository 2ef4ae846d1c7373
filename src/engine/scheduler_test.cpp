#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include "engine/engine_testing.h"

namespace nibble::engine {
namespace {

using ::nibble::engine::testing::FakeTokenizer;

class SchedulerTest : public ::testing::Test {
 protected:
  std::unique_ptr<Sequence> make_sequence(std::string id, size_t num_prompt) {
    Request request;
    request.id = std::move(id);
    request.prompt_ids.assign(num_prompt, 0);
    return std::make_unique<Sequence>(
        std::move(request), [](Output&&) {}, tokenizer_, 100, 0, TimePoint{});
  }

  // "a3 b1": id and number of tokens of each chunk. Then pretends that the step happened: chunks
  // that complete a sequence gain a token.
  std::string run_step(Scheduler& scheduler) {
    std::string text;
    for (const ScheduledChunk& chunk : scheduler.schedule()) {
      if (!text.empty()) text += ' ';
      text += chunk.sequence->request.id + std::to_string(chunk.num_tokens);
      chunk.sequence->num_computed += chunk.num_tokens;
      if (chunk.sequence->num_pending() == 0) chunk.sequence->token_ids.push_back(0);
    }
    return text;
  }

  FakeTokenizer tokenizer_{{"x"}};
};

TEST_F(SchedulerTest, ChunksPrefillUnderTheBudgetAndDecodesFirst) {
  Scheduler scheduler({.num_slots = 3,
                       .num_pages = 16,
                       .page_size = 4,
                       .max_tokens_per_step = 5,
                       .prefill_chunk_tokens = 4});
  scheduler.add(make_sequence("a", 3));
  scheduler.add(make_sequence("b", 9));
  EXPECT_EQ(run_step(scheduler), "a3 b1");
  EXPECT_EQ(run_step(scheduler), "a1 b4");
  EXPECT_EQ(run_step(scheduler), "a1 b4");
  EXPECT_EQ(run_step(scheduler), "a1 b1");
  scheduler.add(make_sequence("c", 4));
  EXPECT_EQ(run_step(scheduler), "a1 b1 c3");
  EXPECT_EQ(run_step(scheduler), "a1 b1 c1");
}

TEST_F(SchedulerTest, StartsInOrderOfArrivalWhenASlotIsFree) {
  Scheduler scheduler({.num_slots = 1,
                       .num_pages = 4,
                       .page_size = 4,
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
  EXPECT_EQ(scheduler.pages().num_used(), 0);
}

TEST_F(SchedulerTest, WaitsForThePagesOfAllKnownTokens) {
  Scheduler scheduler({.num_slots = 2,
                       .num_pages = 3,
                       .page_size = 4,
                       .max_tokens_per_step = 8,
                       .prefill_chunk_tokens = 8});
  scheduler.add(make_sequence("a", 4));
  scheduler.add(make_sequence("b", 9));
  EXPECT_EQ(run_step(scheduler), "a4");
  EXPECT_EQ(scheduler.pages().num_used(), 1);
  scheduler.remove(*scheduler.find("a"));
  EXPECT_EQ(run_step(scheduler), "b8");
  EXPECT_EQ(scheduler.pages().num_used(), 3);
}

TEST_F(SchedulerTest, PreemptsTheNewestAndComputesItAgain) {
  Scheduler scheduler({.num_slots = 2,
                       .num_pages = 3,
                       .page_size = 4,
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
                       .num_pages = 4,
                       .page_size = 4,
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
