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
  wait.observe_service(seconds(10));
  const std::vector<WaitingRequest> queue = waiting(2, "a");
  EXPECT_EQ(wait.expected({.waiting = queue, .num_running = 1}, {}), Duration::zero());
  EXPECT_GT(wait.expected({.waiting = queue, .num_running = 2}, {.owner = "a"}), Duration::zero());
}

TEST(QueueWait, GrowsWithTheQueueAndTheTimeThatRequestsTake) {
  QueueWait wait(4, seconds(1));
  wait.observe_service(seconds(2));
  const std::vector<WaitingRequest> queue = waiting(3, "a");
  // Four must end before it starts; each of four slots does so every two seconds.
  EXPECT_EQ(wait.expected({.waiting = queue, .num_running = 4}, {.owner = "a"}), seconds(2));
  for (int i = 0; i < 200; ++i) wait.observe_service(seconds(4));
  const auto later = wait.expected({.waiting = queue, .num_running = 4}, {.owner = "a"});
  EXPECT_NEAR(to_seconds(*later), 4, 1e-6);
}

TEST(QueueWait, CountsWhoRunsWhereMemoryIsTheLimit) {
  QueueWait wait(64, seconds(1));
  wait.observe_service(seconds(2));
  const std::vector<WaitingRequest> queue = waiting(3, "a");
  EXPECT_EQ(wait.expected({.waiting = queue, .num_running = 2, .is_short_of_memory = true},
                          {.owner = "a"}),
            seconds(4));
}

TEST(QueueWait, AdmitsTheFirstInLineAlways) {
  QueueWait wait(1, milliseconds(1));
  wait.observe_service(seconds(100));
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

TEST(QueueWait, AdmitsAllWithoutABound) {
  QueueWait wait(1, Duration::zero());
  wait.observe_service(seconds(100));
  const std::vector<WaitingRequest> queue = waiting(1000, "a");
  EXPECT_TRUE(wait.admit({.waiting = queue, .num_running = 1}, {.owner = "a"}).ok());
}

// Requests that arrive ten times as fast as the engine core can serve them, on a fake clock.
class Overload final {
 public:
  explicit Overload(Duration max_wait) : wait_(kNumSlots, max_wait) {
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

  // Finishes what was let in.
  void run(int32_t num_arrivals) {
    for (int32_t i = 0; i < num_arrivals; ++i) {
      while (clock_.now() < TimePoint{} + i * kInterval && !core_->is_idle()) core_->step();
      arrive(i);
    }
    num_finished_in_time_ = core_->stats().requests_finished_total;
    while (!core_->is_idle()) core_->step();
  }

  int32_t num_refused() const { return num_refused_; }
  int64_t num_finished_in_time() const { return num_finished_in_time_; }
  double longest_wait_seconds() const { return *std::ranges::max_element(waits_); }
  double median_wait_seconds() const {
    std::vector<double> sorted = waits_;
    std::ranges::sort(sorted);
    return sorted[sorted.size() / 2];
  }

  static constexpr int32_t kNumSlots = 4;

 private:
  static constexpr int32_t kVocab = 8;
  static constexpr int32_t kMeanTokens = 20;
  static constexpr Duration kStepTime = milliseconds(5);
  static constexpr Duration kInterval = kStepTime * kMeanTokens / kNumSlots / 10;

  void arrive(int32_t index) {
    std::vector<RequestState> states;
    core_->describe(states);
    std::vector<WaitingRequest> queue;
    for (const RequestState& state : states) {
      if (!state.is_running) queue.push_back({.owner = state.owner, .priority = state.priority});
    }
    const QueueState state{.waiting = queue, .num_running = core_->stats().num_running};
    if (!wait_.admit(state, {}).ok()) {
      ++num_refused_;
      return;
    }
    Request request{.id = std::to_string(index), .prompt_ids = {1, 2}, .sampling = {}};
    request.sampling.max_tokens = kMeanTokens / 2 + index * 7 % (kMeanTokens + 1);
    core_->add(
        std::move(request),
        [this](Output&& output) {
          if (!output.finish) return;
          const Finish& end = *output.finish;
          waits_.push_back(end.queue_seconds);
          wait_.observe_service(std::chrono::duration_cast<Duration>(
              std::chrono::duration<double>(end.prefill_seconds + end.decode_seconds)));
        },
        clock_.now());
  }

  testing::FakeTokenizer tokenizer_{std::vector<std::string>(kVocab, "x")};
  testing::FakeClock clock_;
  QueueWait wait_;
  std::unique_ptr<EngineCore> core_;
  std::vector<double> waits_;
  int32_t num_refused_ = 0;
  int64_t num_finished_in_time_ = 0;
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
  // Nine of ten cannot be served in time; no slot stands idle because of it.
  EXPECT_GT(bounded.num_refused(), kNumArrivals * 8 / 10);
  EXPECT_GE(bounded.num_finished_in_time() + Overload::kNumSlots, unbounded.num_finished_in_time());
}

}  // namespace
}  // namespace nibble::engine
