// The engine without its thread: one call is one step. Simulations drive it directly, which makes a
// run a function of its seed. Owner: the engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "engine/admission.h"
#include "engine/decode_queue.h"
#include "engine/engine.h"
#include "engine/model_runner.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "text/tokenizer.h"

namespace nibble::engine {

// A live request: for state dumps, and for how long a new one would wait.
struct RequestState {
  std::string id;
  std::string owner;
  int32_t priority = 0;
  bool is_running = false;
  int32_t num_prompt = 0;
  int32_t max_tokens = 0;
  int32_t num_computed = 0;
  int32_t num_generated = 0;
  int32_t num_queued = 0;  // decode steps that the device has not answered
  int32_t num_pages = 0;
  int32_t num_preemptions = 0;
  TimePoint arrived;
};

class EngineCore final {
 public:
  struct Options {
    std::vector<int32_t> eos_token_ids;
    SchedulerLimits scheduling;
    RequestLimits requests;
    uint64_t base_seed = 0;    // requests without a seed draw theirs from it
    Duration queue_timeout{};  // of requests without their own; 0: any
    bool deterministic = false;
  };

  // Makes the options that fit the runner. kInvalidArgument names the config field.
  static Result<Options> resolve(const EngineConfig& config,
                                 const ModelRunner& runner,
                                 uint64_t base_seed);

  // The tokenizer and the clock must outlive the core.
  EngineCore(Options options,
             std::unique_ptr<ModelRunner> runner,
             const text::Tokenizer& tokenizer,
             const Clock& clock,
             std::unique_ptr<KvTier> tier = nullptr);

  // Takes over a request that validate_request() accepted. Its sink gets exactly one finish.
  void add(Request request, OutputSink sink, TimePoint arrived);
  // Ends the request with kCancelled, now; unknown ids are ignored.
  void cancel(std::string_view request_id);
  // All of them; then no step is queued either.
  void cancel_all();
  // Forgets every cached prefix that no running request uses.
  void flush_cache() { scheduler_.kv().flush(); }
  // Hands the cached prefixes to the tiers, at the end.
  void close() { scheduler_.kv().close(); }

  // Computes one batch and reports what it gave; a decode step that the device chooses tokens in
  // has the next one queued behind it meanwhile. Does nothing when idle.
  void step();

  bool is_idle() const { return scheduler_.any() == nullptr && queue_.is_empty(); }
  // Requests wait for pages: a slot is free, and no prefix that they wait for is on its way.
  bool is_short_of_memory() const {
    return scheduler_.num_waiting() > scheduler_.num_following() &&
           scheduler_.num_running() < options_.scheduling.num_slots &&
           !scheduler_.kv().is_fetching();
  }
  EngineStats stats() const;
  // Every live request: running ones in the order of schedule(), then waiting ones.
  void describe(std::vector<RequestState>& states) const;
  const Scheduler& scheduler() const { return scheduler_; }

 private:
  void expire_waiting(TimePoint now);
  void resume_slots();
  void schedule_step(TimePoint begin);
  void run_step(std::span<const ScheduledChunk> chunks, TimePoint begin);
  bool queue_step(std::span<const ScheduledChunk> chunks);
  void queue_ahead();
  void push_ahead();
  bool find_ahead();
  bool completes_page(const Sequence& sequence) const;
  void take_queued();
  void take_chosen(Sequence& sequence, int32_t token_id);
  void share_computed(Sequence& sequence);
  Batch make_batch(std::span<const ScheduledChunk> chunks);
  void take_logits(const ScheduledChunk& chunk, TensorView logits);
  Result<std::span<const uint64_t>> allowed_tokens(const Sequence& sequence);
  std::optional<Error> score_prompt(Sequence& sequence, TensorView logits);
  void generate(Sequence& sequence, std::span<const float> logits);
  Result<int32_t> choose_token(Sequence& sequence, std::span<const float> logits);
  void emit(Sequence& sequence, int32_t token_id, std::span<const float> logits);
  Output make_output(Sequence& sequence, int32_t token_id, std::span<const float> logits);
  void note_token_time(Sequence& sequence);
  void append_and_check_end(Sequence& sequence, Output&& output);
  std::span<const int32_t> forbidden_ids(const Sequence& sequence);
  bool is_eos(const Sequence& sequence, int32_t token_id) const;
  void fail(Sequence& sequence, Error error);
  void finish(Sequence& sequence, Output&& output, Finish&& finish);

  Options options_;
  std::unique_ptr<ModelRunner> runner_;
  const text::Tokenizer& tokenizer_;
  const Clock& clock_;
  Scheduler scheduler_;
  DecodeQueue queue_;
  std::vector<Sequence*> ahead_;  // scratch of find_ahead()
  TimePoint last_taken_{};        // when the last queued step gave its tokens
  SamplerScratch scratch_;
  std::vector<int32_t> forbidden_;  // scratch of forbidden_ids()
  std::vector<uint64_t> allowed_;   // scratch of allowed_tokens()
  uint64_t num_added_ = 0;
  EngineStats totals_;  // only the *_total fields
};

}  // namespace nibble::engine
