#include "engine/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>

#include "engine/engine_testing.h"

namespace nibble::engine {
namespace {

using testing::FakeModelOptions;
using testing::FakeModelRunner;

constexpr int32_t kVocab = 8;

// Steps wait until the test lets them pass.
class Gate final {
 public:
  void open() {
    {
      const std::lock_guard lock(mutex_);
      is_open_ = true;
    }
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    is_reached_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return is_open_; });
  }
  void wait_until_reached() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_reached_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
  bool is_reached_ = false;
};

// The finish of one request, for another thread to wait on.
struct Client {
  std::promise<Finish> promise;
  std::future<Finish> finish = promise.get_future();

  OutputSink sink() {
    return [this](Output&& output) {
      if (output.finish) promise.set_value(std::move(*output.finish));
    };
  }
};

class EngineTest : public ::testing::Test {
 protected:
  std::unique_ptr<Engine> make_engine(const EngineConfig& config = {}) {
    FakeModelOptions options;
    options.vocab_size = kVocab;
    options.num_slots = 4;
    options.logits = testing::hashed_logits(kVocab);
    auto runner = std::make_unique<FakeModelRunner>(options);
    runner->before_step = [this](const Batch&) -> Result<void> {
      gate_.wait();
      return {};
    };
    auto engine = Engine::create(config, std::move(runner), tokenizer_, clock_);
    EXPECT_TRUE(engine.ok());
    return std::move(*engine);
  }

  static Request request(std::string id, int32_t max_tokens = 3) {
    Request request{.id = std::move(id), .prompt_ids = {1, 2}, .sampling = {}};
    request.sampling.max_tokens = max_tokens;
    return request;
  }

  TimePoint now() const { return clock_.now(); }

  Gate gate_;
  testing::FakeTokenizer tokenizer_{std::vector<std::string>(kVocab, "x")};
  SteadyClock clock_;
};

TEST_F(EngineTest, RunsRequestsToTheirEnd) {
  gate_.open();
  Client clients[3];
  Client again;
  auto engine = make_engine({.max_running_requests = 2});
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(engine->submit(request(std::to_string(i)), clients[i].sink()).ok());
  }
  for (Client& client : clients) {
    const Finish finish = client.finish.get();
    EXPECT_EQ(finish.reason, FinishReason::kLength);
    EXPECT_EQ(finish.usage.completion_tokens, 3);
  }
  // The id is free as soon as its end was reported.
  ASSERT_TRUE(engine->submit(request("0"), again.sink()).ok());
  EXPECT_EQ(again.finish.get().reason, FinishReason::kLength);
  EXPECT_EQ(engine->stats().requests_finished_total, 4);
}

TEST_F(EngineTest, RefusesInvalidAndDuplicateRequests) {
  Client client;
  auto engine = make_engine();
  ASSERT_TRUE(engine->submit(request("a"), client.sink()).ok());
  const auto must_not_run = [](Output&&) { FAIL(); };
  EXPECT_EQ(engine->submit(request("a"), must_not_run).error().param, "request_id");
  EXPECT_EQ(engine->submit(request("b", 1000), must_not_run).error().reason,
            "context_length_exceeded");
  gate_.open();
  client.finish.wait();
}

TEST_F(EngineTest, RefusesWhenTheQueueIsFull) {
  Client running;
  Client queued[2];
  auto engine = make_engine({.max_queued_requests = 2});
  ASSERT_TRUE(engine->submit(request("running"), running.sink()).ok());
  gate_.wait_until_reached();
  // The engine publishes that the first one runs only after its first step.
  ASSERT_TRUE(engine->submit(request("q0"), queued[0].sink()).ok());
  EXPECT_EQ(engine->stats().num_queued, 2);
  const Result<void> refused = engine->submit(request("q1"), [](Output&&) { FAIL(); });
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::kExhausted);
  gate_.open();
  running.finish.wait();
  ASSERT_TRUE(engine->submit(request("q2"), queued[1].sink()).ok());
  queued[0].finish.wait();
  queued[1].finish.wait();
}

TEST_F(EngineTest, RefusesWhatWouldWaitTooLong) {
  Client running;
  Client first;
  auto engine = make_engine({.max_queue_wait = std::chrono::nanoseconds(1)});
  ASSERT_TRUE(engine->submit(request("running"), running.sink()).ok());
  gate_.wait_until_reached();
  EXPECT_EQ(engine->stats().expected_wait_seconds, 0);  // nothing is known yet
  ASSERT_TRUE(engine->submit(request("first"), first.sink()).ok());
  const Result<void> refused = engine->submit(request("second"), [](Output&&) { FAIL(); });
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::kExhausted);
  gate_.open();
  running.finish.wait();
  first.finish.wait();
}

TEST_F(EngineTest, CancelEndsRunningAndWaitingRequests) {
  Client running;
  Client waiting;
  auto engine = make_engine();
  ASSERT_TRUE(engine->submit(request("running", 60), running.sink()).ok());
  ASSERT_TRUE(engine->submit(request("waiting", 60), waiting.sink()).ok());
  gate_.wait_until_reached();
  engine->cancel("waiting");
  engine->cancel("running");
  engine->cancel("unknown");
  gate_.open();
  EXPECT_EQ(running.finish.get().reason, FinishReason::kCancelled);
  EXPECT_EQ(waiting.finish.get().reason, FinishReason::kCancelled);
}

TEST_F(EngineTest, DrainWaitsForAcceptedRequestsAndRefusesNewOnes) {
  Client client;
  auto engine = make_engine();
  ASSERT_TRUE(engine->submit(request("a"), client.sink()).ok());
  gate_.wait_until_reached();
  std::thread drainer([&] { engine->drain(now() + std::chrono::hours(1)); });
  Errc refusal = Errc::kExhausted;  // requests are accepted, or too many, until the drain begins
  for (int i = 0; refusal == Errc::kExhausted; ++i) {
    const Result<void> late = engine->submit(request("late" + std::to_string(i)), [](Output&&) {});
    if (!late.ok()) refusal = late.error().code;
  }
  EXPECT_EQ(refusal, Errc::kUnavailable);
  gate_.open();
  drainer.join();
  ASSERT_EQ(client.finish.wait_for(std::chrono::seconds(0)), std::future_status::ready);
  EXPECT_EQ(client.finish.get().reason, FinishReason::kLength);
}

TEST_F(EngineTest, DrainCancelsWhatIsLeftAtTheDeadline) {
  Client client;
  auto engine = make_engine();
  ASSERT_TRUE(engine->submit(request("a", 60), client.sink()).ok());
  gate_.wait_until_reached();
  std::thread opener([&] { gate_.open(); });
  engine->drain(now());
  opener.join();
  ASSERT_EQ(client.finish.wait_for(std::chrono::seconds(0)), std::future_status::ready);
  const FinishReason reason = client.finish.get().reason;
  EXPECT_TRUE(reason == FinishReason::kCancelled || reason == FinishReason::kLength);
}

TEST_F(EngineTest, DestructionCancelsUnfinishedRequests) {
  Client clients[2];
  auto engine = make_engine();
  ASSERT_TRUE(engine->submit(request("a", 60), clients[0].sink()).ok());
  ASSERT_TRUE(engine->submit(request("b", 60), clients[1].sink()).ok());
  gate_.wait_until_reached();
  std::thread opener([&] { gate_.open(); });
  engine.reset();
  opener.join();
  for (Client& client : clients) EXPECT_NE(client.finish.get().reason, FinishReason::kError);
}

TEST_F(EngineTest, ManyThreadsMaySubmitAndCancel) {
  gate_.open();
  auto engine = make_engine({.max_running_requests = 4});
  std::atomic<int> num_finished = 0;
  std::atomic<int> num_accepted = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const std::string id = std::to_string(t) + "-" + std::to_string(i);
        const bool is_accepted =
            engine->submit(request(id, 8), [&](Output&& o) { num_finished += o.finish ? 1 : 0; })
                .ok();
        num_accepted += is_accepted ? 1 : 0;
        if (i % 3 == 0) engine->cancel(id);
        engine->stats();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  engine->drain(now() + std::chrono::hours(1));
  EXPECT_EQ(num_finished, num_accepted);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.requests_finished_total + stats.requests_cancelled_total, num_accepted);
  EXPECT_EQ(stats.num_pages_used, 0);
}

}  // namespace
}  // namespace nibble::engine
