#include "engine/queue_wait.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>

namespace nibble::engine {
namespace {

// Of the latest request in a moving average: a change of the load counts within about ten.
constexpr double kNewestWeight = 0.1;

double moved(double mean, double newest, double weight) { return mean + weight * (newest - mean); }

Duration from_seconds(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

int32_t num_ahead(std::span<const WaitingRequest> waiting, const WaitingRequest& next) {
  int32_t num_above = 0;
  std::map<std::string_view, int32_t> num_equal;
  for (const WaitingRequest& other : waiting) {
    if (other.priority > next.priority) ++num_above;
    if (other.priority == next.priority) ++num_equal[other.owner];
  }
  const auto own = num_equal.find(next.owner);
  const int32_t num_own = own == num_equal.end() ? 0 : own->second;
  int32_t num_in_turn = num_own;
  for (const auto& [owner, count] : num_equal) {
    if (owner != next.owner) num_in_turn += std::min(count, num_own + 1);
  }
  return num_above + num_in_turn;
}

void QueueWait::observe(const EndedRequest& ended) {
  const double seconds = to_seconds(ended.service);
  const double per_work = seconds / static_cast<double>(std::max<int64_t>(ended.work, 1));
  seconds_per_work_ = moved(seconds_per_work_.value_or(per_work), per_work, kNewestWeight);
  if (!ended.is_busy) {
    if (++num_idle_ends_ >= num_slots_) num_busy_ends_ = 0;
    return;
  }
  num_idle_ends_ = 0;
  ++num_busy_ends_;
  const double share = 1.0 / static_cast<double>(num_busy_ends_);
  busy_service_seconds_ = moved(busy_service_seconds_, seconds, std::max(share, kNewestWeight));
}

std::optional<Duration> QueueWait::expected(const QueueState& state,
                                            const WaitingRequest& next) const {
  const int32_t num_ends = num_to_end_first(state, next);
  if (num_ends == 0) return Duration::zero();
  const std::optional<double> seconds = seconds_between_ends(state, next);
  if (!seconds) return std::nullopt;
  return from_seconds(*seconds * num_ends);
}

Result<void> QueueWait::admit(const QueueState& state, const WaitingRequest& next) const {
  const int32_t num_ends = num_to_end_first(state, next);
  if (max_wait_ == Duration::zero() || num_ends <= 1) return {};
  const bool is_known = max_wait_ && num_busy_ends_ > 0;
  if (!is_known && num_ends <= num_at_a_time(state)) return {};
  const std::optional<Duration> wait = max_wait_ ? expected(state, next) : std::nullopt;
  if (!wait) {
    return exhausted(fmt::format("the queue is full: {} requests are waiting, {} run at a time",
                                 state.waiting.size(),
                                 num_at_a_time(state)));
  }
  if (*wait <= *max_wait_) return {};
  return exhausted(
      fmt::format("the queue is full: a request would wait about {:.3g} s, at most {:.3g} s are "
                  "allowed",
                  to_seconds(*wait),
                  to_seconds(*max_wait_)));
}

std::optional<double> QueueWait::seconds_between_ends(const QueueState& state,
                                                      const WaitingRequest& next) const {
  if (num_busy_ends_ > 0) return busy_service_seconds_ / num_at_a_time(state);
  if (!seconds_per_work_) return std::nullopt;
  auto work = static_cast<double>(next.work);
  for (const WaitingRequest& waiting : state.waiting) work += static_cast<double>(waiting.work);
  return *seconds_per_work_ * work / static_cast<double>(state.waiting.size() + 1);
}

// Requests that must end before `next` can start.
int32_t QueueWait::num_to_end_first(const QueueState& state, const WaitingRequest& next) const {
  const int32_t num_free =
      state.is_short_of_memory ? 0 : std::max(num_slots_ - state.num_running, 0);
  return std::max(num_ahead(state.waiting, next) + 1 - num_free, 0);
}

int32_t QueueWait::num_at_a_time(const QueueState& state) const {
  return state.is_short_of_memory ? std::max(state.num_running, 1) : num_slots_;
}

}  // namespace nibble::engine
