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

class QueueWait final {
 public:
  // num_slots: requests that run at a time. max_wait: the expected wait that admit() accepts; 0:
  // any.
  QueueWait(int32_t num_slots, Duration max_wait) : num_slots_(num_slots), max_wait_(max_wait) {}

  // A request that ran has ended, `service` after its start.
  void observe_service(Duration service);

  // Zero when it would start at once. Nothing when no request has ended yet.
  std::optional<Duration> expected(const QueueState& state, const WaitingRequest& next) const;

  // kExhausted when `next` would wait longer than allowed. The first in line is always let in.
  // Before anything was learnt as many may wait as run.
  Result<void> admit(const QueueState& state, const WaitingRequest& next) const;

 private:
  int32_t num_to_end_first(const QueueState& state, const WaitingRequest& next) const;
  int32_t num_at_a_time(const QueueState& state) const;

  const int32_t num_slots_;
  const Duration max_wait_;
  std::optional<double> service_seconds_;  // a moving average
};

}  // namespace nibble::engine
