// Stand-ins for the engine's seams: a clock that tests move, a tokenizer with a given vocabulary,
// and a model runner whose logits are a function of the tokens that a sequence holds.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/engine_core.h"
#include "engine/model_runner.h"
#include "text/tokenizer.h"

namespace nibble::engine::testing {

class FakeClock final : public Clock {
 public:
  TimePoint now() const override { return now_; }
  void advance(Duration d) { now_ += d; }

 private:
  TimePoint now_{};
};

// Token `i` has the bytes `tokens[i]`; those in `specials` are special. Cannot encode.
class FakeTokenizer final : public text::Tokenizer {
 public:
  explicit FakeTokenizer(std::vector<std::string> tokens, std::vector<int32_t> specials = {});

  int32_t vocab_size() const override { return static_cast<int32_t>(tokens_.size()); }
  Result<std::vector<int32_t>> encode(
      std::string_view text, std::span<const text::ByteRange> special_ranges) const override;
  std::string_view token_bytes(int32_t id) const override;
  bool is_special(int32_t id) const override;
  std::optional<int32_t> added_token(std::string_view content) const override;

 private:
  std::vector<std::string> tokens_;
  std::vector<int32_t> specials_;
};

// Logits of the token after `history`.
using LogitsFn = std::function<std::vector<float>(std::span<const int32_t> history)>;

// Gives 20 to the `n`-th token of `script` after a prompt of `num_prompt` tokens, 0 to the others.
LogitsFn scripted_logits(int32_t vocab_size, size_t num_prompt, std::vector<int32_t> script);
// Pseudo-random logits in [-4, 4) that depend on the whole history.
LogitsFn hashed_logits(int32_t vocab_size);

struct FakeModelOptions {
  int32_t vocab_size = 16;
  int32_t page_size = 4;
  int32_t num_slots = 1;
  int32_t num_pages = 16;
  int32_t num_snapshots = 0;
  int64_t token_bytes = sizeof(int32_t);  // of a token's entries, at least this
  int64_t snapshot_pages = 2;  // a snapshot takes the bytes of so many pages of the least size
  int32_t max_tokens_per_step = 8;
  int32_t max_queued_steps = 0;
  LogitsFn logits;
};

// Keeps tokens in pages as a model keeps KV, and stops the process when a batch reads a page that
// another sequence has overwritten, skips a position, or names a slot twice.
class FakeModelRunner final : public ModelRunner {
 public:
  explicit FakeModelRunner(FakeModelOptions options);

  const models::ModelInfo& info() const override { return info_; }
  const std::vector<models::RoutedModule>& routed_modules() const override { return modules_; }
  int32_t num_slots() const override { return options_.num_slots; }
  int32_t num_pages() const override { return options_.num_pages; }
  int32_t num_snapshots() const override { return options_.num_snapshots; }
  int32_t max_tokens_per_step() const override { return options_.max_tokens_per_step; }
  int64_t memory_bytes() const override { return 0; }

  void reset_slot(SlotId slot) override { history(slot).clear(); }
  Result<void> truncate(SlotId slot, int32_t length) override;
  Result<void> save_slot(SlotId slot, cache::SnapshotId place) override;
  Result<void> restore_slot(SlotId slot, cache::SnapshotId place) override;
  std::span<const std::byte> snapshot(cache::SnapshotId place) const override;
  Result<void> set_snapshot(cache::SnapshotId place, std::span<const std::byte> bytes) override;
  Result<void> save_page(PageId page, std::span<std::byte> out) override;
  Result<void> restore_page(PageId page, std::span<const std::byte> entries) override;
  Result<StepResult> step(const Batch& batch) override;

  int32_t max_queued_steps() const override { return options_.max_queued_steps; }
  int32_t max_queued_rows() const override { return options_.max_tokens_per_step; }
  Result<void> queue_decode(std::span<const DecodeItem> items) override;
  Result<std::span<const int32_t>> fetch_decoded() override;

  int32_t num_queued_steps() const { return static_cast<int32_t>(queued_.size()); }
  // How many steps were queued before the one before them had been fetched.
  int32_t num_ahead() const { return num_ahead_; }

  // Called at the start of each step, also of a queued one; an error fails the step.
  std::function<Result<void>(const Batch& batch)> before_step;
  // Called before tokens are fetched; an error is what fetching gives.
  std::function<Result<void>()> before_fetch;

 private:
  std::vector<int32_t>& history(SlotId slot);
  std::span<int32_t> page_tokens(PageId page);
  int32_t& paged_token(const BatchItem& item, size_t position);
  void append_logits(std::span<const int32_t> tokens);
  BatchItem decode_item(const DecodeItem& item) const;
  int32_t choose(std::span<const float> logits, const models::DeviceSampling& sampling) const;

  // A decode step whose tokens nobody has fetched.
  struct QueuedStep {
    std::vector<SlotId> slots;
    std::vector<int32_t> token_ids;
  };
  FakeModelOptions options_;
  models::ModelInfo info_;
  std::vector<models::RoutedModule> modules_;
  std::vector<std::vector<int32_t>> histories_;  // [num_slots]
  std::vector<std::vector<int32_t>> snapshots_;  // [num_snapshots]
  std::vector<int32_t> paged_tokens_;            // [num_pages * page_size]
  std::vector<float> logits_;
  std::deque<QueuedStep> queued_;
  QueuedStep newest_;  // the one queued last, fetched or not
  std::vector<int32_t> fetched_;
  int32_t num_ahead_ = 0;
};

// Everything that one request's sink received.
struct Received {
  std::vector<int32_t> token_ids;
  std::string text;
  std::vector<TokenLogprob> logprobs;
  std::vector<TokenLogprob> prompt_logprobs;
  std::vector<Finish> finishes;
  int32_t num_outputs = 0;

  // Collects into this object, which must outlive the request.
  OutputSink sink();
};

// The output that a request gives when nothing else runs: one token at a time, straight from the
// logits. Ends at `eos` or at max_tokens; the seed must be set.
std::vector<int32_t> expected_tokens(const Request& request, const LogitsFn& logits, int32_t eos);

}  // namespace nibble::engine::testing
