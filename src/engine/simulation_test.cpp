// Seeded runs of the engine core against a fake model and a fake clock: random requests that share
// prefixes, owners and priorities, chunk sizes, pools of pages and snapshots, cancels and failing
// steps. A failing seed is printed; the run is a function of it.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "engine/engine_core.h"
#include "engine/engine_testing.h"

namespace nibble::engine {
namespace {

using testing::FakeModelRunner;
using testing::Received;

constexpr int32_t kVocab = 24;
constexpr int32_t kEos = 0;
constexpr Duration kMaxGap = std::chrono::milliseconds(150);

class Simulation final {
 public:
  explicit Simulation(uint32_t seed)
      : random_(seed),
        logits_(testing::hashed_logits(kVocab)),
        token_cost_(std::chrono::milliseconds(between(1, 40))) {
    std::vector<std::string> tokens;
    for (int32_t i = 0; i < kVocab; ++i) tokens.emplace_back(1, static_cast<char>('a' + i));
    tokenizer_ = std::make_unique<testing::FakeTokenizer>(tokens);
    make_core();
  }

  void run() {
    const int32_t num_requests = between(1, 30);
    while (num_added_ < num_requests || !core_->is_idle()) {
      if (num_added_ < num_requests && one_in(3)) add_request();
      if (one_in(25)) cancel_one();
      if (one_in(60)) core_->flush_cache();
      fail_next_step_ = one_in(150);
      core_->step();
      core_->scheduler().check_invariants();
    }
    for (const auto& [id, request] : requests_) check_outcome(request, received_.at(id));
    const EngineStats stats = core_->stats();
    EXPECT_EQ(stats.num_pages_used, stats.num_pages_cached);
    core_->flush_cache();
    EXPECT_EQ(core_->stats().num_pages_used, 0);
    EXPECT_EQ(core_->stats().num_snapshots_used, 0);
  }

  EngineStats stats() const { return core_->stats(); }

 private:
  int32_t between(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random_);
  }
  bool one_in(int32_t n) { return between(1, n) == 1; }

  void make_core() {
    testing::FakeModelOptions options;
    options.vocab_size = kVocab;
    options.page_size = 1 << between(0, 3);
    options.num_slots = between(1, 6);
    max_context_ = between(20, 60);
    // From just enough for one sequence to plenty.
    options.num_pages = max_context_ / options.page_size + 1 + between(0, 60) / options.page_size;
    options.num_snapshots = one_in(3) ? 0 : between(1, 20);
    options.snapshot_pages = between(1, 4);
    options.max_tokens_per_step = options.num_slots + between(0, 20);
    options.logits = logits_;
    EngineConfig config;
    config.max_context = max_context_;
    config.max_running_requests = options.num_slots;
    config.prefill_chunk_tokens = between(1, 16);
    config.eos_token_ids = {kEos};
    auto runner = std::make_unique<FakeModelRunner>(options);
    config.max_gap = kMaxGap;
    runner->before_step = [this](const Batch& batch) -> Result<void> {
      if (fail_next_step_) return exhausted("injected");
      clock_.advance(cost_of(batch));
      return {};
    };
    auto resolved = EngineCore::resolve(config, *runner, 1);
    ASSERT_TRUE(resolved.ok()) << resolved.error().message;
    limits_ = resolved->requests;
    core_ = std::make_unique<EngineCore>(*resolved, std::move(runner), *tokenizer_, clock_);
  }

  // Decoding stays below the part of the bound that is not planned for prefill.
  Duration cost_of(const Batch& batch) const {
    Duration cost = std::chrono::milliseconds(2);
    for (const BatchItem& item : batch.items) {
      const bool is_decode = item.token_ids.size() == 1 && item.start_position > 0;
      cost += is_decode ? std::chrono::milliseconds(3)
                        : token_cost_ * static_cast<int64_t>(item.token_ids.size());
    }
    return cost;
  }

  // New tokens, often after the beginning of an earlier request or of its answer.
  std::vector<int32_t> make_prompt() {
    const auto length = static_cast<size_t>(between(1, max_context_ - 1));
    std::vector<int32_t> prompt;
    if (num_added_ > 0 && !one_in(3)) {
      const std::string id = std::to_string(between(0, num_added_ - 1));
      prompt = requests_.at(id).prompt_ids;
      const auto& answer = received_.at(id).token_ids;
      prompt.insert(prompt.end(), answer.begin(), answer.end());
      prompt.resize(std::min(prompt.size(), static_cast<size_t>(between(0, max_context_ - 1))));
    }
    while (prompt.size() < length) prompt.push_back(between(0, kVocab - 1));
    return prompt;
  }

  void add_request() {
    Request request;
    request.prompt_ids = make_prompt();
    request.id = std::to_string(num_added_++);
    request.priority = one_in(3) ? between(-1, 1) : 0;
    request.owner = one_in(3) ? "one" : "";
    request.cache_salt = one_in(6) ? "salt" : "";
    const auto num_prompt = static_cast<int32_t>(request.prompt_ids.size());
    SamplingParams& sampling = request.sampling;
    sampling.max_tokens = between(1, max_context_ - num_prompt);
    sampling.seed = random_();
    sampling.temperature = one_in(3) ? 0.0F : 1.0F;
    sampling.top_k = between(0, 8);
    sampling.top_p = one_in(2) ? 1.0F : 0.9F;
    sampling.repetition_penalty = one_in(2) ? 1.0F : 1.2F;
    sampling.presence_penalty = one_in(2) ? 0.0F : 0.5F;
    if (one_in(4)) sampling.prompt_logprobs = between(0, 2);
    sampling.logprobs = one_in(4);
    if (one_in(4)) {
      request.reasoning_budget = {.num_tokens = between(0, 20), .end_token_id = kVocab - 1};
    }
    ASSERT_TRUE(validate_request(request, limits_).ok());
    Received& received = received_[request.id];
    requests_[request.id] = request;
    core_->add(request, received.sink(), clock_.now());
  }

  void cancel_one() {
    if (num_added_ > 0) core_->cancel(std::to_string(between(0, num_added_ - 1)));
  }

  void check_outcome(const Request& request, const Received& received) {
    ASSERT_EQ(received.finishes.size(), 1U) << "request " << request.id;
    const Finish& finish = received.finishes[0];
    const auto expected = testing::expected_tokens(request, logits_, kEos);
    const auto num_tokens = received.token_ids.size();
    ASSERT_LE(num_tokens, expected.size());
    const std::vector<int32_t> prefix(expected.begin(),
                                      expected.begin() + static_cast<std::ptrdiff_t>(num_tokens));
    EXPECT_EQ(received.token_ids, prefix) << "request " << request.id;
    EXPECT_EQ(finish.usage.completion_tokens, static_cast<int32_t>(num_tokens));
    EXPECT_EQ(received.logprobs.size(), request.sampling.logprobs ? num_tokens : 0);
    EXPECT_LT(finish.usage.cached_tokens, finish.usage.prompt_tokens);
    if (finish.num_preemptions == 0) {
      EXPECT_LE(finish.longest_gap_seconds, to_seconds(kMaxGap)) << "request " << request.id;
    }
    const bool is_complete =
        finish.reason == FinishReason::kStop || finish.reason == FinishReason::kLength;
    if (!is_complete) return;
    EXPECT_EQ(num_tokens, expected.size());
    EXPECT_EQ(finish.reason == FinishReason::kStop, expected.back() == kEos);
    if (request.sampling.prompt_logprobs) {
      EXPECT_EQ(received.prompt_logprobs.size(), request.prompt_ids.size() - 1);
    }
  }

  std::mt19937 random_;
  testing::LogitsFn logits_;
  testing::FakeClock clock_;
  std::unique_ptr<testing::FakeTokenizer> tokenizer_;
  std::unique_ptr<EngineCore> core_;
  RequestLimits limits_;
  Duration token_cost_;
  int32_t max_context_ = 0;
  int32_t num_added_ = 0;
  bool fail_next_step_ = false;
  std::map<std::string, Request> requests_;
  std::map<std::string, Received> received_;
};

void run_seeds(uint32_t num_seeds) {
  int64_t num_preemptions = 0;
  int64_t num_hits = 0;
  int64_t num_evictions = 0;
  for (uint32_t seed = 0; seed < num_seeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Simulation simulation(seed);
    simulation.run();
    const EngineStats stats = simulation.stats();
    num_preemptions += stats.preemptions_total;
    num_hits += stats.prefix_hit_tokens_total;
    num_evictions += stats.pages_evicted_total;
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(num_preemptions, 0) << "the pools are too large to test preemption";
  EXPECT_GT(num_hits, 0) << "no prefix was reused";
  EXPECT_GT(num_evictions, 0) << "nothing was evicted";
}

TEST(EngineSimulation, EachRequestEndsOnceWithTheTokensThatItGivesAlone) { run_seeds(300); }

// `make check-all` runs it with --gtest_also_run_disabled_tests.
TEST(EngineSimulation, DISABLED_TenThousandSeeds) { run_seeds(10'000); }

}  // namespace
}  // namespace nibble::engine
