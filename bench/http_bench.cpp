// What the server costs beside the model: CPU time per token of everything but the engine thread
// (HTTP, JSON, tokenizing, server-sent events) and of the engine thread (scheduling, sampling,
// detokenizing), with a model that returns at once. The client runs in the same process and is
// subtracted.
#include <benchmark/benchmark.h>
#include <pthread.h>

#include <atomic>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "bench_client/dataset.h"
#include "bench_client/load.h"
#include "bench_client/prompt_words.h"
#include "bench_client/summary.h"
#include "engine/engine.h"
#include "engine/model_runner.h"
#include "server/server.h"
#include "text/tokenizer.h"

namespace nibble {
namespace {

constexpr int32_t kMaxStreams = 64;
constexpr int32_t kPageSize = 256;
constexpr int32_t kContext = 1024;
constexpr int32_t kPromptTokens = 128;
constexpr int32_t kAnswerTokens = 256;

double cpu_seconds(clockid_t clock) {
  timespec time = {};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Every answer is the same few words over and over; no step takes time.
class InstantRunner final : public engine::ModelRunner {
 public:
  InstantRunner(int32_t vocab_size,
                const std::vector<int32_t>& words,
                std::atomic<clockid_t>& clock)
      : clock_(clock) {
    info_.vocab_size = vocab_size;
    info_.max_position_embeddings = kContext;
    info_.page_size = kPageSize;
    for (int32_t row = 0; row < kMaxStreams; ++row) {
      const size_t begin = logits_.size();
      logits_.resize(begin + static_cast<size_t>(vocab_size), 0.0F);
      const auto word = static_cast<size_t>(row) % words.size();
      logits_[begin + static_cast<size_t>(words[word])] = 20.0F;
    }
  }

  const models::ModelInfo& info() const override { return info_; }
  const std::vector<models::RoutedModule>& routed_modules() const override { return modules_; }
  int32_t num_slots() const override { return kMaxStreams; }
  int32_t num_pages() const override { return kMaxStreams * kContext / kPageSize; }
  int32_t num_snapshots() const override { return 0; }
  int32_t max_tokens_per_step() const override { return 8192; }
  int64_t memory_bytes() const override { return 0; }
  void reset_slot(SlotId) override {}
  Result<void> truncate(SlotId, int32_t) override { return {}; }
  Result<void> save_slot(SlotId, cache::SnapshotId) override { return {}; }
  Result<void> restore_slot(SlotId, cache::SnapshotId) override { return {}; }

  Result<engine::StepResult> step(const engine::Batch& batch) override {
    clockid_t clock = 0;
    pthread_getcpuclockid(pthread_self(), &clock);
    clock_.store(clock);
    int64_t rows = 0;
    for (const engine::BatchItem& item : batch.items) rows += item.wants_logits ? 1 : 0;
    return engine::StepResult{
        TensorView::contiguous(logits_.data(), DType::kF32, {rows, info_.vocab_size})};
  }

 private:
  models::ModelInfo info_;
  std::vector<models::RoutedModule> modules_;
  std::vector<float> logits_;  // [kMaxStreams, vocab_size]
  std::atomic<clockid_t>& clock_;
};

// A server on loopback and a client of it.
class Bench final {
 public:
  Bench() {
    words_.words = bench_client::one_token_words(*tokenizer_).value();
    std::vector<int32_t> answer;
    for (size_t i = 0; i < 16; ++i) {
      answer.push_back(tokenizer_->encode(words_.words[i], {}).value().front());
    }
    const engine::EngineConfig config{.max_running_requests = kMaxStreams};
    engine_ = engine::Engine::create(
                  config,
                  std::make_unique<InstantRunner>(tokenizer_->vocab_size(), answer, engine_clock_),
                  *tokenizer_,
                  clock_)
                  .value();
    server::ServerConfig server;
    server.http.port = 0;
    server.handles_signals = false;
    server_ = server::Server::listen(server).value();
    server_->start();
    server_->attach({.served_names = {"instant"}}, *engine_, *tokenizer_);
    target_.base_url = "http://127.0.0.1:" + std::to_string(server_->port());
    target_.model = "instant";
  }

  struct Cost {
    double front_seconds = 0;
    double engine_seconds = 0;
    int64_t num_tokens = 0;
  };

  Cost run(int32_t num_streams) {
    const bench_client::DatasetOptions dataset{
        .num_prompts = num_streams, .input_len = kPromptTokens, .output_len = kAnswerTokens};
    const auto conversations = bench_client::make_dataset(dataset, words_, random_).value();
    const Usage before = usage();
    const auto record = bench_client::run_load(client_, target_, conversations, {}, {}).value();
    const Usage after = usage();
    const bench_client::Summary summary = bench_client::summarise(record);
    CHECK(summary.num_failed == 0) << summary.failures.begin()->second.example;
    const double engine = after.engine - before.engine;
    const double client = after.client - before.client;
    return {after.process - before.process - client - engine, engine, summary.output_tokens};
  }

 private:
  struct Usage {
    double process;
    double client;
    double engine;
  };
  Usage usage() const {
    const clockid_t engine = engine_clock_.load();
    return {cpu_seconds(CLOCK_PROCESS_CPUTIME_ID),
            cpu_seconds(CLOCK_THREAD_CPUTIME_ID),
            engine == 0 ? 0.0 : cpu_seconds(engine)};
  }

  const std::unique_ptr<text::Tokenizer> tokenizer_ =
      text::load_tokenizer(Path(NIBBLE_SOURCE_DIR) / "models/tiny-v4").value();
  SteadyClock clock_;
  std::atomic<clockid_t> engine_clock_ = 0;  // 0: no step yet
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<server::Server> server_;
  bench_client::HttpClient client_;
  bench_client::Target target_;
  bench_client::PromptWords words_;
  bench_client::Random random_{1};
};

void BM_Streams(benchmark::State& state) {
  Bench bench;
  const auto num_streams = static_cast<int32_t>(state.range(0));
  bench.run(num_streams);
  Bench::Cost sum;
  for (auto _ : state) {
    const Bench::Cost cost = bench.run(num_streams);
    sum.front_seconds += cost.front_seconds;
    sum.engine_seconds += cost.engine_seconds;
    sum.num_tokens += cost.num_tokens;
  }
  const auto num_tokens = static_cast<double>(sum.num_tokens);
  state.SetItemsProcessed(sum.num_tokens);
  state.counters["front_us_per_token"] = sum.front_seconds * 1e6 / num_tokens;
  state.counters["engine_us_per_token"] = sum.engine_seconds * 1e6 / num_tokens;
}
BENCHMARK(BM_Streams)->Arg(1)->Arg(16)->Arg(64)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace nibble
