// Seeded runs of the engine core against a fake model, a fake clock and a fake disk: random
// requests that share prefixes, owners and priorities, some of them arriving together, chunk sizes,
// pools of pages and snapshots, tiers that are slow and lose pages, cancels, limits in the queue
// and failing steps. A failing seed is printed; the run is a function of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <random>

#include "base/check.h"
#include "engine/engine_core.h"
#include "engine/engine_testing.h"

namespace nibble::engine {
namespace {

using testing::FakeModelRunner;
using testing::Received;

constexpr int32_t kVocab = 24;
constexpr int32_t kEos = 0;
constexpr Duration kMaxGap = std::chrono::milliseconds(150);

class Random final {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  int32_t between(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(engine_);
  }
  bool one_in(int32_t n) { return between(1, n) == 1; }
  uint32_t bits() { return static_cast<uint32_t>(engine_()); }

 private:
  std::mt19937 engine_;
};

// A tier that takes its time, refuses pages and loses them: whole, or so that the engine can tell.
class FakeDisk final : public KvTier {
 public:
  struct Options {
    int64_t max_bytes = 0;
    Duration latency{};        // of a fetch
    int32_t one_fails_in = 0;  // puts and reads; 0: none
  };
  FakeDisk(const Options& options, testing::FakeClock& clock, uint32_t seed)
      : options_(options), clock_(clock), random_(seed) {}

  Holds holds(const Hash128& name) const override {
    const auto found = find(name);
    if (found == pages_.end()) return Holds::kNothing;
    return found->snapshot.empty() ? Holds::kEntries : Holds::kEntriesAndSnapshot;
  }

  void put(TierPage&& page, WhenFull) override {
    const Holds held = holds(page.name);
    if (held == Holds::kEntriesAndSnapshot || (held != Holds::kNothing && page.snapshot.empty())) {
      return;
    }
    if (fails()) return;
    erase(page.name);
    num_bytes_ += page.num_bytes();
    pages_.push_back(std::move(page));
    while (num_bytes_ > options_.max_bytes) erase(Hash128(pages_.front().name));
  }

  void fetch(std::span<const Hash128> names) override {
    wanted_.assign(names.begin(), names.end());
    ready_ = clock_.now() + (names.empty() ? Duration::zero() : options_.latency);
  }
  bool is_fetched() const override { return clock_.now() >= ready_; }
  void wait_fetched(Duration most) override {
    if (!is_fetched()) clock_.advance(std::min(most, ready_ - clock_.now()));
  }

  TierPages take() override {
    TierPages taken;
    for (const Hash128& name : std::exchange(wanted_, {})) {
      const auto found = find(name);
      if (found == pages_.end()) continue;
      if (!fails()) {
        taken.emplace(name, *found);
      } else if (random_.one_in(2)) {
        erase(name);
      } else {
        TierPage damaged = *found;
        (random_.one_in(2) ? damaged.entries.pop_back() : damaged.tokens.pop_back());
        taken.emplace(name, std::move(damaged));
      }
    }
    return taken;
  }

  int64_t num_bytes() const override { return num_bytes_; }
  void clear() override {
    pages_.clear();
    wanted_.clear();
    num_bytes_ = 0;
  }
  void close() override {}

 private:
  bool fails() { return options_.one_fails_in > 0 && random_.one_in(options_.one_fails_in); }
  std::list<TierPage>::const_iterator find(const Hash128& name) const {
    return std::ranges::find(pages_, name, &TierPage::name);
  }
  void erase(const Hash128& name) {
    const auto found = find(name);
    if (found == pages_.end()) return;
    num_bytes_ -= found->num_bytes();
    pages_.erase(found);
  }

  Options options_;
  testing::FakeClock& clock_;
  Random random_;
  std::list<TierPage> pages_;  // least recently put first
  std::vector<Hash128> wanted_;
  TimePoint ready_{};
  int64_t num_bytes_ = 0;
};

// What the rules of the scheduler say of one sequence, before or after a step.
struct Standing {
  int64_t arrival = 0;
  int32_t priority = 0;
  std::string owner;
  int64_t owner_served = 0;
  bool is_running = false;
  bool is_following = false;
  int32_t num_preemptions = 0;
  int32_t num_computed = 0;
  int32_t num_generated = 0;
};
using Standings = std::map<std::string, Standing>;

Standings standings_of(const Scheduler& scheduler) {
  Standings standings;
  scheduler.for_each([&](const Sequence& sequence) {
    standings[sequence.request.id] = {.arrival = sequence.arrival_index,
                                      .priority = sequence.request.priority,
                                      .owner = sequence.request.owner,
                                      .owner_served = scheduler.served(sequence.request.owner),
                                      .is_running = sequence.slot.is_valid(),
                                      .is_following = sequence.is_following,
                                      .num_preemptions = sequence.num_preemptions,
                                      .num_computed = sequence.num_computed,
                                      .num_generated = sequence.num_generated()};
  });
  return standings;
}

const Standings::value_type* oldest_running(const Standings& standings) {
  const Standings::value_type* oldest = nullptr;
  for (const auto& entry : standings) {
    if (!entry.second.is_running) continue;
    if (oldest == nullptr || entry.second.arrival < oldest->second.arrival) oldest = &entry;
  }
  return oldest;
}

// The oldest running sequence is not preempted, and advances in every step that computes; unless an
// older one started in the step and is the oldest now, or ended in it.
void check_oldest_advances(const Standings& before, const Standings& after) {
  const auto* oldest = oldest_running(before);
  if (oldest == nullptr || !after.contains(oldest->first)) return;
  const Standing& now = after.at(oldest->first);
  for (const auto& [id, was] : before) {
    const bool is_older = was.arrival < now.arrival;
    if (is_older && (!after.contains(id) || after.at(id).is_running)) return;
  }
  EXPECT_TRUE(now.is_running) << "the oldest was preempted: request " << oldest->first;
  EXPECT_GT(now.num_computed + now.num_generated,
            oldest->second.num_computed + oldest->second.num_generated)
      << "the oldest did not advance: request " << oldest->first;
}

// Whoever started in the step overtook nobody who still waits for its first start, but by the
// rules: priority, then the owner who had less (before the step), then age; and but for those who
// wait for a prefix, for whom slots and pages are kept. So a request waits only for those before it
// at its arrival, for more important ones, and for owners until they had as much as its own.
void check_nobody_is_overtaken(const Standings& before, const Standings& after) {
  for (const auto& [starter, was] : before) {
    const bool is_first_start = !was.is_running && was.num_preemptions == 0 &&
                                after.contains(starter) && after.at(starter).is_running;
    if (!is_first_start) continue;
    for (const auto& [waiter, waits] : after) {
      if (waits.is_running || waits.is_following || !before.contains(waiter)) continue;
      const Standing& waited = before.at(waiter);
      if (waited.is_running) continue;  // preempted in this step
      EXPECT_GE(was.priority, waits.priority) << starter << " overtook " << waiter;
      if (was.priority != waits.priority) continue;
      EXPECT_EQ(waits.num_preemptions, 0)
          << starter << " overtook " << waiter << ", which had begun";
      if (was.owner == waits.owner) {
        EXPECT_LT(was.arrival, waits.arrival) << starter << " overtook " << waiter;
      } else {
        EXPECT_LE(was.owner_served, waited.owner_served) << starter << " overtook " << waiter;
      }
    }
  }
}

class Simulation final {
 public:
  explicit Simulation(uint32_t seed)
      : random_(seed),
        logits_(testing::hashed_logits(kVocab)),
        token_cost_(std::chrono::milliseconds(random_.between(1, 40))) {
    std::vector<std::string> tokens;
    for (int32_t i = 0; i < kVocab; ++i) tokens.emplace_back(1, static_cast<char>('a' + i));
    tokenizer_ = std::make_unique<testing::FakeTokenizer>(tokens);
    // Every fourth run asks for what a device cannot choose by itself.
    has_penalties_ = random_.one_in(4);
    make_core();
  }

  void run() {
    const int32_t num_requests = random_.between(1, 40);
    const int32_t busy = random_.between(1, 6);  // one step in so many brings requests
    for (int32_t step = 0; num_added_ < num_requests || !core_->is_idle(); ++step) {
      ASSERT_LT(step, 50'000) << "no end in sight";
      if (num_added_ < num_requests && random_.one_in(busy)) add_requests();
      if (random_.one_in(25)) cancel_one();
      if (random_.one_in(60)) core_->flush_cache();
      fail_next_step_ = random_.one_in(150);
      checked_step();
      if (::testing::Test::HasFailure()) return;
    }
    for (const auto& [id, request] : requests_) check_outcome(request, received_.at(id));
    check_nothing_is_left();
  }

  EngineStats stats() const { return core_->stats(); }
  int32_t num_ahead() const { return runner_->num_ahead(); }
  bool saw_follower() const { return saw_follower_; }

 private:
  void make_core() {
    testing::FakeModelOptions options;
    options.vocab_size = kVocab;
    options.page_size = 1 << random_.between(0, 3);
    options.num_slots = random_.between(1, 8);
    max_context_ = random_.between(20, 60);
    // From just enough for one sequence to plenty.
    options.num_pages =
        max_context_ / options.page_size + 1 + random_.between(0, 90) / options.page_size;
    options.num_snapshots = random_.one_in(4) ? 0 : random_.between(1, 20);
    options.token_bytes = random_.one_in(2) ? 4 : 8;  // FP8 or BF16
    options.snapshot_pages = random_.between(1, 4);
    options.max_tokens_per_step = options.num_slots + random_.between(0, 20);
    options.max_queued_steps = random_.one_in(3) ? 0 : random_.between(1, 3);
    options.logits = logits_;
    EngineConfig config;
    config.max_context = max_context_;
    config.max_running_requests = options.num_slots;
    config.prefill_chunk_tokens = random_.between(1, 16);
    config.eos_token_ids = {kEos};
    config.deterministic = random_.one_in(4);
    auto runner = std::make_unique<FakeModelRunner>(options);
    runner_ = runner.get();
    config.max_gap = kMaxGap;
    runner->before_step = [this](const Batch& batch) -> Result<void> {
      if (fail_next_step_) return exhausted("injected");
      clock_.advance(cost_of(batch));
      return {};
    };
    runner->before_fetch = [this]() -> Result<void> {
      if (fail_next_step_) return exhausted("injected");
      return {};
    };
    auto resolved = EngineCore::resolve(config, *runner, 1);
    ASSERT_TRUE(resolved.ok()) << resolved.error().message;
    limits_ = resolved->requests;
    resolved->scheduling.kv.key = {random_.bits(), 1};
    core_ = std::make_unique<EngineCore>(
        *resolved, std::move(runner), *tokenizer_, clock_, make_tier());
  }

  // Host memory, a disk, both or neither; each from a few pages to plenty.
  std::unique_ptr<KvTier> make_tier() {
    std::unique_ptr<KvTier> tier;
    if (random_.one_in(2)) {
      const FakeDisk::Options options{
          .max_bytes = int64_t{1} << random_.between(8, 14),
          .latency = std::chrono::milliseconds(random_.one_in(2) ? 0 : random_.between(1, 2000)),
          .one_fails_in = random_.one_in(2) ? 0 : random_.between(1, 10)};
      tier_bytes_ += options.max_bytes;
      tier = std::make_unique<FakeDisk>(options, clock_, random_.bits());
    }
    if (random_.one_in(2)) {
      const int64_t max_bytes = int64_t{1} << random_.between(6, 14);
      tier_bytes_ += max_bytes;
      tier = make_memory_tier(max_bytes, std::move(tier));
    }
    return tier;
  }

  // Decoding stays below the part of the bound that is not planned for prefill.
  Duration cost_of(const Batch& batch) const {
    Duration cost = std::chrono::milliseconds(2);
    for (const BatchItem& item : batch.items) {
      const auto& running = core_->scheduler().running();
      const auto sequence =
          std::ranges::find(running, item.slot, [](const auto& s) { return s->slot; });
      CHECK(sequence != running.end());
      cost += (*sequence)->is_decoding()
                  ? std::chrono::milliseconds(3)
                  : token_cost_ * static_cast<int64_t>(item.token_ids.size());
    }
    return cost;
  }

  void checked_step() {
    const Standings before = standings_of(core_->scheduler());
    const int64_t steps_before = core_->stats().steps_total;
    core_->step();
    const Scheduler& scheduler = core_->scheduler();
    scheduler.check_invariants();
    EXPECT_EQ(scheduler.kv().tree().num_pinned_snapshots(), 0);
    EXPECT_LE(core_->stats().tier_bytes, tier_bytes_);
    const Standings after = standings_of(scheduler);
    for (const auto& [id, standing] : after) saw_follower_ |= standing.is_following;
    const bool has_computed = core_->stats().steps_total > steps_before && !fail_next_step_;
    if (has_computed) check_oldest_advances(before, after);
    check_nobody_is_overtaken(before, after);
  }

  // New tokens, often after the beginning of an earlier request or of its answer.
  std::vector<int32_t> make_prompt() {
    const auto length = static_cast<size_t>(random_.between(1, max_context_ - 1));
    std::vector<int32_t> prompt;
    if (num_added_ > 0 && !random_.one_in(3)) {
      const std::string id = std::to_string(random_.between(0, num_added_ - 1));
      prompt = requests_.at(id).prompt_ids;
      const auto& answer = received_.at(id).token_ids;
      prompt.insert(prompt.end(), answer.begin(), answer.end());
      prompt.resize(
          std::min(prompt.size(), static_cast<size_t>(random_.between(0, max_context_ - 1))));
    }
    while (prompt.size() < length) prompt.push_back(random_.between(0, kVocab - 1));
    return prompt;
  }

  // One, or several that begin alike.
  void add_requests() {
    Request request;
    request.prompt_ids = make_prompt();
    request.priority = random_.one_in(3) ? random_.between(-1, 1) : 0;
    request.owner = std::string("ab").substr(0, static_cast<size_t>(random_.between(0, 2)));
    request.cache_salt = random_.one_in(6) ? "salt" : "";
    const int32_t count = random_.one_in(3) ? random_.between(2, 6) : 1;
    for (int32_t i = 0; i < count; ++i) {
      add(request);
      if (random_.one_in(3)) request.prompt_ids.back() = random_.between(0, kVocab - 1);
      if (random_.one_in(8)) request.priority = random_.between(-1, 1);
    }
  }

  void add(Request request) {
    request.id = std::to_string(num_added_++);
    if (random_.one_in(10))
      request.queue_timeout = std::chrono::milliseconds(random_.between(1, 999));
    const auto num_prompt = static_cast<int32_t>(request.prompt_ids.size());
    SamplingParams& sampling = request.sampling;
    sampling.max_tokens = random_.between(1, max_context_ - num_prompt);
    sampling.seed = random_.bits();
    sampling.temperature = random_.one_in(3) ? 0.0F : 1.0F;
    sampling.top_k = random_.between(0, 8);
    sampling.top_p = random_.one_in(2) ? 1.0F : 0.9F;
    sampling.min_p = random_.one_in(4) ? 0.1F : 0.0F;
    if (has_penalties_) {
      sampling.repetition_penalty = random_.one_in(2) ? 1.0F : 1.2F;
      sampling.presence_penalty = random_.one_in(2) ? 0.0F : 0.5F;
    }
    if (random_.one_in(6)) sampling.prompt_logprobs = random_.between(0, 2);
    sampling.logprobs = has_penalties_ && random_.one_in(4);
    ASSERT_TRUE(validate_request(request, limits_).ok());
    Received& received = received_[request.id];
    requests_[request.id] = request;
    core_->add(request, received.sink(), clock_.now());
  }

  void cancel_one() {
    if (num_added_ > 0) core_->cancel(std::to_string(random_.between(0, num_added_ - 1)));
  }

  void check_nothing_is_left() {
    EXPECT_EQ(runner_->num_queued_steps(), 0);
    const EngineStats stats = core_->stats();
    EXPECT_EQ(stats.num_pages_used, stats.num_pages_cached);
    if (random_.one_in(2)) core_->close();
    EXPECT_LE(core_->stats().tier_bytes, tier_bytes_);
    core_->flush_cache();
    EXPECT_EQ(core_->stats().tier_bytes, 0);
    EXPECT_EQ(core_->stats().num_pages_used, 0);
    EXPECT_EQ(core_->stats().num_snapshots_used, 0);
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
    if (finish.reason == FinishReason::kError && finish.error.reason == "queue_timeout") {
      EXPECT_EQ(num_tokens, 0U);
      EXPECT_GE(finish.queue_seconds, to_seconds(request.queue_timeout));
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

  Random random_;
  testing::LogitsFn logits_;
  testing::FakeClock clock_;
  std::unique_ptr<testing::FakeTokenizer> tokenizer_;
  std::unique_ptr<EngineCore> core_;
  FakeModelRunner* runner_ = nullptr;  // the core's
  RequestLimits limits_;
  Duration token_cost_;
  int64_t tier_bytes_ = 0;  // that the tiers may hold
  int32_t max_context_ = 0;
  int32_t num_added_ = 0;
  bool fail_next_step_ = false;
  bool has_penalties_ = false;
  bool saw_follower_ = false;
  std::map<std::string, Request> requests_;
  std::map<std::string, Received> received_;
};

void run_seeds(uint32_t num_seeds) {
  EngineStats sums;
  int32_t num_with_followers = 0;
  int32_t num_ahead = 0;
  for (uint32_t seed = 0; seed < num_seeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Simulation simulation(seed);
    simulation.run();
    const EngineStats stats = simulation.stats();
    sums.preemptions_total += stats.preemptions_total;
    sums.prefix_hit_tokens_total += stats.prefix_hit_tokens_total;
    sums.pages_evicted_total += stats.pages_evicted_total;
    sums.snapshots_evicted_total += stats.snapshots_evicted_total;
    sums.tier_hit_pages_total += stats.tier_hit_pages_total;
    num_ahead += simulation.num_ahead();
    num_with_followers += simulation.saw_follower() ? 1 : 0;
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(sums.preemptions_total, 0) << "the pools are too large to test preemption";
  EXPECT_GT(sums.prefix_hit_tokens_total, 0) << "no prefix was reused";
  EXPECT_GT(sums.pages_evicted_total, 0) << "nothing was evicted";
  EXPECT_GT(sums.snapshots_evicted_total, 0) << "no snapshot was displaced";
  EXPECT_GT(sums.tier_hit_pages_total, 0) << "nothing came back from the tiers";
  EXPECT_GT(num_ahead, 0) << "no step was queued before the last one ended";
  EXPECT_GT(num_with_followers, 0) << "nobody waited for a prefix";
}

TEST(EngineSimulation, EachRequestEndsOnceWithTheTokensThatItGivesAlone) { run_seeds(300); }

// `make check-all` runs it with --gtest_also_run_disabled_tests.
TEST(EngineSimulation, DISABLED_TenThousandSeeds) { run_seeds(10'000); }

}  // namespace
}  // namespace nibble::engine
