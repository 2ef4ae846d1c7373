// The engine core over a device that is given decode steps before it has answered the last one.
#include "engine/decode_queue.h"

#include <gtest/gtest.h>

#include <limits>

#include "engine/engine_core.h"
#include "engine/engine_testing.h"

namespace nibble::engine {
namespace {

using testing::FakeModelOptions;
using testing::FakeModelRunner;
using testing::Received;

constexpr int32_t kVocab = 10;
constexpr int32_t kEos = 0;

class DecodeQueueTest : public ::testing::Test {
 protected:
  struct Setup {
    int32_t num_slots = 1;
    int32_t num_pages = 16;
    int32_t num_snapshots = 0;
    bool deterministic = false;
  };

  void make_core(const Setup& setup, testing::LogitsFn logits) {
    FakeModelOptions options{.vocab_size = kVocab,
                             .num_slots = setup.num_slots,
                             .num_pages = setup.num_pages,
                             .num_snapshots = setup.num_snapshots,
                             .max_queued_steps = 2,
                             .logits = std::move(logits)};
    auto runner = std::make_unique<FakeModelRunner>(std::move(options));
    runner_ = runner.get();
    const EngineConfig config{.max_running_requests = setup.num_slots,
                              .eos_token_ids = {kEos},
                              .deterministic = setup.deterministic};
    auto resolved = EngineCore::resolve(config, *runner, 1).value();
    core_ =
        std::make_unique<EngineCore>(std::move(resolved), std::move(runner), tokenizer_, clock_);
  }

  void add(const std::string& id, SamplingParams sampling, Received& received) {
    core_->add({.id = id, .prompt_ids = {1, 2, 3}, .sampling = std::move(sampling)},
               received.sink(),
               clock_.now());
  }
  void run() {
    while (!core_->is_idle()) core_->step();
    EXPECT_EQ(runner_->num_queued_steps(), 0);
    EXPECT_EQ(core_->stats().num_pages_used, core_->stats().num_pages_cached);
  }
  // One request; how many of its steps were queued ahead.
  int32_t num_ahead(const SamplingParams& sampling, bool deterministic = false) {
    make_core({.deterministic = deterministic}, testing::hashed_logits(kVocab));
    Received received;
    add("r", sampling, received);
    run();
    return runner_->num_ahead();
  }
  static testing::LogitsFn script(std::vector<int32_t> tokens) {
    return testing::scripted_logits(kVocab, 3, std::move(tokens));
  }

  testing::FakeTokenizer tokenizer_{{"", "a", "b", "c", "d", "e", "f", "g", "h", "i"}, {kEos}};
  testing::FakeClock clock_;
  std::unique_ptr<EngineCore> core_;
  FakeModelRunner* runner_ = nullptr;  // the core's
};

SamplingParams greedy(int32_t max_tokens) {
  return {.temperature = 0, .max_tokens = max_tokens, .ignore_eos = true};
}

TEST_F(DecodeQueueTest, TheNextStepWaitsBehindTheOneWhoseTokensAreTaken) {
  make_core({}, script({1, 2, 3, 4, 5, 6}));
  Received received;
  add("r", greedy(6), received);
  core_->step();  // the prompt: its first token comes from logits
  EXPECT_EQ(runner_->num_queued_steps(), 0);
  for (size_t known = 2; known <= 5; ++known) {
    core_->step();
    EXPECT_EQ(received.token_ids.size(), known);
    EXPECT_EQ(runner_->num_queued_steps(), 1);
    std::vector<RequestState> states;
    core_->describe(states);
    EXPECT_EQ(states.at(0).num_queued, 1);
  }
  run();
  EXPECT_EQ(received.token_ids, (std::vector<int32_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(core_->stats().steps_total, 6);  // none beyond the limit
}

TEST_F(DecodeQueueTest, AStopInTheQueueDropsWhatIsBehindIt) {
  make_core({.num_slots = 2}, script({1, 2, kEos, 4, 5}));
  Received stops, goes_on;
  add("stops", {.temperature = 0}, stops);
  add("goes_on", greedy(5), goes_on);
  run();
  EXPECT_EQ(stops.token_ids, (std::vector<int32_t>{1, 2, kEos}));
  EXPECT_EQ(stops.finishes.at(0).usage.completion_tokens, 3);
  EXPECT_EQ(goes_on.token_ids, (std::vector<int32_t>{1, 2, kEos, 4, 5}));
  EXPECT_EQ(core_->stats().generation_tokens_total, 8);
  EXPECT_GT(runner_->num_ahead(), 0);
}

TEST_F(DecodeQueueTest, AStopStringInTheQueueEndsTheText) {
  make_core({}, script({1, 2, 3, 4, 5}));
  Received received;
  add("r", {.temperature = 0, .stop = {"bc"}}, received);
  run();
  EXPECT_EQ(received.text, "a");
  EXPECT_EQ(received.token_ids, (std::vector<int32_t>{1, 2, 3}));
}

TEST_F(DecodeQueueTest, AWithdrawnRequestLeavesItsStepsToNobody) {
  make_core({}, script({1, 2, 3, 4, 5, 6}));
  Received withdrawn, next;
  add("withdrawn", greedy(6), withdrawn);
  for (int i = 0; i < 3; ++i) core_->step();
  EXPECT_EQ(runner_->num_queued_steps(), 1);
  core_->cancel("withdrawn");
  EXPECT_FALSE(core_->is_idle());  // the device is still at work
  add("next", greedy(6), next);    // on the same slot
  run();
  EXPECT_EQ(withdrawn.finishes.at(0).reason, FinishReason::kCancelled);
  EXPECT_EQ(withdrawn.token_ids, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(next.token_ids, (std::vector<int32_t>{1, 2, 3, 4, 5, 6}));
}

TEST_F(DecodeQueueTest, AllThatIsQueuedEndsWithTheEngine) {
  make_core({}, script({1, 2, 3, 4, 5, 6}));
  Received received;
  add("r", greedy(6), received);
  for (int i = 0; i < 3; ++i) core_->step();
  core_->cancel_all();
  EXPECT_TRUE(core_->is_idle());
  EXPECT_EQ(runner_->num_queued_steps(), 0);
}

// Whoever is new waits for the step that runs and the one behind it, not for more.
TEST_F(DecodeQueueTest, ANewRequestIsNotQueuedPast) {
  make_core({.num_slots = 2}, testing::hashed_logits(kVocab));
  Received old, young;
  add("old", greedy(30), old);
  for (int i = 0; i < 5; ++i) core_->step();
  add("young", greedy(3), young);
  core_->step();
  EXPECT_EQ(runner_->num_queued_steps(), 0);
  core_->step();
  EXPECT_EQ(young.token_ids.size(), 1U);
  run();
  EXPECT_EQ(old.token_ids.size(), 30U);
}

// With all slots taken those who wait cannot start, so nothing waits for them; unless one is more
// important.
TEST_F(DecodeQueueTest, OnlyWhoMayTakeASlotHoldsTheQueueUp) {
  for (const int32_t priority : {0, 1}) {
    make_core({}, testing::hashed_logits(kVocab));
    Received first, second;
    add("first", greedy(10), first);
    core_->step();
    core_->add({.id = "second", .prompt_ids = {4}, .sampling = greedy(2), .priority = priority},
               second.sink(),
               clock_.now());
    core_->step();
    EXPECT_EQ(runner_->num_queued_steps(), priority == 0 ? 1 : 0);
    run();
  }
}

TEST_F(DecodeQueueTest, UnsoundLogitsAreFoundOnTheDevice) {
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), 0.0F}) {
    make_core({}, [&](std::span<const int32_t> history) {
      std::vector<float> logits(kVocab, history.size() < 6 ? 0.0F : value);
      if (history.size() < 6) logits[4] = 1;
      return logits;
    });
    Received received;
    add("r", greedy(9), received);
    run();
    ASSERT_EQ(received.finishes.size(), 1U);
    EXPECT_EQ(received.finishes[0].reason, FinishReason::kError);
    EXPECT_EQ(received.finishes[0].error.reason, value == 0 ? "Q-R2" : "Q-R1");
    EXPECT_EQ(received.token_ids.size(), 3U);
  }
}

TEST_F(DecodeQueueTest, AStepThatFailsEndsItsRequestsOnce) {
  for (const bool is_queueing : {true, false}) {
    make_core({.num_slots = 2}, testing::hashed_logits(kVocab));
    Received a, b, later;
    add("a", greedy(9), a);
    add("b", greedy(9), b);
    for (int i = 0; i < 3; ++i) core_->step();
    if (is_queueing) {
      runner_->before_step = [](const Batch&) -> Result<void> { return exhausted("injected"); };
    } else {
      runner_->before_fetch = []() -> Result<void> { return exhausted("injected"); };
    }
    core_->step();
    runner_->before_step = nullptr;
    runner_->before_fetch = nullptr;
    add("later", greedy(4), later);
    run();
    for (const Received* received : {&a, &b}) {
      ASSERT_EQ(received->finishes.size(), 1U);
      EXPECT_EQ(received->finishes[0].error.message, "injected");
      EXPECT_EQ(received->token_ids.size(), 3U);
    }
    EXPECT_EQ(later.token_ids.size(), 4U);
  }
}

// Snapshots are taken where a page ends, of a state that nothing is ahead of.
TEST_F(DecodeQueueTest, APageThatEndsIsCachedWithItsSnapshot) {
  make_core({.num_snapshots = 4}, testing::hashed_logits(kVocab));
  Received first, second;
  add("first", greedy(20), first);
  run();
  EXPECT_GT(runner_->num_ahead(), 0);
  Request again{.id = "second", .prompt_ids = {1, 2, 3}, .sampling = greedy(2)};
  again.prompt_ids.insert(
      again.prompt_ids.end(), first.token_ids.begin(), first.token_ids.begin() + 18);
  core_->add(again, second.sink(), clock_.now());
  run();
  EXPECT_EQ(second.finishes.at(0).usage.cached_tokens, 20);
  EXPECT_EQ(second.token_ids,
            (std::vector<int32_t>{first.token_ids.begin() + 18, first.token_ids.end()}));
}

TEST_F(DecodeQueueTest, DrawsAreThoseOfTheHost) {
  const SamplingParams sampling{
      .top_p = 0.8F, .min_p = 0.05F, .top_k = 6, .seed = 7, .max_tokens = 30, .ignore_eos = true};
  make_core({}, testing::hashed_logits(kVocab));
  Received received;
  add("r", sampling, received);
  run();
  EXPECT_GT(runner_->num_ahead(), 20);
  const Request alone{.prompt_ids = {1, 2, 3}, .sampling = sampling};
  EXPECT_EQ(received.token_ids,
            testing::expected_tokens(alone, testing::hashed_logits(kVocab), -1));
}

TEST_F(DecodeQueueTest, TakesNothingThatNeedsTheHost) {
  EXPECT_GT(num_ahead(greedy(9)), 0);
  SamplingParams sampling = greedy(9);
  sampling.logprobs = true;
  EXPECT_EQ(num_ahead(sampling), 0);
  sampling = greedy(9);
  sampling.logit_bias = {{3, 1.0F}};
  EXPECT_EQ(num_ahead(sampling), 0);
  sampling = greedy(9);
  sampling.repetition_penalty = 1.1F;
  EXPECT_EQ(num_ahead(sampling), 0);
  sampling = greedy(9);
  sampling.presence_penalty = 0.1F;
  EXPECT_EQ(num_ahead(sampling), 0);
  sampling = greedy(9);
  sampling.frequency_penalty = 0.1F;
  EXPECT_EQ(num_ahead(sampling), 0);
  sampling = greedy(9);
  sampling.stop_token_ids = {3};
  sampling.min_tokens = 9;  // rules the stop id out to the end
  EXPECT_EQ(num_ahead(sampling), 0);
}

TEST_F(DecodeQueueTest, DeterministicDrawsAreTheHosts) {
  SamplingParams sampling = greedy(9);
  EXPECT_GT(num_ahead(sampling, true), 0);
  sampling.temperature = 1;
  sampling.seed = 3;
  EXPECT_GT(num_ahead(sampling, false), 0);
  EXPECT_EQ(num_ahead(sampling, true), 0);
}

TEST_F(DecodeQueueTest, ABudgetOfReasoningIsKept) {
  make_core({}, testing::hashed_logits(kVocab));
  Received received;
  const Request request{.id = "r",
                        .prompt_ids = {1, 2, 3},
                        .sampling = {.seed = 5, .max_tokens = 20, .ignore_eos = true},
                        .reasoning_budget = {{.num_tokens = 6, .end_token_id = 9}}};
  core_->add(request, received.sink(), clock_.now());
  run();
  EXPECT_EQ(received.token_ids,
            testing::expected_tokens(request, testing::hashed_logits(kVocab), -1));
  EXPECT_GT(runner_->num_ahead(), 0);
}

}  // namespace
}  // namespace nibble::engine
