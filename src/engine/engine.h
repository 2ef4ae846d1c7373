// The engine: requests in, outputs out. Owns the engine thread, which owns scheduler and cache; the
// executor behind the ModelRunner owns the model. Public calls are safe from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/result.h"
#include "engine/request.h"
#include "models/model.h"
#include "text/tokenizer.h"

namespace nibble::engine {

struct EngineConfig {
  int32_t max_queued_requests = 256;
  // Expected of a new request; 0: any; absent: about what a request takes.
  std::optional<Duration> max_queue_wait = Duration::zero();
  int32_t max_running_requests = 1;  // programs that plan memory: 0 is planned, too
  int32_t max_context = 0;           // 0: the model's
  int32_t prefill_chunk_tokens = 512;
  // Decoding requests wait no longer than this for the prefill of others; 0: as long as it takes.
  Duration max_gap = std::chrono::milliseconds(150);
  // Requests that wait longer to run for the first time end with reason "queue_timeout"; 0: as long
  // as it takes. A request may have its own.
  Duration queue_timeout{};
  std::vector<int32_t> eos_token_ids;
  // What a request gives depends on nothing but itself. The model must be loaded so, too.
  bool deterministic = false;
  // Where cached prefixes go when the pool needs their place; 0: nowhere.
  int64_t kv_host_bytes = 0;
  Path kv_disk_dir;  // empty: none; survives a restart
  int64_t kv_disk_bytes = 0;
};

struct EngineStats {
  int32_t num_running = 0;
  int32_t num_queued = 0;
  int32_t num_pages_used = 0;  // held by requests or by the prefix cache
  int32_t num_pages_total = 0;
  int32_t num_pages_cached = 0;  // part of those used: held by the prefix cache alone, evictable
  int32_t num_snapshots_used = 0;
  int32_t num_snapshots_total = 0;
  int64_t steps_total = 0;
  int64_t prompt_tokens_total = 0;
  int64_t generation_tokens_total = 0;
  int64_t requests_finished_total = 0;
  int64_t requests_cancelled_total = 0;
  int64_t requests_failed_total = 0;
  int64_t preemptions_total = 0;
  int64_t prefix_query_tokens_total = 0;  // prompt tokens of started requests
  int64_t prefix_hit_tokens_total = 0;    // those that the prefix cache gave
  int64_t pages_evicted_total = 0;
  int64_t snapshots_evicted_total = 0;
  int64_t tier_hit_pages_total = 0;  // brought back from host memory or disk
  int64_t tier_bytes = 0;            // held there
  double longest_gap_seconds = 0;    // between two tokens of one request, since the start
  double expected_wait_seconds = 0;  // until one behind all others would start; 0 also if unknown
};

class ModelRunner;

class Engine final {
 public:
  // The tokenizer must outlive the engine.
  static Result<std::unique_ptr<Engine>> create(const EngineConfig& config,
                                                std::unique_ptr<ModelRunner> runner,
                                                const text::Tokenizer& tokenizer,
                                                const Clock& clock);
  ~Engine();  // stops; unfinished requests end with kCancelled

  const models::ModelInfo& model_info() const;
  int32_t max_context() const;
  const std::vector<int32_t>& eos_token_ids() const;

  // Validates (ids in the vocabulary, ranges, prompt + max_tokens against the context with reason
  // "context_length_exceeded") and queues. kExhausted when the queue is full or the wait
  // in it too long, kUnavailable when draining. After an error the sink is never called; after
  // success it gets exactly one Output with `finish`.
  Result<void> submit(Request request, OutputSink sink);
  // Ends the request with kCancelled at the next step; unknown or finished ids are ignored.
  void cancel(const std::string& request_id);

  EngineStats stats() const;
  // One line per live request and the counters, as of the last step: what a watchdog writes when
  // the engine thread makes no progress. Never waits for that thread; holds no prompt text.
  std::string dump_state() const;

  // Forgets every cached prefix that no running request uses, at the next step.
  void flush_cache();

  // No new requests; returns when the accepted ones are done or at `deadline`, when the rest is
  // cancelled.
  void drain(TimePoint deadline);

 private:
  class Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble::engine
