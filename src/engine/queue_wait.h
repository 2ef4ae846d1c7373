// How long a new request would wait for its start, learnt from what requests took lately, and
// whether that is too long to let it in. Pure; the engine calls it under its lock.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"

namespace nibble::engine {

struct WaitingRequest {
  std::string_view owner;
  int32_t priority = 0;
  int64_t work = 1;  // tokens: of the prompt, and as many as it may generate
};

// What a new request finds.
struct QueueState {
  std::span<const WaitingRequest> waiting;
  int32_t num_running = 0;
  bool is_short_of_memory = false;  // a slot alone starts nobody
};

// How many of `waiting` would start before `next`: those of higher priority, and of the same one as
// if their owners took turns.
int32_t num_ahead(std::span<const WaitingRequest> waiting, const WaitingRequest& next);

// A request that ran has ended.
struct EndedRequest {
  Duration service{};  // since its start
  int64_t work = 1;
  bool is_busy = false;  // others wait for its place
};

// Two estimates of the time between two ends. While the queue is not empty: what requests took that
// ended since it formed, divided by how many run at a time. Before the first of these: what the
// work that waits would take alone, at the pace of earlier requests, which ran with fewer others;
// they tell nothing of how much running together saves.
class QueueWait final {
 public:
  // num_slots: requests that run at a time. max_wait: the expected wait that admit() accepts; 0:
  // any; absent: what a request takes, so that waiting at most doubles it.
  QueueWait(int32_t num_slots, std::optional<Duration> max_wait)
      : num_slots_(num_slots), max_wait_(max_wait) {}

  void observe(const EndedRequest& ended);

  // Zero when it would start at once. Nothing when no request has ended yet.
  std::optional<Duration> expected(const QueueState& state, const WaitingRequest& next) const;

  // kExhausted when `next` would wait longer than allowed. The first in line is always let in.
  // Without a stated wait, and until one has ended since the queue formed, as many may wait as run.
  Result<void> admit(const QueueState& state, const WaitingRequest& next) const;

 private:
  int32_t num_to_end_first(const QueueState& state, const WaitingRequest& next) const;
  int32_t num_at_a_time(const QueueState& state) const;
  std::optional<double> seconds_between_ends(const QueueState& state,
                                             const WaitingRequest& next) const;

  const int32_t num_slots_;
  const std::optional<Duration> max_wait_;
  std::optional<double> seconds_per_work_;  // of every request; a moving average
  int32_t num_idle_ends_ = 0;               // in a row; as many as there are slots end a busy time
  // Of those that ended since the queue formed.
  int64_t num_busy_ends_ = 0;
  double busy_service_seconds_ = 0;  // a mean, then a moving average
};

}  // namespace nibble::engine
