#include "engine/engine_testing.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/random.h"

namespace nibble::engine::testing {

FakeTokenizer::FakeTokenizer(std::vector<std::string> tokens, std::vector<int32_t> specials)
    : tokens_(std::move(tokens)), specials_(std::move(specials)) {}

Result<std::vector<int32_t>> FakeTokenizer::encode(std::string_view,
                                                   std::span<const text::ByteRange>) const {
  return unsupported("the fake tokenizer cannot encode");
}

std::string_view FakeTokenizer::token_bytes(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return tokens_[static_cast<size_t>(id)];
}

bool FakeTokenizer::is_special(int32_t id) const {
  return std::find(specials_.begin(), specials_.end(), id) != specials_.end();
}

std::optional<int32_t> FakeTokenizer::added_token(std::string_view) const { return std::nullopt; }

LogitsFn scripted_logits(int32_t vocab_size, size_t num_prompt, std::vector<int32_t> script) {
  return [=, script = std::move(script)](std::span<const int32_t> history) {
    std::vector<float> logits(static_cast<size_t>(vocab_size), 0.0F);
    const size_t index = history.size() - num_prompt;
    if (history.size() >= num_prompt && index < script.size()) {
      logits[static_cast<size_t>(script[index])] = 20.0F;
    }
    return logits;
  };
}

LogitsFn hashed_logits(int32_t vocab_size) {
  return [=](std::span<const int32_t> history) {
    uint64_t hash = history.size();
    for (const int32_t token : history) hash = mix64(hash ^ static_cast<uint64_t>(token + 1));
    std::vector<float> logits(static_cast<size_t>(vocab_size));
    for (size_t i = 0; i < logits.size(); ++i) {
      logits[i] = static_cast<float>(uniform_at(hash, i) * 8.0 - 4.0);
    }
    return logits;
  };
}

FakeModelRunner::FakeModelRunner(FakeModelOptions options)
    : options_(std::move(options)),
      info_{.architecture = "fake",
            .vocab_size = options_.vocab_size,
            .max_position_embeddings = options_.num_pages * options_.page_size,
            .page_size = options_.page_size,
            .page_bytes = options_.page_size * options_.token_bytes,
            .snapshot_bytes =
                options_.snapshot_pages * options_.page_size * int64_t{sizeof(int32_t)}},
      histories_(static_cast<size_t>(options_.num_slots)),
      snapshots_(static_cast<size_t>(options_.num_snapshots)),
      paged_tokens_(static_cast<size_t>(options_.num_pages * options_.page_size), -1) {}

std::vector<int32_t>& FakeModelRunner::history(SlotId slot) {
  CHECK(slot.value >= 0 && slot.value < options_.num_slots) << slot.value;
  return histories_[static_cast<size_t>(slot.value)];
}

Result<void> FakeModelRunner::truncate(SlotId slot, int32_t length) {
  history(slot).resize(static_cast<size_t>(length));
  return {};
}

Result<void> FakeModelRunner::save_slot(SlotId slot, cache::SnapshotId place) {
  CHECK(history(slot).size() % static_cast<size_t>(options_.page_size) == 0);
  snapshots_.at(static_cast<size_t>(place.value)) = history(slot);
  return {};
}

Result<void> FakeModelRunner::restore_slot(SlotId slot, cache::SnapshotId place) {
  history(slot) = snapshots_.at(static_cast<size_t>(place.value));
  return {};
}

std::span<const std::byte> FakeModelRunner::snapshot(cache::SnapshotId place) const {
  return std::as_bytes(std::span(snapshots_.at(static_cast<size_t>(place.value))));
}

Result<void> FakeModelRunner::set_snapshot(cache::SnapshotId place,
                                           std::span<const std::byte> bytes) {
  std::vector<int32_t>& tokens = snapshots_.at(static_cast<size_t>(place.value));
  tokens.resize(bytes.size() / sizeof(int32_t));
  std::memcpy(tokens.data(), bytes.data(), bytes.size());
  return {};
}

std::span<int32_t> FakeModelRunner::page_tokens(PageId page) {
  const auto size = static_cast<size_t>(options_.page_size);
  return std::span(paged_tokens_).subspan(static_cast<size_t>(page.value) * size, size);
}

Result<void> FakeModelRunner::save_page(PageId page, std::span<std::byte> out) {
  const auto tokens = page_tokens(page);
  CHECK(static_cast<int64_t>(out.size()) == info_.page_bytes);
  std::memcpy(out.data(), tokens.data(), tokens.size_bytes());
  return {};
}

Result<void> FakeModelRunner::restore_page(PageId page, std::span<const std::byte> entries) {
  const auto tokens = page_tokens(page);
  CHECK(static_cast<int64_t>(entries.size()) == info_.page_bytes);
  std::memcpy(tokens.data(), entries.data(), tokens.size_bytes());
  return {};
}

int32_t& FakeModelRunner::paged_token(const BatchItem& item, size_t position) {
  const auto page_size = static_cast<size_t>(options_.page_size);
  CHECK(position / page_size < item.block_table.size()) << "block table too short";
  const auto page = static_cast<size_t>(item.block_table[position / page_size].value);
  return paged_tokens_.at(page * page_size + position % page_size);
}

void FakeModelRunner::append_logits(std::span<const int32_t> tokens) {
  const std::vector<float> row = options_.logits(tokens);
  logits_.insert(logits_.end(), row.begin(), row.end());
}

Result<StepResult> FakeModelRunner::step(const Batch& batch) {
  if (before_step) TRY(before_step(batch));
  logits_.clear();
  size_t num_tokens = 0;
  std::vector<SlotId> slots;
  for (const BatchItem& item : batch.items) {
    CHECK(std::find(slots.begin(), slots.end(), item.slot) == slots.end()) << "slot named twice";
    slots.push_back(item.slot);
    std::vector<int32_t>& tokens = history(item.slot);
    CHECK(static_cast<size_t>(item.start_position) == tokens.size()) << "position skipped";
    for (size_t i = 0; i < tokens.size(); ++i) {
      CHECK(paged_token(item, i) == tokens[i]) << "page overwritten at position " << i;
    }
    for (size_t i = 0; i < item.token_ids.size(); ++i) {
      paged_token(item, tokens.size()) = item.token_ids[i];
      tokens.push_back(item.token_ids[i]);
      const bool is_last = i + 1 == item.token_ids.size();
      if (item.wants_all_logits || (item.wants_logits && is_last)) append_logits(tokens);
    }
    num_tokens += item.token_ids.size();
  }
  CHECK(num_tokens > 0 && num_tokens <= static_cast<size_t>(options_.max_tokens_per_step));
  const auto num_rows = static_cast<int64_t>(logits_.size()) / options_.vocab_size;
  return StepResult{.logits = TensorView::contiguous(
                        logits_.data(), DType::kF32, {num_rows, options_.vocab_size})};
}

BatchItem FakeModelRunner::decode_item(const DecodeItem& item) const {
  int32_t token_id = item.token_id;
  if (token_id == models::DecodeInput::kChosenBefore) {
    const auto found = std::ranges::find(newest_.slots, item.slot);
    CHECK(found != newest_.slots.end()) << "no step before chose for slot " << item.slot.value;
    token_id = newest_.token_ids.at(static_cast<size_t>(found - newest_.slots.begin()));
  }
  if (token_id < 0) token_id = 0;  // after logits that are not sound
  const auto& tokens = histories_.at(static_cast<size_t>(item.slot.value));
  return {.slot = item.slot,
          .token_ids = {token_id},
          .start_position = static_cast<int32_t>(tokens.size()),
          .block_table = item.block_table,
          .wants_logits = true};
}

int32_t FakeModelRunner::choose(std::span<const float> logits,
                                const models::DeviceSampling& sampling) const {
  if (!all_finite(logits)) return models::kLogitsNotFinite;
  if (all_equal(logits)) return models::kLogitsAllEqual;
  SamplingParams params;
  params.temperature = sampling.temperature;
  params.top_k = sampling.top_k;
  params.top_p = sampling.top_p;
  params.min_p = sampling.min_p;
  SamplerScratch scratch;
  return sample(
      params, {.logits = logits, .seed = sampling.seed, .position = sampling.draw}, scratch);
}

// Computed at once; nobody sees the tokens before they are fetched.
Result<void> FakeModelRunner::queue_decode(std::span<const DecodeItem> items) {
  CHECK(num_queued_steps() < options_.max_queued_steps) << "a step too many";
  Batch batch;
  for (const DecodeItem& item : items) {
    batch.items.push_back(decode_item(item));
  }
  TRY_ASSIGN(const StepResult result, step(batch));
  QueuedStep queued;
  for (size_t i = 0; i < items.size(); ++i) {
    const std::span<const float> logits(result.logits.row<float>(static_cast<int64_t>(i)),
                                        static_cast<size_t>(options_.vocab_size));
    queued.slots.push_back(items[i].slot);
    queued.token_ids.push_back(choose(logits, items[i].sampling));
  }
  num_ahead_ += queued_.empty() ? 0 : 1;
  newest_ = queued;
  queued_.push_back(std::move(queued));
  return {};
}

Result<std::span<const int32_t>> FakeModelRunner::fetch_decoded() {
  CHECK(!queued_.empty()) << "no step is queued";
  fetched_ = std::move(queued_.front().token_ids);
  queued_.pop_front();
  if (before_fetch) TRY(before_fetch());
  return std::span<const int32_t>(fetched_);
}

OutputSink Received::sink() {
  return [this](Output&& output) {
    CHECK(finishes.empty()) << "output after the finish";
    token_ids.insert(token_ids.end(), output.token_ids.begin(), output.token_ids.end());
    text += output.text;
    logprobs.insert(logprobs.end(), output.logprobs.begin(), output.logprobs.end());
    if (!output.prompt_logprobs.empty()) prompt_logprobs = std::move(output.prompt_logprobs);
    if (output.finish) finishes.push_back(std::move(*output.finish));
    ++num_outputs;
  };
}

std::vector<int32_t> expected_tokens(const Request& request, const LogitsFn& logits, int32_t eos) {
  std::vector<int32_t> history = request.prompt_ids;
  std::vector<int32_t> output;
  TokenCounts counts(request.sampling, request.prompt_ids);
  SamplerScratch scratch;
  const auto& budget = request.reasoning_budget;
  bool is_reasoning = budget.has_value();
  while (static_cast<int32_t>(output.size()) < request.sampling.max_tokens) {
    const std::vector<float> row = logits(history);
    int32_t token = sample(request.sampling,
                           {.logits = row,
                            .counts = &counts,
                            .seed = *request.sampling.seed,
                            .position = output.size()},
                           scratch);
    const auto num_output = static_cast<int32_t>(output.size());
    if (is_reasoning && num_output >= budget->num_tokens) token = budget->end_token_id;
    if (is_reasoning && token == budget->end_token_id) is_reasoning = false;
    history.push_back(token);
    output.push_back(token);
    counts.add_generated(token);
    if (token == eos) break;
  }
  return output;
}

}  // namespace nibble::engine::testing
