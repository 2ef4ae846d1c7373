#include "engine/queue_wait.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/engine_core.h"
#include "engine/engine_testing.h"

namespace nibble::engine {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::vector<WaitingRequest> waiting(int32_t count, std::string_view owner, int32_t priority = 0) {
  return std::vector<WaitingRequest>(static_cast<size_t>(count),
                                     {.owner = owner, .priority = priority});
}

TEST(NumAhead, CountsHigherPrioritiesAndThoseBeforeInTheQueue) {
  std::vector<WaitingRequest> queue = waiting(3, "a", 1);
  const std::vector<WaitingRequest> equal = waiting(2, "a");
  const std::vector<WaitingRequest> below = waiting(4, "a", -1);
  queue.insert(queue.end(), equal.begin(), equal.end());
  queue.insert(queue.end(), below.begin(), below.end());
  EXPECT_EQ(num_ahead(queue, {.owner = "a", .priority = 2}), 0);
  EXPECT_EQ(num_ahead(queue, {.owner = "a", .priority = 0}), 5);
  EXPECT_EQ(num_ahead(queue, {.owner = "a", .priority = -1}), 9);
}

TEST(NumAhead, LetsOwnersTakeTurns) {
  const std::vector<WaitingRequest> queue = waiting(50, "busy");
  EXPECT_EQ(num_ahead(queue, {.owner = "busy"}), 50);
  EXPECT_EQ(num_ahead(queue, {.owner = "new"}), 1);
}

TEST(QueueWait, IsZeroWhileASlotIsFree) {
  QueueWait wait(4, seconds(1));
  wait.observe({.service = seconds(10)});
  const std::vector<WaitingRequest> queue = waiting(2, "a");
  EXPECT_EQ(wait.expected({.waiting = queue, .num_running = 1}, {}), Duration::zero());
  EXPECT_GT(wait.expected({.waiting = queue, .num_running = 2}, {.owner = "a"}), Duration::zero());
}

TEST(QueueWait, GrowsWithTheQueueAndTheTimeThatRequestsTake) {
  QueueWait wait(4, seconds(1));
  wait.observe({.service = seconds(2), .is_busy = true});
  const std::vector<WaitingRequest> queue = waiting(3, "a");
  // Four must end before it starts; each of four slots does so every two seconds.
  EXPECT_EQ(wait.expected({.waiting = queue, .num_running = 4}, {.owner = "a"}), seconds(2));
  for (int i = 0; i < 200; ++i) wait.observe({.service = seconds(4), .is_busy = true});
  const auto later = wait.expected({.waiting = queue, .num_running = 4}, {.owner = "a"});
  EXPECT_NEAR(to_seconds(*later), 4, 1e-6);
}

TEST(QueueWait, CountsWhoRunsWhereMemoryIsTheLimit) {
  QueueWait wait(64, seconds(1));
  wait.observe({.service = seconds(2), .is_busy = true});
  const std::vector<WaitingRequest> queue = waiting(3, "a");
  EXPECT_EQ(wait.expected({.waiting = queue, .num_running = 2, .is_short_of_memory = true},
                          {.owner = "a"}),
            seconds(4));
}

TEST(QueueWait, JudgesByTheWorkUntilOneHasEndedSinceTheQueueFormed) {
  QueueWait wait(4, seconds(1));
  wait.observe({.service = seconds(1), .work = 10, .is_busy = true});
  for (int i = 0; i < 4; ++i) wait.observe({.service = seconds(1), .work = 10});
  const std::vector<WaitingRequest> queue(4, {.owner = "a", .work = 200});
  // Five must end; 0.1 s for each of 200 tokens, one request after the other.
  EXPECT_EQ(wait.expected({.waiting = queue, .num_running = 4}, {.owner = "a", .work = 200}),
            seconds(100));
  wait.observe({.service = seconds(8), .work = 200, .is_busy = true});
  EXPECT_EQ(wait.expected({.waiting = queue, .num_running = 4}, {.owner = "a", .work = 200}),
            seconds(10));
}

TEST(QueueWait, AdmitsTheFirstInLineAlways) {
  QueueWait wait(1, milliseconds(1));
  wait.observe({.service = seconds(100), .is_busy = true});
  EXPECT_TRUE(wait.admit({.waiting = {}, .num_running = 1}, {}).ok());
  const std::vector<WaitingRequest> queue = waiting(1, "a");
  const Result<void> second = wait.admit({.waiting = queue, .num_running = 1}, {.owner = "a"});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, Errc::kExhausted);
  EXPECT_EQ(second.error().message,
            "the queue is full: a request would wait about 200 s, at most 0.001 s are allowed");
}

TEST(QueueWait, AdmitsAsManyAsRunBeforeItKnows) {
  const QueueWait wait(4, milliseconds(1));
  const std::vector<WaitingRequest> three = waiting(3, "a");
  const std::vector<WaitingRequest> four = waiting(4, "a");
  EXPECT_TRUE(wait.admit({.waiting = three, .num_running = 4}, {.owner = "a"}).ok());
  EXPECT_FALSE(wait.admit({.waiting = four, .num_running = 4}, {.owner = "a"}).ok());
}

TEST(QueueWait, AdmitsAsManyAsRunWithoutAStatedWait) {
  QueueWait wait(4, std::nullopt);
  wait.observe({.service = seconds(100), .is_busy = true});
  std::vector<WaitingRequest> queue = waiting(3, "a");
  EXPECT_TRUE(wait.admit({.waiting = queue, .num_running = 4}, {.owner = "a"}).ok());
  queue = waiting(4, "a");
  const Result<void> fifth = wait.admit({.waiting = queue, .num_running = 4}, {.owner = "a"});
  ASSERT_FALSE(fifth.ok());
  EXPECT_EQ(fifth.error().message, "the queue is full: 4 requests are waiting, 4 run at a time");
  // Who has not had a turn is not behind all of them.
  EXPECT_TRUE(wait.admit({.waiting = queue, .num_running = 4}, {.owner = "b"}).ok());
}

TEST(QueueWait, AdmitsAllWithoutABound) {
  QueueWait wait(1, Duration::zero());
  wait.observe({.service = seconds(100), .is_busy = true});
  const std::vector<WaitingRequest> queue = waiting(1000, "a");
  EXPECT_TRUE(wait.admit({.waiting = queue, .num_running = 1}, {.owner = "a"}).ok());
}

// Requests that arrive ten times as fast as the engine core can serve them, on a fake clock.
class Overload final {
 public:
  explicit Overload(std::optional<Duration> max_wait) : wait_(kNumSlots, max_wait) {
    auto runner = std::make_unique<testing::FakeModelRunner>(
        testing::FakeModelOptions{.vocab_size = kVocab,
                                  .num_slots = kNumSlots,
                                  .num_pages = 64,
                                  .logits = testing::hashed_logits(kVocab)});
    runner->before_step = [this](const Batch&) -> Result<void> {
      clock_.advance(kStepTime);
      return {};
    };
    const auto options =
        EngineCore::resolve({.max_running_requests = kNumSlots, .max_gap = {}}, *runner, 1);
    core_ = std::make_unique<EngineCore>(*options, std::move(runner), tokenizer_, clock_);
  }

  // One after the other.
  void run_alone(int32_t count, int32_t num_tokens) {
    for (int32_t i = 0; i < count; ++i) {
      add("alone" + std::to_string(i), num_tokens);
      finish_all();
    }
    waits_.clear();
  }

  // Finishes what was let in.
  void run(int32_t num_arrivals) {
    const TimePoint start = clock_.now();
    const int64_t num_before = core_->stats().generation_tokens_total;
    for (int32_t i = 0; i < num_arrivals; ++i) {
      while (clock_.now() < start + i * kInterval && !core_->is_idle()) core_->step();
      arrive(i);
    }
    num_tokens_in_time_ = core_->stats().generation_tokens_total - num_before;
    finish_all();
  }

  // Of the longest requests: a step for each token, the first one also reads the prompt.
  static double longest_service_seconds() { return to_seconds(kStepTime) * kMeanTokens * 3 / 2; }
  int32_t num_refused() const { return num_refused_; }
  int64_t num_tokens_in_time() const { return num_tokens_in_time_; }
  double longest_wait_seconds() const { return *std::ranges::max_element(waits_); }
  double median_wait_seconds() const {
    std::vector<double> sorted = waits_;
    std::ranges::sort(sorted);
    return sorted[sorted.size() / 2];
  }

 private:
  static constexpr int32_t kNumSlots = 4;
  static constexpr int32_t kVocab = 8;
  static constexpr int32_t kMeanTokens = 20;
  static constexpr int64_t kNumPromptTokens = 2;
  static constexpr Duration kStepTime = milliseconds(5);
  static constexpr Duration kInterval = kStepTime * kMeanTokens / kNumSlots / 10;

  static int64_t work_of(int64_t num_tokens) { return kNumPromptTokens + num_tokens; }

  void arrive(int32_t index) {
    const int32_t num_tokens = kMeanTokens / 2 + index * 7 % (kMeanTokens + 1);
    core_->describe(states_);
    std::vector<WaitingRequest> queue;
    for (const RequestState& state : states_) {
      if (!state.is_running) queue.push_back({.work = work_of(state.max_tokens)});
    }
    const QueueState state{.waiting = queue, .num_running = core_->stats().num_running};
    if (wait_.admit(state, {.work = work_of(num_tokens)}).ok()) {
      add(std::to_string(index), num_tokens);
    } else {
      ++num_refused_;
    }
  }

  void add(std::string id, int32_t num_tokens) {
    Request request{.id = std::move(id), .prompt_ids = {1, 2}, .sampling = {}};
    request.sampling.max_tokens = num_tokens;
    const auto sink = [this, num_tokens](Output&& output) {
      if (output.finish) note_end(*output.finish, num_tokens);
    };
    core_->add(std::move(request), sink, clock_.now());
  }

  void note_end(const Finish& end, int32_t num_tokens) {
    waits_.push_back(end.queue_seconds);
    const std::chrono::duration<double> service(end.prefill_seconds + end.decode_seconds);
    wait_.observe({.service = std::chrono::duration_cast<Duration>(service),
                   .work = work_of(num_tokens),
                   .is_busy = core_->stats().num_queued > 0});
  }

  void finish_all() {
    while (!core_->is_idle()) core_->step();
  }

  testing::FakeTokenizer tokenizer_{std::vector<std::string>(kVocab, "x")};
  testing::FakeClock clock_;
  QueueWait wait_;
  std::unique_ptr<EngineCore> core_;
  std::vector<RequestState> states_;  // scratch
  std::vector<double> waits_;
  int32_t num_refused_ = 0;
  int64_t num_tokens_in_time_ = 0;
};

TEST(QueueWait, KeepsWaitsShortUnderTenTimesTheLoad) {
  constexpr Duration kMaxWait = milliseconds(100);
  constexpr int32_t kNumArrivals = 4000;
  Overload unbounded(Duration::zero());
  unbounded.run(kNumArrivals);
  Overload bounded(kMaxWait);
  bounded.run(kNumArrivals);
  EXPECT_LE(bounded.median_wait_seconds(), to_seconds(kMaxWait));
  EXPECT_LE(bounded.longest_wait_seconds(), 2 * to_seconds(kMaxWait));
  EXPECT_GT(unbounded.median_wait_seconds(), 20 * to_seconds(kMaxWait));
  // Nine of ten cannot be served in time; the machine is as busy as without the bound.
  EXPECT_GT(bounded.num_refused(), kNumArrivals * 8 / 10);
  EXPECT_GE(bounded.num_tokens_in_time(), unbounded.num_tokens_in_time() * 19 / 20);
}

// Without a stated wait nobody waits longer than the longest request takes.
TEST(QueueWait, WaitsAtMostDoubleWhatRequestsTakeUnderTenTimesTheLoad) {
  constexpr int32_t kNumArrivals = 4000;
  Overload unbounded(Duration::zero());
  unbounded.run(kNumArrivals);
  Overload bounded(std::nullopt);
  bounded.run(kNumArrivals);
  EXPECT_LE(bounded.longest_wait_seconds(), Overload::longest_service_seconds());
  EXPECT_GE(bounded.num_tokens_in_time(), unbounded.num_tokens_in_time() * 19 / 20);
}

// As of a client that asks a few short questions before it sends its load.
TEST(QueueWait, IsNotMisledByShortRequestsBeforeTheLoad) {
  constexpr Duration kMaxWait = milliseconds(100);
  Overload overload(kMaxWait);
  overload.run_alone(20, 1);
  overload.run(4000);
  EXPECT_LE(overload.median_wait_seconds(), to_seconds(kMaxWait));
  EXPECT_LE(overload.longest_wait_seconds(), 2 * to_seconds(kMaxWait));
}

}  // namespace
}  // namespace nibble::engine
