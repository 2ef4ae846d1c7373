// The prefix cache through the engine core: what traces of chats and agents reuse, and what must
// not be shared.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/engine_core.h"
#include "engine/engine_testing.h"

namespace nibble::engine {
namespace {

constexpr int32_t kVocab = 64;
constexpr int32_t kPageSize = 16;
constexpr int32_t kSnapshotPages = 3;  // about the ratio of V4-Flash in BF16
using Tokens = std::vector<int32_t>;

class PrefixCacheTest : public ::testing::Test {
 protected:
  void make_core(int32_t num_pages,
                 int32_t num_snapshots,
                 std::unique_ptr<KvTier> tier = nullptr,
                 SipKey key = {}) {
    std::vector<std::string> tokens(kVocab, "x");
    tokenizer_ = std::make_unique<testing::FakeTokenizer>(tokens);
    auto runner = std::make_unique<testing::FakeModelRunner>(
        testing::FakeModelOptions{.vocab_size = kVocab,
                                  .page_size = kPageSize,
                                  .num_slots = 8,
                                  .num_pages = num_pages,
                                  .num_snapshots = num_snapshots,
                                  .snapshot_pages = kSnapshotPages,
                                  .max_tokens_per_step = 128,
                                  .logits = testing::hashed_logits(kVocab)});
    EngineConfig config;
    config.max_running_requests = 8;
    config.prefill_chunk_tokens = 100;
    auto options = EngineCore::resolve(config, *runner, 1);
    ASSERT_TRUE(options.ok());
    options->scheduling.kv.key = key;
    core_ = std::make_unique<EngineCore>(
        *options, std::move(runner), *tokenizer_, clock_, std::move(tier));
  }

  Request request(Tokens prompt, int32_t max_tokens) {
    Request request{.id = std::to_string(num_requests_++), .prompt_ids = std::move(prompt)};
    request.sampling.max_tokens = max_tokens;
    request.sampling.seed = 1;
    return request;
  }

  testing::Received run(Request request) {
    testing::Received received;
    core_->add(std::move(request), received.sink(), clock_.now());
    finish_all();
    return received;
  }

  void finish_all() {
    while (!core_->is_idle()) step();
  }
  void step() {
    core_->step();
    clock_.advance(std::chrono::milliseconds(1));
    core_->scheduler().check_invariants();
  }

  // Their results in order of the requests, which arrive together; `on_step` runs after each step.
  std::vector<testing::Received> run_together(const std::vector<Request>& requests,
                                              const std::function<void(int32_t)>& on_step = {}) {
    std::vector<testing::Received> received(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      core_->add(requests[i], received[i].sink(), clock_.now());
    }
    for (int32_t i = 0; !core_->is_idle(); ++i) {
      step();
      if (on_step) on_step(i);
    }
    return received;
  }

  int32_t cached(Request request) {
    return run(std::move(request)).finishes.at(0).usage.cached_tokens;
  }

  Tokens random_tokens(int32_t count) {
    Tokens tokens;
    for (int32_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(random_() % kVocab));
    return tokens;
  }
  int32_t between(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random_);
  }

  std::mt19937 random_{5};
  testing::FakeClock clock_;
  std::unique_ptr<testing::FakeTokenizer> tokenizer_;
  std::unique_ptr<EngineCore> core_;
  int32_t num_requests_ = 0;
};

void append(Tokens& tokens, const Tokens& more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
}

TEST_F(PrefixCacheTest, TheSamePromptIsComputedOnce) {
  make_core(64, 16);
  const Tokens prompt = random_tokens(5 * kPageSize + 3);
  const testing::Received cold = run(request(prompt, 8));
  const testing::Received warm = run(request(prompt, 8));
  EXPECT_EQ(cold.finishes[0].usage.cached_tokens, 0);
  EXPECT_EQ(warm.finishes[0].usage.cached_tokens, 5 * kPageSize);
  EXPECT_EQ(warm.token_ids, cold.token_ids);
  const EngineStats stats = core_->stats();
  EXPECT_EQ(stats.prefix_hit_tokens_total, 5 * kPageSize);
  EXPECT_EQ(stats.prefix_query_tokens_total, 2 * (5 * kPageSize + 3));
}

TEST_F(PrefixCacheTest, TheLastTokenIsAlwaysComputed) {
  make_core(64, 16);
  const Tokens prompt = random_tokens(4 * kPageSize);
  run(request(prompt, 1));
  EXPECT_EQ(cached(request(prompt, 1)), 3 * kPageSize);
}

TEST_F(PrefixCacheTest, OwnersAndSaltsDoNotShare) {
  make_core(64, 16);
  const Tokens prompt = random_tokens(4 * kPageSize + 1);
  Request first = request(prompt, 1);
  first.owner = "one";
  run(std::move(first));
  Request other = request(prompt, 1);
  other.owner = "two";
  EXPECT_EQ(cached(std::move(other)), 0);
  Request salted = request(prompt, 1);
  salted.owner = "one";
  salted.cache_salt = "s";
  EXPECT_EQ(cached(std::move(salted)), 0);
  Request same = request(prompt, 1);
  same.owner = "one";
  EXPECT_EQ(cached(std::move(same)), 4 * kPageSize);
}

TEST_F(PrefixCacheTest, WhereTwoPromptsPartTheThirdResumes) {
  make_core(64, 16);
  // 5 pages in common: no multiple of the interval, and no end of a prompt.
  const Tokens common = random_tokens(5 * kPageSize);
  const auto prompt = [&] {
    Tokens tokens = common;
    append(tokens, random_tokens(4 * kPageSize));
    return tokens;
  };
  EXPECT_EQ(cached(request(prompt(), 1)), 0);
  EXPECT_EQ(cached(request(prompt(), 1)), 3 * kPageSize);
  EXPECT_EQ(cached(request(prompt(), 1)), 5 * kPageSize);
}

TEST_F(PrefixCacheTest, EightOfOnePromptAtOnceComputeItsPagesOnce) {
  make_core(1200, 64);
  const Tokens prompt = random_tokens(2000);  // 124 pages that can be shared, and 16 tokens
  const Tokens alone = run(request(prompt, 5)).token_ids;
  core_->flush_cache();
  const int64_t before = core_->stats().prompt_tokens_total;
  std::vector<Request> requests;
  for (int32_t i = 0; i < 8; ++i) requests.push_back(request(prompt, 5));
  const auto received = run_together(requests);
  EXPECT_EQ(core_->stats().prompt_tokens_total - before, 2000 + 7 * kPageSize);
  for (size_t i = 0; i < received.size(); ++i) {
    EXPECT_EQ(received[i].token_ids, alone);
    EXPECT_EQ(received[i].finishes.at(0).usage.cached_tokens, i == 0 ? 0 : 124 * kPageSize);
  }
}

// Five pages in common are no multiple of the snapshot interval: the first one leaves a snapshot
// there because the others wait for it.
TEST_F(PrefixCacheTest, AgentsThatArriveTogetherShareTheirBeginning) {
  make_core(200, 32);
  const Tokens common = random_tokens(5 * kPageSize + 7);
  std::vector<Request> requests;
  for (int32_t i = 0; i < 6; ++i) {
    Tokens prompt = common;
    append(prompt, random_tokens(50));
    requests.push_back(request(prompt, 3));
  }
  const auto received = run_together(requests);
  for (size_t i = 1; i < received.size(); ++i) {
    EXPECT_EQ(received[i].finishes.at(0).usage.cached_tokens, 5 * kPageSize) << i;
  }
}

TEST_F(PrefixCacheTest, WhenTheFirstOfThemIsCancelledTheNextGoesOn) {
  make_core(200, 32);
  const Tokens prompt = random_tokens(30 * kPageSize);
  const Tokens alone = run(request(prompt, 4)).token_ids;
  core_->flush_cache();
  const int64_t before = core_->stats().prompt_tokens_total;
  std::vector<Request> requests;
  for (int32_t i = 0; i < 3; ++i) requests.push_back(request(prompt, 4));
  const auto received = run_together(requests, [&](int32_t i) {
    if (i == 2) core_->cancel(requests[0].id);
  });
  EXPECT_EQ(received[0].finishes.at(0).reason, FinishReason::kCancelled);
  EXPECT_EQ(received[1].token_ids, alone);
  EXPECT_EQ(received[2].token_ids, alone);
  // Nothing but what followed the last snapshot of the first is computed twice.
  const int64_t shared = 30 * kPageSize + kPageSize;
  EXPECT_LE(core_->stats().prompt_tokens_total - before, shared + kSnapshotPages * kPageSize);
}

TEST_F(PrefixCacheTest, WhenTheFirstOfThemIsPreemptedBothGoOn) {
  make_core(48, 16);
  const Tokens prompt = random_tokens(24 * kPageSize);
  const Tokens alone = run(request(prompt, 4)).token_ids;
  core_->flush_cache();
  const int64_t before = core_->stats().prompt_tokens_total;
  std::vector<Request> requests = {request(random_tokens(3), 200),  // the oldest is never preempted
                                   request(prompt, 4),
                                   request(prompt, 4)};
  Request important = request(random_tokens(24 * kPageSize), 4);
  important.priority = 1;
  testing::Received fourth;
  const auto received = run_together(requests, [&](int32_t i) {
    if (i == 2) core_->add(important, fourth.sink(), clock_.now());
  });
  EXPECT_EQ(received[1].finishes.at(0).num_preemptions, 1);
  EXPECT_EQ(received[2].finishes.at(0).num_preemptions, 0);
  EXPECT_EQ(received[1].token_ids, alone);
  EXPECT_EQ(received[2].token_ids, alone);
  const int64_t once = 3 + 24 * kPageSize + 24 * kPageSize + kPageSize;
  EXPECT_LE(core_->stats().prompt_tokens_total - before, once + kSnapshotPages * kPageSize);
}

TEST_F(PrefixCacheTest, NobodyWaitsForAPrefixOfLessPriority) {
  make_core(200, 32);
  const Tokens prompt = random_tokens(30 * kPageSize);
  std::vector<Request> requests = {request(prompt, 4), request(prompt, 4)};
  requests[0].priority = -1;
  testing::Received low;
  testing::Received high;
  core_->add(requests[0], low.sink(), clock_.now());
  step();
  core_->add(requests[1], high.sink(), clock_.now());
  step();
  EXPECT_EQ(core_->scheduler().num_running(), 2);
  finish_all();
  EXPECT_EQ(high.token_ids, low.token_ids);
}

// Slots and pages for those that wait are kept; who comes after them does not take them.
TEST_F(PrefixCacheTest, WhoWaitsForAPrefixKeepsItsPlace) {
  make_core(100, 32);
  const Tokens prompt = random_tokens(20 * kPageSize);
  std::vector<testing::Received> received(10);
  for (size_t i = 0; i < 8; ++i) {
    core_->add(request(prompt, 40), received[i].sink(), clock_.now());
  }
  for (size_t i = 8; i < 10; ++i) {
    core_->add(request(random_tokens(20), 200), received[i].sink(), clock_.now());
  }
  step();
  EXPECT_EQ(core_->scheduler().num_running(), 1);
  finish_all();
  for (size_t i = 1; i < 8; ++i) {
    EXPECT_LT(received[i].finishes.at(0).queue_seconds, received[8].finishes.at(0).queue_seconds);
  }
}

TEST_F(PrefixCacheTest, OthersRunWhileSomeWaitForAPrefix) {
  make_core(100, 32);
  const Tokens prompt = random_tokens(20 * kPageSize);
  std::vector<testing::Received> received(3);
  core_->add(request(prompt, 4), received[0].sink(), clock_.now());
  core_->add(request(prompt, 4), received[1].sink(), clock_.now());
  core_->add(request(random_tokens(20), 4), received[2].sink(), clock_.now());
  step();
  EXPECT_EQ(core_->scheduler().num_running(), 2);
  EXPECT_EQ(core_->scheduler().num_waiting(), 1);
  finish_all();
}

TEST_F(PrefixCacheTest, PromptLogprobsComputeEverything) {
  make_core(64, 16);
  const Tokens prompt = random_tokens(4 * kPageSize + 1);
  run(request(prompt, 1));
  Request scored = request(prompt, 1);
  scored.sampling.prompt_logprobs = 0;
  const testing::Received got = run(std::move(scored));
  EXPECT_EQ(got.finishes[0].usage.cached_tokens, 0);
  EXPECT_EQ(got.prompt_logprobs.size(), prompt.size() - 1);
}

TEST_F(PrefixCacheTest, FlushingForgets) {
  make_core(64, 16);
  const Tokens prompt = random_tokens(4 * kPageSize + 1);
  run(request(prompt, 1));
  EXPECT_GT(core_->stats().num_pages_cached, 0);
  core_->flush_cache();
  EXPECT_EQ(core_->stats().num_pages_cached, 0);
  EXPECT_EQ(cached(request(prompt, 1)), 0);
}

TEST_F(PrefixCacheTest, EvictedPrefixesComeBackFromHostMemory) {
  make_core(12, 8, make_memory_tier(1 << 20, nullptr));
  std::vector<Tokens> prompts;
  std::vector<Tokens> cold;
  for (int32_t i = 0; i < 6; ++i) {
    prompts.push_back(random_tokens(6 * kPageSize + 2));
    cold.push_back(run(request(prompts.back(), 20)).token_ids);
  }
  EXPECT_GT(core_->stats().pages_evicted_total, 0);
  EXPECT_GT(core_->stats().tier_bytes, 0);
  for (size_t i = 0; i < prompts.size(); ++i) {
    const testing::Received warm = run(request(prompts[i], 20));
    EXPECT_EQ(warm.finishes[0].usage.cached_tokens, 6 * kPageSize) << i;
    EXPECT_EQ(warm.token_ids, cold[i]) << i;
  }
  EXPECT_GE(core_->stats().tier_hit_pages_total, 5 * 6);
  core_->flush_cache();
  EXPECT_EQ(core_->stats().tier_bytes, 0);
  EXPECT_EQ(cached(request(prompts[0], 1)), 0);
}

// Pages enough for everything, snapshots for one prompt.
TEST_F(PrefixCacheTest, DisplacedSnapshotsComeBackFromHostMemory) {
  make_core(300, 3, make_memory_tier(1 << 20, nullptr));
  std::vector<Tokens> prompts;
  std::vector<Tokens> cold;
  for (int32_t i = 0; i < 6; ++i) {
    prompts.push_back(random_tokens(7 * kPageSize + 2));
    cold.push_back(run(request(prompts.back(), 20)).token_ids);
  }
  EXPECT_EQ(core_->stats().pages_evicted_total, 0);
  EXPECT_GT(core_->stats().snapshots_evicted_total, 0);
  for (int32_t round = 0; round < 2; ++round) {
    for (size_t i = 0; i < prompts.size(); ++i) {
      const testing::Received warm = run(request(prompts[i], 20));
      EXPECT_EQ(warm.finishes[0].usage.cached_tokens, 7 * kPageSize) << i;
      EXPECT_EQ(warm.token_ids, cold[i]) << i;
    }
  }
}

// The page goes after its snapshot did; what the tier has of both is one prefix.
TEST_F(PrefixCacheTest, PagesFollowTheirSnapshotsIntoTheTier) {
  make_core(12, 2, make_memory_tier(1 << 20, nullptr));
  const Tokens prompt = random_tokens(6 * kPageSize + 2);
  const Tokens cold = run(request(prompt, 1)).token_ids;
  for (int32_t i = 0; i < 4; ++i) run(request(random_tokens(5 * kPageSize + 2), 1));
  EXPECT_GT(core_->stats().pages_evicted_total, 0);
  const testing::Received warm = run(request(prompt, 1));
  EXPECT_EQ(warm.finishes[0].usage.cached_tokens, 6 * kPageSize);
  EXPECT_EQ(warm.token_ids, cold);
}

TEST_F(PrefixCacheTest, PrefixesOnDiskSurviveARestart) {
  const Path dir = std::filesystem::temp_directory_path() /
                   ("nibble_prefix_cache_" + std::to_string(::getpid()));
  std::filesystem::remove_all(dir);
  const auto start = [&] {
    core_.reset();
    const SipKey key = disk_tier_key(dir).value();
    make_core(64, 8, make_disk_tier({.dir = dir, .max_bytes = 1 << 20}).value(), key);
  };
  const Tokens prompt = random_tokens(6 * kPageSize + 2);
  start();
  const testing::Received cold = run(request(prompt, 20));
  core_->close();
  start();
  const testing::Received warm = run(request(prompt, 20));
  EXPECT_EQ(warm.finishes[0].usage.cached_tokens, 6 * kPageSize);
  EXPECT_EQ(warm.token_ids, cold.token_ids);
  core_.reset();
  std::filesystem::remove_all(dir);
}

// Conversations and agents take turns. A prompt repeats the conversation so far; now and then the
// client changes something in the middle, and goes on from there; or several agents go on from one
// past at the same time. Reusable is the longest common prefix with anything computed before, or
// asked for before among those that arrive together, in whole pages, less the last token.
class PrefixCacheTraces : public PrefixCacheTest {
 protected:
  struct Trace {
    int32_t num_conversations = 8;
    int32_t num_turns = 120;
    int32_t max_message = 60;  // tokens
    int32_t edit_one_in = 6;   // turns; 0: never
    int32_t fork_one_in = 0;   // turns; 0: never
  };

  double share_of_reusable(const Trace& trace) {
    const Tokens system_prompt = random_tokens(6 * kPageSize + 5);
    std::vector<Tokens> conversations(static_cast<size_t>(trace.num_conversations), system_prompt);
    std::vector<Tokens> computed;
    int64_t num_reusable = 0;
    int64_t num_cached = 0;
    for (int32_t turn = 0; turn < trace.num_turns; ++turn) {
      Tokens& text = conversations[static_cast<size_t>(between(0, trace.num_conversations - 1))];
      if (text.size() > 1200) text = system_prompt;
      if (happens(trace.edit_one_in)) edit(text, system_prompt);
      std::vector<Request> requests;
      const int32_t num_agents = happens(trace.fork_one_in) ? between(2, 6) : 1;
      for (int32_t i = 0; i < num_agents; ++i) {
        Tokens prompt = text;
        append(prompt, random_tokens(between(1, trace.max_message)));
        num_reusable += reusable(prompt, computed);
        requests.push_back(request(prompt, between(1, 40)));
        computed.push_back(prompt);
      }
      const auto received = run_together(requests);
      for (size_t i = 0; i < requests.size(); ++i) {
        num_cached += received[i].finishes.at(0).usage.cached_tokens;
        Tokens& whole = computed[computed.size() - requests.size() + i];
        append(whole, received[i].token_ids);
        text = whole;      // the last one's: the conversation goes on there
        whole.pop_back();  // the last token was sampled, not computed
      }
    }
    EXPECT_GT(num_reusable, 0);
    return static_cast<double>(num_cached) / static_cast<double>(num_reusable);
  }

 private:
  bool happens(int32_t one_in) { return one_in > 0 && between(1, one_in) == 1; }

  // Replaces what follows a random place after the system prompt by something shorter.
  void edit(Tokens& text, const Tokens& system_prompt) {
    const auto low = static_cast<int32_t>(system_prompt.size());
    const auto high = static_cast<int32_t>(text.size());
    text.resize(static_cast<size_t>(between(low + (high - low) / 2, high)));
  }

  static int32_t reusable(const Tokens& prompt, const std::vector<Tokens>& computed) {
    std::ptrdiff_t longest = 0;
    for (const Tokens& other : computed) {
      const auto end = std::ranges::mismatch(prompt, other).in1;
      longest = std::max(longest, end - prompt.begin());
    }
    const auto limit = static_cast<std::ptrdiff_t>(prompt.size()) - 1;
    return static_cast<int32_t>(std::min(longest, limit)) / kPageSize * kPageSize;
  }
};

// Pools: 640 pages, about 10,000 tokens, and 160 snapshots.
TEST_F(PrefixCacheTraces, ChatsReuseAtLeast95Percent) {
  make_core(640, 160);
  EXPECT_GE(share_of_reusable({.edit_one_in = 0}), 0.95);
}

TEST_F(PrefixCacheTraces, AgentsThatChangeTheirPastReuseAtLeast95Percent) {
  make_core(640, 160);
  EXPECT_GE(share_of_reusable({.max_message = 150}), 0.95);
}

TEST_F(PrefixCacheTraces, AgentsThatForkReuseAtLeast95Percent) {
  make_core(640, 160);
  EXPECT_GE(share_of_reusable({.max_message = 150, .edit_one_in = 6, .fork_one_in = 3}), 0.95);
}

// A tenth of the snapshots, and host memory for the others: 4 MB, entries of 4 bytes a token.
TEST_F(PrefixCacheTraces, FewSnapshotsAndHostMemoryReuseAtLeast95Percent) {
  const Trace trace{.max_message = 150, .edit_one_in = 6, .fork_one_in = 3};
  make_core(640, 16);
  EXPECT_LT(share_of_reusable(trace), 0.9);
  make_core(640, 16, make_memory_tier(4 << 20, nullptr));
  EXPECT_GE(share_of_reusable(trace), 0.95);
  EXPECT_GT(core_->stats().tier_hit_pages_total, 0);
}

TEST_F(PrefixCacheTraces, FewPagesAndHostMemoryReuseAtLeast95Percent) {
  make_core(600, 16, make_memory_tier(8 << 20, nullptr));
  EXPECT_GE(share_of_reusable({.num_conversations = 24,
                               .num_turns = 240,
                               .max_message = 150,
                               .edit_one_in = 6,
                               .fork_one_in = 3}),
            0.95);
  EXPECT_GT(core_->stats().pages_evicted_total, 0);
}

TEST_F(PrefixCacheTraces, ManyChatsInASmallPoolStillShareTheSystemPrompt) {
  make_core(100, 12);
  EXPECT_GE(share_of_reusable({.num_conversations = 40, .edit_one_in = 0}), 0.4);
}

}  // namespace
}  // namespace nibble::engine
