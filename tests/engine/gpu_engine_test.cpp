// The engine over a model on the emulated GPU, whose decode steps are queued before the last one
// ends: nothing but a request's own tokens decides what it gives, and a run allocates nothing.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "device/emulated_gpu_testing.h"
#include "engine/engine_core.h"
#include "engine/engine_testing.h"
#include "engine/model_runner.h"
#include "golden/golden_testing.h"

namespace nibble::engine {
namespace {

constexpr int32_t kEos = 3;
constexpr int32_t kNumRequests = 8;
constexpr int32_t kMaxContext = 512;

// An emulated GPU that counts what is asked of its memory.
class CountingGpu final : public device::EmulatedGpuWrapper {
 public:
  CountingGpu() : EmulatedGpuWrapper(2) {}

  Result<device::Buffer> allocate(int64_t num_bytes) override {
    ++num_allocations;
    return EmulatedGpuWrapper::allocate(num_bytes);
  }
  Result<device::Buffer> allocate_host(int64_t num_bytes) override {
    ++num_allocations;
    return EmulatedGpuWrapper::allocate_host(num_bytes);
  }

  int64_t num_allocations = 0;
};

// A runner without a queue, and one that counts the steps that were queued behind others.
class WatchedRunner final : public ModelRunner {
 public:
  WatchedRunner(std::unique_ptr<ModelRunner> runner, bool has_queue)
      : runner_(std::move(runner)), has_queue_(has_queue) {}

  const models::ModelInfo& info() const override { return runner_->info(); }
  const std::vector<models::RoutedModule>& routed_modules() const override {
    return runner_->routed_modules();
  }
  int32_t num_slots() const override { return runner_->num_slots(); }
  int32_t num_pages() const override { return runner_->num_pages(); }
  int32_t num_snapshots() const override { return runner_->num_snapshots(); }
  int32_t max_tokens_per_step() const override { return runner_->max_tokens_per_step(); }
  int64_t memory_bytes() const override { return runner_->memory_bytes(); }
  void reset_slot(SlotId slot) override { runner_->reset_slot(slot); }
  Result<void> truncate(SlotId slot, int32_t length) override {
    return runner_->truncate(slot, length);
  }
  Result<void> save_slot(SlotId slot, cache::SnapshotId place) override {
    return runner_->save_slot(slot, place);
  }
  Result<void> restore_slot(SlotId slot, cache::SnapshotId place) override {
    return runner_->restore_slot(slot, place);
  }
  std::span<const std::byte> snapshot(cache::SnapshotId place) const override {
    return runner_->snapshot(place);
  }
  Result<void> set_snapshot(cache::SnapshotId place, std::span<const std::byte> bytes) override {
    return runner_->set_snapshot(place, bytes);
  }
  Result<void> save_page(PageId page, std::span<std::byte> out) override {
    return runner_->save_page(page, out);
  }
  Result<void> restore_page(PageId page, std::span<const std::byte> entries) override {
    return runner_->restore_page(page, entries);
  }
  Result<StepResult> step(const Batch& batch) override { return runner_->step(batch); }
  int32_t max_queued_steps() const override { return has_queue_ ? runner_->max_queued_steps() : 0; }
  int32_t max_queued_rows() const override { return runner_->max_queued_rows(); }
  Result<void> queue_decode(std::span<const DecodeItem> items) override {
    num_ahead += num_queued_++ > 0 ? 1 : 0;
    return runner_->queue_decode(items);
  }
  Result<std::span<const int32_t>> fetch_decoded() override {
    --num_queued_;
    return runner_->fetch_decoded();
  }

  int32_t num_ahead = 0;

 private:
  std::unique_ptr<ModelRunner> runner_;
  bool has_queue_;
  int32_t num_queued_ = 0;
};

struct Pool {
  bool has_queue = true;
  int32_t num_slots = 1;
  int32_t num_pages = kMaxContext / 256;
  int32_t num_snapshots = 0;
};
using Outputs = std::map<std::string, std::vector<int32_t>>;

// Some are greedy and some draw; two begin alike, beyond a page, and one ends a page.
std::vector<Request> make_requests(int32_t vocab_size) {
  std::mt19937 random(4);
  std::uniform_int_distribution<int32_t> token(4, vocab_size - 1);
  const auto append = [&](std::vector<int32_t>& ids, int32_t count) {
    for (int32_t i = 0; i < count; ++i) ids.push_back(token(random));
  };
  std::vector<int32_t> common;
  append(common, 257);
  std::vector<Request> requests;
  for (int32_t i = 0; i < kNumRequests; ++i) {
    Request request{.id = std::to_string(i)};
    if (i < 2) request.prompt_ids = common;
    append(request.prompt_ids, i == 2 ? 250 : 3 + i);
    request.sampling.temperature = i % 2 == 0 ? 0.0F : 0.8F;
    request.sampling.top_p = i % 3 == 0 ? 0.9F : 1.0F;
    request.sampling.seed = static_cast<uint64_t>(i);
    request.sampling.max_tokens = 8 + i;
    requests.push_back(std::move(request));
  }
  return requests;
}

class GpuEngine : public ::testing::Test {
 protected:
  void make_core(const Pool& pool) {
    core_.reset();
    const auto checkpoint = checkpoint::Checkpoint::open(golden::golden_dir("flash_like")).value();
    auto model = models::load_model(
        checkpoint,
        device_,
        {.load_mtp = false, .routing = {.deterministic = true, .allow_reference = true}});
    auto inner = make_model_runner(std::move(model).value(),
                                   {.num_slots = pool.num_slots,
                                    .num_pages = pool.num_pages,
                                    .max_context = kMaxContext,
                                    .max_tokens_per_pass = 64},
                                   comm::make_local_communicator(),
                                   pool.num_snapshots);
    auto runner = std::make_unique<WatchedRunner>(std::move(inner).value(), pool.has_queue);
    runner_ = runner.get();
    vocab_size_ = runner->info().vocab_size;
    const EngineConfig config{.max_running_requests = pool.num_slots,
                              .max_context = kMaxContext,
                              .prefill_chunk_tokens = 50,
                              .eos_token_ids = {kEos}};
    tokenizer_ = std::make_unique<testing::FakeTokenizer>(
        std::vector<std::string>(static_cast<size_t>(vocab_size_), "t"));
    auto options = EngineCore::resolve(config, *runner, 1).value();
    core_ =
        std::make_unique<EngineCore>(std::move(options), std::move(runner), *tokenizer_, clock_);
  }

  // Adds them all, withdraws some where asked to; what each gave, those withdrawn without their
  // rest.
  void run(std::map<std::string, testing::Received>& received, uint32_t cancel_seed) {
    std::mt19937 random(cancel_seed);
    for (const Request& request : make_requests(vocab_size_)) {
      core_->add(request, received[request.id].sink(), clock_.now());
    }
    while (!core_->is_idle()) {
      if (cancel_seed != 0 && random() % 12 == 0) {
        core_->cancel(std::to_string(random() % kNumRequests));
      }
      core_->step();
      core_->scheduler().check_invariants();
    }
  }

  // One at a time, and no step before the last one's tokens are known.
  Outputs one_at_a_time() {
    make_core({.has_queue = false});
    Outputs outputs;
    for (const Request& request : make_requests(vocab_size_)) {
      testing::Received received;
      core_->add(request, received.sink(), clock_.now());
      while (!core_->is_idle()) core_->step();
      outputs[request.id] = received.token_ids;
    }
    EXPECT_EQ(runner_->num_ahead, 0);
    return outputs;
  }

  void expect_outputs(uint32_t cancel_seed) {
    static const Outputs expected = GpuEngine::fresh_outputs();
    std::map<std::string, testing::Received> received;
    run(received, cancel_seed);
    for (const auto& [id, got] : received) {
      ASSERT_EQ(got.finishes.size(), 1U);
      std::vector<int32_t> tokens = expected.at(id);
      if (got.finishes[0].reason == FinishReason::kCancelled) {
        tokens.resize(std::min(tokens.size(), got.token_ids.size()));
      }
      EXPECT_EQ(got.token_ids, tokens) << "request " << id;
      EXPECT_EQ(got.finishes[0].usage.completion_tokens, got.token_ids.size());
    }
  }

  void TestBody() override {}

  CountingGpu device_;
  testing::FakeClock clock_;
  std::unique_ptr<testing::FakeTokenizer> tokenizer_;
  std::unique_ptr<EngineCore> core_;
  WatchedRunner* runner_ = nullptr;  // the core's
  int32_t vocab_size_ = 0;

 private:
  static Outputs fresh_outputs() {
    GpuEngine alone;
    return alone.one_at_a_time();
  }
};

TEST_F(GpuEngine, QueuedStepsGiveWhatEachRequestGivesAlone) {
  make_core({.num_slots = kNumRequests, .num_pages = 2 * kNumRequests});
  expect_outputs(0);
  EXPECT_GT(runner_->num_ahead, 5);
}

TEST_F(GpuEngine, QueuedStepsAmongCancelsAndPreemptions) {
  make_core({.num_slots = 6, .num_pages = 7, .num_snapshots = 4});
  expect_outputs(1);
  expect_outputs(2);
  EXPECT_GT(runner_->num_ahead, 5);
  EXPECT_GT(core_->stats().prefix_hit_tokens_total, 0);
}

TEST_F(GpuEngine, ARunAllocatesNothingOnTheDevice) {
  make_core({.num_slots = 6, .num_pages = 7, .num_snapshots = 4});
  const int64_t num_at_start = device_.num_allocations;
  EXPECT_GT(num_at_start, 0);
  std::map<std::string, testing::Received> received;
  run(received, 0);
  EXPECT_EQ(device_.num_allocations, num_at_start);
}

}  // namespace
}  // namespace nibble::engine
