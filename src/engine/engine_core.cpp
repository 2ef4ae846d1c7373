#include "engine/engine_core.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/checked_math.h"
#include "base/log.h"
#include "base/random.h"

namespace nibble::engine {
namespace {

// Which logits of its tokens a chunk needs.
struct WantedLogits {
  bool last = false;
  bool all = false;
};

WantedLogits wanted_logits(const ScheduledChunk& chunk) {
  const Sequence& sequence = *chunk.sequence;
  const bool is_prompt_chunk = sequence.num_computed + 1 < sequence.num_prompt();
  return {.last = chunk.num_tokens == sequence.num_pending(),
          .all = is_prompt_chunk && sequence.wants_prompt_logprobs()};
}

int64_t num_logits_rows(const ScheduledChunk& chunk) {
  const WantedLogits wanted = wanted_logits(chunk);
  if (wanted.all) return chunk.num_tokens;
  return wanted.last ? 1 : 0;
}

std::span<const float> row_of(TensorView logits, int64_t row) {
  return {logits.row<float>(row), static_cast<size_t>(logits.shape[1])};
}

// Q-R1 and Q-R2: logits that no sound model gives.
Error unsound_logits(bool is_finite, const Sequence& sequence, int32_t position) {
  Error error = data_loss(
      fmt::format("the model gave logits that are {} at position {} of request {}; the weights may "
                  "be damaged. `nibble check` finds bad tensors, --nan-check the first layer that "
                  "is not finite.",
                  is_finite ? "all equal" : "not finite",
                  position,
                  sequence.request.id));
  error.reason = is_finite ? "Q-R2" : "Q-R1";
  return error;
}

// nullopt for sound logits.
std::optional<Error> logits_fault(std::span<const float> logits,
                                  const Sequence& sequence,
                                  int32_t position) {
  const bool is_finite = all_finite(logits);
  if (is_finite && (logits.size() < 2 || !all_equal(logits))) return std::nullopt;
  return unsound_logits(is_finite, sequence, position);
}

bool contains(std::span<const int32_t> ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

Error config_error(std::string_view field, int64_t found, int64_t min, int64_t max) {
  Error error = invalid_argument(
      fmt::format("{}: is {}, expected an integer in [{}, {}]", field, found, min, max));
  error.param = field;
  return error;
}

// As many pages as take the bytes of one snapshot: the snapshots of a prompt then cost no more than
// its entries.
int32_t snapshot_interval(const models::ModelInfo& info) {
  return static_cast<int32_t>(ceil_div(info.snapshot_bytes, std::max<int64_t>(info.page_bytes, 1)));
}

// How long a step waits for a prefix on its way when there is nothing else to do.
constexpr Duration kFetchWait = std::chrono::milliseconds(5);

}  // namespace

Result<EngineCore::Options> EngineCore::resolve(const EngineConfig& config,
                                                const ModelRunner& runner,
                                                uint64_t base_seed) {
  const models::ModelInfo& info = runner.info();
  const int64_t capacity = int64_t{runner.num_pages()} * info.page_size;
  const int64_t most = std::min<int64_t>(capacity, info.max_position_embeddings);
  const int64_t max_context = config.max_context == 0 ? most : config.max_context;
  if (max_context < 1 || max_context > most)
    return config_error("max_context", max_context, 1, most);
  const int32_t max_running = std::min(runner.num_slots(), runner.max_tokens_per_step());
  if (config.max_running_requests < 1 || config.max_running_requests > max_running) {
    return config_error("max_running_requests", config.max_running_requests, 1, max_running);
  }
  if (config.max_queued_requests < 1) {
    return config_error("max_queued_requests", config.max_queued_requests, 1, INT32_MAX);
  }
  if (config.prefill_chunk_tokens < 1) {
    return config_error("prefill_chunk_tokens", config.prefill_chunk_tokens, 1, INT32_MAX);
  }
  for (const int32_t id : config.eos_token_ids) {
    if (id < 0 || id >= info.vocab_size) {
      return config_error("eos_token_ids", id, 0, info.vocab_size - 1);
    }
  }
  return Options{
      .eos_token_ids = config.eos_token_ids,
      .scheduling = {.num_slots = config.max_running_requests,
                     .kv = {.num_pages = runner.num_pages(),
                            .page_size = info.page_size,
                            .num_snapshots = runner.num_snapshots(),
                            .snapshot_interval = snapshot_interval(info),
                            .key = random_sip_key()},
                     .max_tokens_per_step = runner.max_tokens_per_step(),
                     .prefill_chunk_tokens = config.prefill_chunk_tokens,
                     .max_gap = config.max_gap},
      .requests = {.vocab_size = info.vocab_size, .max_context = static_cast<int32_t>(max_context)},
      .base_seed = base_seed,
      .queue_timeout = config.queue_timeout,
      .deterministic = config.deterministic,
  };
}

EngineCore::EngineCore(Options options,
                       std::unique_ptr<ModelRunner> runner,
                       const text::Tokenizer& tokenizer,
                       const Clock& clock,
                       std::unique_ptr<KvTier> tier)
    : options_(std::move(options)),
      runner_(std::move(runner)),
      tokenizer_(tokenizer),
      clock_(clock),
      scheduler_(options_.scheduling),
      queue_(*runner_,
             {.eos_token_ids = options_.eos_token_ids, .deterministic = options_.deterministic}) {
  if (tier == nullptr) return;
  scheduler_.kv().attach(std::make_unique<KvOffload>(*runner_, std::move(tier)));
}

void EngineCore::add(Request request, OutputSink sink, TimePoint arrived) {
  const int32_t max_tokens = resolved_max_tokens(request, options_.requests);
  const uint64_t default_seed = split_mix64(options_.base_seed, num_added_++);
  const Duration limit =
      request.queue_timeout > Duration::zero() ? request.queue_timeout : options_.queue_timeout;
  auto sequence = std::make_unique<Sequence>(
      std::move(request), std::move(sink), tokenizer_, max_tokens, default_seed, arrived);
  if (limit > Duration::zero()) sequence->start_by = arrived + limit;
  scheduler_.add(std::move(sequence));
}

void EngineCore::cancel(std::string_view request_id) {
  Sequence* sequence = scheduler_.find(request_id);
  if (sequence != nullptr) finish(*sequence, {}, {.reason = FinishReason::kCancelled});
}

void EngineCore::cancel_all() {
  while (Sequence* sequence = scheduler_.any()) {
    finish(*sequence, {}, {.reason = FinishReason::kCancelled});
  }
  while (!queue_.is_empty()) take_queued();
}

void EngineCore::step() {
  const TimePoint begin = clock_.now();
  expire_waiting(begin);
  if (queue_.is_empty()) return schedule_step(begin);
  queue_ahead();
  take_queued();
}

void EngineCore::schedule_step(TimePoint begin) {
  std::vector<ScheduledChunk> chunks = scheduler_.schedule();
  if (chunks.empty()) return scheduler_.kv().wait_fetched(kFetchWait);
  resume_slots();
  // A sequence whose snapshot was damaged has ended.
  std::erase_if(chunks, [this](const auto& chunk) { return !scheduler_.has(chunk.sequence); });
  if (chunks.empty()) return;
  if (!queue_step(chunks)) return run_step(chunks, begin);
  queue_ahead();
  if (!queue_.is_empty()) take_queued();
}

void EngineCore::expire_waiting(TimePoint now) {
  for (Sequence* sequence : scheduler_.overdue(now)) {
    Error error = exhausted(fmt::format(
        "the request waited {:.1f} s to be started, longer than it may; try again later",
        to_seconds(now - sequence->arrived)));
    error.reason = "queue_timeout";
    fail(*sequence, std::move(error));
  }
}

// Also for sequences without a chunk in this step: their snapshot may be evicted after it.
void EngineCore::resume_slots() {
  std::vector<std::pair<Sequence*, Error>> failed;
  for (const auto& sequence : scheduler_.running()) {
    if (!sequence->resume) continue;
    const Result<void> result = runner_->restore_slot(sequence->slot, *sequence->resume);
    scheduler_.kv().resumed(*sequence);
    if (!result.ok()) failed.emplace_back(sequence.get(), result.error());
  }
  for (auto& [sequence, error] : failed) fail(*sequence, std::move(error));
}

void EngineCore::run_step(std::span<const ScheduledChunk> chunks, TimePoint begin) {
  const Batch batch = make_batch(chunks);
  const Result<StepResult> result = runner_->step(batch);
  ++totals_.steps_total;
  if (!result.ok()) {
    for (const ScheduledChunk& chunk : chunks) fail(*chunk.sequence, result.error());
    return;
  }
  int64_t row = 0;
  for (const ScheduledChunk& chunk : chunks) {
    const int64_t num_rows = num_logits_rows(chunk);
    const TensorView none{.data = nullptr, .shape = {0, options_.requests.vocab_size}};
    take_logits(chunk, num_rows == 0 ? none : result->logits.rows(row, num_rows));
    row += num_rows;
  }
  CHECK(row == result->logits.num_rows() || row == 0) << row;
  scheduler_.observe_step(clock_.now() - begin);
}

// False when the device cannot choose all of the step's tokens; nothing has happened then.
bool EngineCore::queue_step(std::span<const ScheduledChunk> chunks) {
  const bool is_possible = std::ranges::all_of(chunks, [this](const ScheduledChunk& chunk) {
    return chunk.sequence->is_decoding() && queue_.takes(*chunk.sequence);
  });
  if (!is_possible || !queue_.has_room() || !queue_.takes_rows(chunks.size())) return false;
  ahead_.clear();
  for (const ScheduledChunk& chunk : chunks) ahead_.push_back(chunk.sequence);
  push_ahead();
  return true;
}

// Queues the step behind the queued ones, unless something must know their tokens first.
void EngineCore::queue_ahead() {
  if (!queue_.has_room() || !find_ahead()) return;
  scheduler_.charge_ahead(ahead_);
  push_ahead();
}

void EngineCore::push_ahead() {
  const Result<void> pushed = queue_.push(ahead_, clock_.now());
  if (pushed.ok()) return;
  for (Sequence* sequence : ahead_) fail(*sequence, pushed.error());
}

// The sequences of the step behind the queued ones: those that their limit does not end before it.
bool EngineCore::find_ahead() {
  ahead_.clear();
  if (!scheduler_.is_only_decoding()) return false;
  for (const auto& sequence : scheduler_.running()) {
    if (sequence->num_generated() + sequence->num_queued >= sequence->max_tokens) continue;
    if (!queue_.takes(*sequence) || completes_page(*sequence)) return false;
    ahead_.push_back(sequence.get());
  }
  if (ahead_.empty() || !queue_.takes_rows(ahead_.size())) return false;
  return std::ranges::all_of(
      ahead_, [this](Sequence* sequence) { return scheduler_.reserve_ahead(*sequence); });
}

// Whether the queued steps end where a snapshot of the slot's state may be taken: before it goes
// on.
bool EngineCore::completes_page(const Sequence& sequence) const {
  const KvManager& kv = scheduler_.kv();
  const int32_t length = sequence.num_computed + sequence.num_queued;
  return kv.has_prefix_cache() && length % options_.scheduling.kv.page_size == 0;
}

void EngineCore::take_queued() {
  DecodeQueue::Step step;
  const Result<std::span<const int32_t>> tokens = queue_.pop(step);
  ++totals_.steps_total;
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    if (step.sequences[i] == nullptr) continue;
    if (tokens.ok()) {
      take_chosen(*step.sequences[i], (*tokens)[i]);
    } else {
      fail(*step.sequences[i], tokens.error());
    }
  }
  const TimePoint begin = std::max(step.queued, last_taken_);
  last_taken_ = clock_.now();
  if (!tokens.ok()) return;
  scheduler_.observe_decode(static_cast<int32_t>(step.sequences.size()), last_taken_ - begin);
}

// token_id: as models::Model::fetch_decoded() gives it.
void EngineCore::take_chosen(Sequence& sequence, int32_t token_id) {
  if (token_id < 0) {
    const bool is_finite = token_id != models::kLogitsNotFinite;
    return fail(sequence, unsound_logits(is_finite, sequence, sequence.num_computed));
  }
  ++sequence.num_computed;
  share_computed(sequence);
  emit(sequence, token_id, {});
}

// Makes what the sequence has computed available to others, and to itself after a preemption.
void EngineCore::share_computed(Sequence& sequence) {
  KvManager& kv = scheduler_.kv();
  kv.commit(sequence);
  const auto place = kv.place_snapshot(sequence);
  if (!place) return;
  const Result<void> saved = runner_->save_slot(sequence.slot, *place);
  if (saved.ok()) return;
  log_warning("a snapshot was not taken: {}", saved.error().message);
  kv.drop_snapshot(sequence);
}

Batch EngineCore::make_batch(std::span<const ScheduledChunk> chunks) {
  const TimePoint now = clock_.now();
  Batch batch;
  for (const ScheduledChunk& chunk : chunks) {
    Sequence& sequence = *chunk.sequence;
    if (!sequence.started) {
      sequence.started = now;
      totals_.prefix_query_tokens_total += sequence.num_prompt();
      totals_.prefix_hit_tokens_total += sequence.num_cached.value_or(0);
    }
    if (sequence.num_computed == 0) runner_->reset_slot(sequence.slot);
    const auto first = sequence.token_ids.begin() + sequence.num_computed;
    const WantedLogits wanted = wanted_logits(chunk);
    batch.items.push_back({.slot = sequence.slot,
                           .token_ids = {first, first + chunk.num_tokens},
                           .start_position = sequence.num_computed,
                           .block_table = sequence.block_table,
                           .wants_logits = wanted.last,
                           .wants_all_logits = wanted.all});
  }
  return batch;
}

// logits: [rows that num_logits_rows() promised, vocab_size]
void EngineCore::take_logits(const ScheduledChunk& chunk, TensorView logits) {
  Sequence& sequence = *chunk.sequence;
  const WantedLogits wanted = wanted_logits(chunk);
  if (sequence.num_computed < sequence.num_prompt()) {
    const int32_t prompt_left = sequence.num_prompt() - sequence.num_computed;
    totals_.prompt_tokens_total += std::min(chunk.num_tokens, prompt_left);
  }
  if (wanted.all) {
    std::optional<Error> fault = score_prompt(sequence, logits);
    if (fault) return fail(sequence, std::move(*fault));
  }
  if (wanted.last) {
    std::optional<Error> fault = logits_fault(row_of(logits, logits.num_rows() - 1),
                                              sequence,
                                              sequence.num_computed + chunk.num_tokens - 1);
    if (fault) return fail(sequence, std::move(*fault));
  }
  sequence.num_computed += chunk.num_tokens;
  share_computed(sequence);
  if (wanted.last) generate(sequence, row_of(logits, logits.num_rows() - 1));
}

// Row i belongs to position num_computed + i and scores the token after it. False when a row is not
// finite. Rows that a preempted sequence computes again are not scored twice.
std::optional<Error> EngineCore::score_prompt(Sequence& sequence, TensorView logits) {
  for (int64_t i = 0; i < logits.num_rows() && sequence.wants_prompt_logprobs(); ++i) {
    const int64_t target = sequence.num_computed + i + 1;
    if (target != static_cast<int64_t>(sequence.prompt_logprobs.size()) + 1) continue;
    const std::span<const float> row = row_of(logits, i);
    if (std::optional<Error> fault = logits_fault(row, sequence, sequence.num_computed)) {
      return fault;
    }
    sequence.prompt_logprobs.push_back(
        token_logprob(row,
                      sequence.token_ids[static_cast<size_t>(target)],
                      *sequence.request.sampling.prompt_logprobs));
  }
  return std::nullopt;
}

void EngineCore::generate(Sequence& sequence, std::span<const float> logits) {
  const Result<int32_t> token_id = choose_token(sequence, logits);
  if (!token_id.ok()) return fail(sequence, token_id.error());
  emit(sequence, *token_id, logits);
}

// logits: of the token; empty where nobody asks for their logprobs.
void EngineCore::emit(Sequence& sequence, int32_t token_id, std::span<const float> logits) {
  note_token_time(sequence);
  append_and_check_end(sequence, make_output(sequence, token_id, logits));
}

Result<int32_t> EngineCore::choose_token(Sequence& sequence, std::span<const float> logits) {
  int32_t token_id = 0;
  if (const std::optional<int32_t> forced = sequence.forced_token()) {
    token_id = *forced;
  } else {
    TRY_ASSIGN(const std::span<const uint64_t> allowed, allowed_tokens(sequence));
    token_id = sample(sequence.request.sampling,
                      {.logits = logits,
                       .forbidden_ids = forbidden_ids(sequence),
                       .allowed = allowed,
                       .counts = &sequence.counts,
                       .seed = sequence.seed,
                       .position = static_cast<uint64_t>(sequence.num_generated())},
                      scratch_);
  }
  if (sequence.matcher) TRY(sequence.matcher->accept(token_id));
  return token_id;
}

void EngineCore::note_token_time(Sequence& sequence) {
  const TimePoint now = clock_.now();
  if (sequence.first_token) {
    sequence.longest_gap = std::max(sequence.longest_gap, now - sequence.last_token);
    totals_.longest_gap_seconds =
        std::max(totals_.longest_gap_seconds, to_seconds(sequence.longest_gap));
  } else {
    sequence.first_token = now;
  }
  sequence.last_token = now;
}

// What the request's grammar allows next; empty without one.
Result<std::span<const uint64_t>> EngineCore::allowed_tokens(const Sequence& sequence) {
  if (!sequence.matcher) return std::span<const uint64_t>();
  allowed_.resize(sequence.request.grammar->vocabulary().num_mask_words());
  TRY(sequence.matcher->fill_allowed(allowed_));
  return std::span<const uint64_t>(allowed_);
}

// What min_tokens still rules out.
std::span<const int32_t> EngineCore::forbidden_ids(const Sequence& sequence) {
  forbidden_.clear();
  const SamplingParams& sampling = sequence.request.sampling;
  if (sequence.num_generated() >= sampling.min_tokens) return {};
  forbidden_ = sampling.stop_token_ids;
  if (!sampling.ignore_eos) {
    forbidden_.insert(
        forbidden_.end(), options_.eos_token_ids.begin(), options_.eos_token_ids.end());
  }
  return forbidden_;
}

Output EngineCore::make_output(Sequence& sequence,
                               int32_t token_id,
                               std::span<const float> logits) {
  const SamplingParams& sampling = sequence.request.sampling;
  Output output;
  output.token_ids = {token_id};
  if (sampling.logprobs) {
    output.logprobs = {token_logprob(logits, token_id, sampling.top_logprobs)};
  }
  if (sequence.num_generated() == 0) output.prompt_logprobs = std::move(sequence.prompt_logprobs);
  return output;
}

bool EngineCore::is_eos(const Sequence& sequence, int32_t token_id) const {
  return !sequence.request.sampling.ignore_eos && contains(options_.eos_token_ids, token_id);
}

// A stop beats the length limit when both fall on one token.
void EngineCore::append_and_check_end(Sequence& sequence, Output&& output) {
  const SamplingParams& sampling = sequence.request.sampling;
  const int32_t token_id = output.token_ids.front();
  sequence.token_ids.push_back(token_id);
  sequence.counts.add_generated(token_id);
  ++totals_.generation_tokens_total;

  const bool is_stop_id = contains(sampling.stop_token_ids, token_id);
  const bool is_grammar_end = sequence.matcher && contains(options_.eos_token_ids, token_id);
  const bool is_end = is_stop_id || is_grammar_end || is_eos(sequence, token_id);
  if (!is_end || sampling.include_stop_in_output) {
    const bool can_stop = !is_end && sequence.num_generated() >= sampling.min_tokens;
    output.text = sequence.push_text(token_id, can_stop);
  }
  Finish end;
  if (const std::string* stop = sequence.stop_matcher.match()) {
    end.matched_stop = *stop;
    return finish(sequence, std::move(output), std::move(end));
  }
  if (is_end) {
    if (is_stop_id) end.matched_stop_token = token_id;
    return finish(sequence, std::move(output), std::move(end));
  }
  if (sequence.num_generated() >= sequence.max_tokens) {
    end.reason = FinishReason::kLength;
    return finish(sequence, std::move(output), std::move(end));
  }
  sequence.sink(std::move(output));
}

void EngineCore::fail(Sequence& sequence, Error error) {
  Finish end{.reason = FinishReason::kError};
  end.error = std::move(error);
  finish(sequence, {}, std::move(end));
}

void EngineCore::finish(Sequence& sequence, Output&& output, Finish&& end) {
  output.text += sequence.flush_text();
  const TimePoint now = clock_.now();
  const TimePoint started = sequence.started.value_or(now);
  const TimePoint first_token = sequence.first_token.value_or(now);
  end.usage = {.prompt_tokens = sequence.num_prompt(),
               .completion_tokens = sequence.num_generated(),
               .cached_tokens = sequence.num_cached.value_or(0)};
  end.queue_seconds = to_seconds(started - sequence.arrived);
  end.prefill_seconds = to_seconds(first_token - started);
  end.decode_seconds = to_seconds(now - first_token);
  end.longest_gap_seconds = to_seconds(sequence.longest_gap);
  end.num_preemptions = sequence.num_preemptions;
  switch (end.reason) {
    case FinishReason::kStop:
    case FinishReason::kLength:
      ++totals_.requests_finished_total;
      break;
    case FinishReason::kCancelled:
      ++totals_.requests_cancelled_total;
      break;
    case FinishReason::kError:
      ++totals_.requests_failed_total;
      break;
  }
  output.finish = std::move(end);
  queue_.forget(sequence);
  // Out of the scheduler first: the sink may look at what is free.
  const std::unique_ptr<Sequence> finished = scheduler_.remove(sequence);
  finished->sink(std::move(output));
}

EngineStats EngineCore::stats() const {
  EngineStats stats = totals_;
  stats.num_running = scheduler_.num_running();
  stats.num_queued = scheduler_.num_waiting();
  const KvManager& kv = scheduler_.kv();
  stats.num_pages_used = kv.pages().num_used();
  stats.num_pages_total = kv.pages().num_pages();
  stats.num_pages_cached = kv.tree().num_evictable();
  stats.num_snapshots_used = kv.tree().num_snapshots_used();
  stats.num_snapshots_total = kv.tree().num_snapshots();
  stats.pages_evicted_total = kv.num_evictions();
  stats.tier_hit_pages_total = kv.num_tier_hits();
  stats.tier_bytes = kv.offload() == nullptr ? 0 : kv.offload()->tier().num_bytes();
  stats.snapshots_evicted_total = kv.tree().num_snapshot_evictions();
  stats.preemptions_total = scheduler_.num_preemptions();
  return stats;
}

void EngineCore::describe(std::vector<RequestState>& states) const {
  states.resize(static_cast<size_t>(scheduler_.num_running()) +
                static_cast<size_t>(scheduler_.num_waiting()));
  size_t i = 0;
  scheduler_.for_each([&](const Sequence& sequence) {
    RequestState& state = states[i++];
    state.id = sequence.request.id;
    state.owner = sequence.request.owner;
    state.priority = sequence.request.priority;
    state.is_running = sequence.slot.is_valid();
    state.num_prompt = sequence.num_prompt();
    state.max_tokens = sequence.max_tokens;
    state.num_computed = sequence.num_computed;
    state.num_generated = sequence.num_generated();
    state.num_queued = sequence.num_queued;
    state.num_pages = static_cast<int32_t>(sequence.block_table.size());
    state.num_preemptions = sequence.num_preemptions;
    state.arrived = sequence.arrived;
  });
}

}  // namespace nibble::engine
