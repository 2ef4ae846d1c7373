// With deterministic kernels nothing but its own tokens decides what a request gives: not the
// neighbours, the chunks, a preemption, or whether its prefix was cached.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/file.h"
#include "engine/engine_core.h"
#include "engine/engine_testing.h"
#include "engine/model_runner.h"
#include "golden/golden_testing.h"
#include "text/tokenizer.h"

namespace nibble::engine {
namespace {

constexpr int32_t kNumRequests = 64;
constexpr int32_t kMaxContext = 512;
using Outputs = std::map<std::string, std::vector<int32_t>>;

struct Memory {
  int32_t num_slots = 1;
  int32_t num_pages = kMaxContext / 256;
  int32_t num_snapshots = 0;
  int32_t chunk = 512;
  int64_t host_bytes = 0;  // of a tier beyond the pool
  models::KvDtype kv_dtype = models::KvDtype::kAuto;
};

// The bundled model without its last two layers, which are of the same kinds as the two before:
// every kind of state at less cost.
class ShallowModel final {
 public:
  ShallowModel()
      : dir_(std::filesystem::temp_directory_path() /
             ("nibble_shallow_model_" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directory(dir_);
    for (const auto& file : std::filesystem::directory_iterator(golden::tiny_v4_dir())) {
      std::filesystem::create_symlink(file.path(), dir_ / file.path().filename());
    }
    std::string config = read_file(golden::tiny_v4_dir() / "config.json", 1 << 20).value();
    replace(config, "\"num_hidden_layers\": 6", "\"num_hidden_layers\": 4");
    replace(config, "    4,\n    128,\n    4,\n    128,\n", "    4,\n    128,\n");
    std::filesystem::remove(dir_ / "config.json");
    std::ofstream(dir_ / "config.json") << config;
  }
  ShallowModel(const ShallowModel&) = delete;
  ShallowModel& operator=(const ShallowModel&) = delete;
  ~ShallowModel() { std::filesystem::remove_all(dir_); }

  const Path& dir() const { return dir_; }

 private:
  static void replace(std::string& text, const std::string& from, const std::string& to) {
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
  }

  Path dir_;
};

// Some prompts begin alike, beyond a page; some end shortly before a page does, so that generation
// needs another; most are short.
std::vector<Request> make_requests(int32_t vocab_size) {
  std::mt19937 random(20);
  const auto between = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random);
  };
  const auto append = [&](std::vector<int32_t>& ids, int32_t count) {
    for (int32_t i = 0; i < count; ++i) ids.push_back(between(2, vocab_size - 1));
  };
  std::vector<int32_t> common;
  append(common, 300);
  std::vector<Request> requests;
  for (int32_t i = 0; i < kNumRequests; ++i) {
    Request request{.id = std::to_string(i)};
    if (i >= 16 && i < 20) {
      append(request.prompt_ids, between(252, 256));
    } else if (i % 12 == 0) {
      request.prompt_ids.assign(common.begin(), common.begin() + between(257, 300));
      append(request.prompt_ids, between(1, 60));
    } else {
      append(request.prompt_ids, between(1, 40));
    }
    request.sampling.temperature = 0;
    request.sampling.ignore_eos = true;
    request.sampling.max_tokens = request.prompt_ids.size() > 250 ? 8 : between(1, 8);
    requests.push_back(std::move(request));
  }
  return requests;
}

class Deterministic : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    tokenizer_ = text::load_tokenizer(golden::tiny_v4_dir()).value();
    shallow_model_ = std::make_unique<ShallowModel>();
  }
  static void TearDownTestSuite() { shallow_model_.reset(); }

  std::unique_ptr<EngineCore> make_core(const Memory& memory) {
    device_ = device::make_host_device({.num_threads = 2}).value();
    const auto checkpoint = checkpoint::Checkpoint::open(shallow_model_->dir());
    models::LoadOptions load;
    load.load_mtp = false;
    load.kv_dtype = memory.kv_dtype;
    load.routing.deterministic = true;
    auto model = models::load_model(*checkpoint, *device_, load);
    EXPECT_TRUE(model.ok());
    auto runner =
        make_model_runner(std::move(*model),
                          {.num_slots = memory.num_slots,
                           .num_pages = memory.num_pages,
                           .max_context = kMaxContext,
                           .max_tokens_per_pass = std::max(memory.chunk, memory.num_slots) + 8},
                          comm::make_local_communicator(),
                          memory.num_snapshots);
    EXPECT_TRUE(runner.ok());
    EngineConfig config;
    config.max_context = kMaxContext;
    config.max_running_requests = memory.num_slots;
    config.prefill_chunk_tokens = memory.chunk;
    const auto options = EngineCore::resolve(config, **runner, 1);
    EXPECT_TRUE(options.ok());
    auto tier = memory.host_bytes > 0 ? make_memory_tier(memory.host_bytes, nullptr) : nullptr;
    return std::make_unique<EngineCore>(
        *options, std::move(*runner), *tokenizer_, clock_, std::move(tier));
  }

  static const Outputs& one_at_a_time(models::KvDtype kv_dtype = models::KvDtype::kAuto) {
    static std::map<models::KvDtype, Outputs> known;
    if (const auto found = known.find(kv_dtype); found != known.end()) return found->second;
    Deterministic test;
    auto core = test.make_core({.kv_dtype = kv_dtype});
    for (const Request& request : make_requests(tokenizer_->vocab_size())) {
      testing::Received received;
      core->add(request, received.sink(), test.clock_.now());
      while (!core->is_idle()) core->step();
      known[kv_dtype][request.id] = received.token_ids;
    }
    return known[kv_dtype];
  }

  // All requests at once; some are withdrawn on the way, and give a beginning then.
  void expect_same_outputs(EngineCore& core,
                           uint32_t seed,
                           models::KvDtype kv_dtype = models::KvDtype::kAuto) {
    std::mt19937 random(seed);
    std::map<std::string, testing::Received> received;
    for (const Request& request : make_requests(tokenizer_->vocab_size())) {
      core.add(request, received[request.id].sink(), clock_.now());
    }
    while (!core.is_idle()) {
      if (random() % 40 == 0) core.cancel(std::to_string(random() % kNumRequests));
      core.step();
      core.scheduler().check_invariants();
    }
    for (const auto& [id, got] : received) {
      ASSERT_EQ(got.finishes.size(), 1U);
      std::vector<int32_t> expected = one_at_a_time(kv_dtype).at(id);
      if (got.finishes[0].reason == FinishReason::kCancelled) {
        expected.resize(std::min(expected.size(), got.token_ids.size()));
      }
      EXPECT_EQ(got.token_ids, expected) << "request " << id << ", seed " << seed;
    }
  }

  void TestBody() override {}

  static inline std::unique_ptr<text::Tokenizer> tokenizer_;
  static inline std::unique_ptr<ShallowModel> shallow_model_;
  std::unique_ptr<device::Device> device_;
  testing::FakeClock clock_;
};

TEST_F(Deterministic, ManyAtOnceGiveWhatEachGivesAlone) {
  auto core = make_core({.num_slots = 64, .num_pages = 192, .chunk = 512});
  expect_same_outputs(*core, 1);
}

TEST_F(Deterministic, ChunksOfOneToken) {
  auto core = make_core({.num_slots = 64, .num_pages = 192, .num_snapshots = 8, .chunk = 1});
  expect_same_outputs(*core, 2);
}

TEST_F(Deterministic, ATinyPoolPreempts) {
  auto core = make_core({.num_slots = 16, .num_pages = 3, .chunk = 61});
  expect_same_outputs(*core, 3);
  EXPECT_GT(core->stats().preemptions_total, 0);
}

TEST_F(Deterministic, AWarmPrefixCacheGivesTheSameBits) {
  auto core = make_core({.num_slots = 8, .num_pages = 40, .num_snapshots = 12, .chunk = 200});
  expect_same_outputs(*core, 4);
  const int64_t hits = core->stats().prefix_hit_tokens_total;
  expect_same_outputs(*core, 5);
  EXPECT_GE(core->stats().prefix_hit_tokens_total - hits, 4 * 256);
}

// Three different ends of one beginning, which the first of the eight computes while the others
// wait; then the first is withdrawn on its way.
TEST_F(Deterministic, APrefixInFlightGivesTheSameBits) {
  std::vector<Request> requests;
  for (const Request& request : make_requests(tokenizer_->vocab_size())) {
    if (request.prompt_ids.size() > 256 && requests.size() < 3) requests.push_back(request);
  }
  const size_t num_different = requests.size();
  for (size_t i = num_different; i < 8; ++i) {
    requests.push_back(requests[i % num_different]);
    requests.back().id += "again";
  }
  for (const bool is_first_withdrawn : {false, true}) {
    auto core = make_core({.num_slots = 8, .num_pages = 24, .num_snapshots = 8, .chunk = 100});
    std::vector<testing::Received> received(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      core->add(requests[i], received[i].sink(), clock_.now());
    }
    core->step();
    EXPECT_EQ(core->scheduler().num_running(), 1);
    if (is_first_withdrawn) core->cancel(requests[0].id);
    while (!core->is_idle()) core->step();
    for (size_t i = is_first_withdrawn ? 1 : 0; i < requests.size(); ++i) {
      const bool is_first = i == (is_first_withdrawn ? 1U : 0U);
      EXPECT_EQ(received[i].token_ids, one_at_a_time().at(requests[i % num_different].id)) << i;
      EXPECT_EQ(received[i].finishes.at(0).usage.cached_tokens, is_first ? 0 : 256) << i;
    }
  }
}

TEST_F(Deterministic, PagesFromHostMemoryGiveTheSameBits) {
  auto core = make_core({.num_slots = 4,
                         .num_pages = 4,
                         .num_snapshots = 6,
                         .chunk = 300,
                         .host_bytes = 200'000'000});
  expect_same_outputs(*core, 8);
  expect_same_outputs(*core, 9);
  EXPECT_GT(core->stats().tier_hit_pages_total, 0);
}

TEST_F(Deterministic, ATinyPoolWithAPrefixCachePreemptsEvictsAndResumes) {
  auto core = make_core({.num_slots = 16, .num_pages = 3, .num_snapshots = 4, .chunk = 7});
  expect_same_outputs(*core, 6);
  expect_same_outputs(*core, 7);
  const EngineStats stats = core->stats();
  EXPECT_GT(stats.preemptions_total, 0);
  EXPECT_GT(stats.pages_evicted_total, 0);
  EXPECT_GT(stats.prefix_hit_tokens_total, 0);
}

// Keys are rounded when they are stored, so that every way to compute a sequence reads the same.
TEST_F(Deterministic, Fp8KeysManyAtOnce) {
  constexpr auto kFp8 = models::KvDtype::kFp8;
  auto core = make_core({.num_slots = 64, .num_pages = 192, .chunk = 512, .kv_dtype = kFp8});
  expect_same_outputs(*core, 10, kFp8);
  EXPECT_NE(one_at_a_time(kFp8), one_at_a_time());
}

TEST_F(Deterministic, Fp8KeysPreemptedEvictedResumedAndFromHostMemory) {
  constexpr auto kFp8 = models::KvDtype::kFp8;
  auto core = make_core({.num_slots = 16,
                         .num_pages = 3,
                         .num_snapshots = 4,
                         .chunk = 7,
                         .host_bytes = 200'000'000,
                         .kv_dtype = kFp8});
  expect_same_outputs(*core, 11, kFp8);
  expect_same_outputs(*core, 12, kFp8);
  const EngineStats stats = core->stats();
  EXPECT_GT(stats.preemptions_total, 0);
  EXPECT_GT(stats.pages_evicted_total, 0);
  EXPECT_GT(stats.prefix_hit_tokens_total, 0);
  EXPECT_GT(stats.tier_hit_pages_total, 0);
}

}  // namespace
}  // namespace nibble::engine
