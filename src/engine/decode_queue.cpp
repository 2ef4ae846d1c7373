#include "engine/decode_queue.h"

#include <utility>

#include "base/check.h"

namespace nibble::engine {
namespace {

bool has_own_rules(const SamplingParams& sampling) {
  return sampling.repetition_penalty != 1.0F || sampling.presence_penalty != 0.0F ||
         sampling.frequency_penalty != 0.0F || !sampling.logit_bias.empty();
}

DecodeItem item_of(const Sequence& sequence) {
  const SamplingParams& sampling = sequence.request.sampling;
  const int32_t num_before = sequence.num_generated() + sequence.num_queued;
  return {.slot = sequence.slot,
          .block_table = sequence.block_table,
          .token_id = sequence.num_queued == 0 ? sequence.token_ids.back()
                                               : models::DecodeInput::kChosenBefore,
          .sampling = {.temperature = sampling.temperature,
                       .top_k = sampling.top_k,
                       .top_p = sampling.top_p,
                       .min_p = sampling.min_p,
                       .seed = sequence.seed,
                       .draw = static_cast<uint64_t>(num_before)}};
}

}  // namespace

bool DecodeQueue::takes(const Sequence& sequence) const {
  const SamplingParams& sampling = sequence.request.sampling;
  if (options_.deterministic && !is_greedy(sampling)) return false;
  if (sequence.matcher || sampling.logprobs || has_own_rules(sampling)) return false;
  const int32_t num_before = sequence.num_generated() + sequence.num_queued;
  const bool forbids =
      !sampling.stop_token_ids.empty() || (!sampling.ignore_eos && !options_.eos_token_ids.empty());
  if (forbids && num_before < sampling.min_tokens) return false;
  // At its budget's end, reasoning may have ended by itself in a token that is not known yet.
  return !sequence.reasoning_end || num_before < sequence.request.reasoning_budget->num_tokens;
}

Result<void> DecodeQueue::push(std::span<Sequence* const> sequences, TimePoint now) {
  CHECK(has_room() && takes_rows(sequences.size()));
  items_.clear();
  for (const Sequence* sequence : sequences) items_.push_back(item_of(*sequence));
  TRY(runner_.queue_decode(items_));
  for (Sequence* sequence : sequences) ++sequence->num_queued;
  steps_.push_back({.sequences = {sequences.begin(), sequences.end()}, .queued = now});
  return {};
}

Result<std::span<const int32_t>> DecodeQueue::pop(Step& step) {
  CHECK(!steps_.empty());
  step = std::move(steps_.front());
  steps_.pop_front();
  for (Sequence* sequence : step.sequences) {
    if (sequence != nullptr) --sequence->num_queued;
  }
  return runner_.fetch_decoded();
}

void DecodeQueue::forget(const Sequence& sequence) {
  for (Step& step : steps_) {
    for (Sequence*& entry : step.sequences) {
      if (entry == &sequence) entry = nullptr;
    }
  }
}

}  // namespace nibble::engine
