#include "engine/step_cost.h"

#include <algorithm>
#include <cmath>

namespace nibble::engine {
namespace {

constexpr double kDecay = 0.25;
// Forgotten slowly: disturbances come again.
constexpr double kOvershootDecay = 0.05;
constexpr double kMaxOvershoot = 4;
// Share of the limit that a step is planned to take. The rest absorbs a context that grows from
// chunk to chunk and a machine that is not always equally fast.
constexpr double kPlannedShare = 0.7;
// What prefill gets where decoding alone reaches the limit.
constexpr double kLeastPrefillShare = 0.1;
constexpr int32_t kMaxGrowth = 4;
// Chunks below this say little about the cost of a token.
constexpr int32_t kLeastSample = 16;

void follow(double& estimate, double sample) {
  estimate = sample >= estimate ? sample : estimate + kDecay * (sample - estimate);
}

}  // namespace

// More sequences cost at most proportionally more; fewer are not assumed to cost less, since a step
// may be bound by its weights.
double StepCost::decode_seconds(int32_t num_decode) const {
  if (decode_load_ == 0) return 0;
  return decode_seconds_ * std::max(1.0, static_cast<double>(num_decode) / decode_load_);
}

void StepCost::observe(const StepLoad& load, Duration duration) {
  const double seconds = to_seconds(duration);
  if (load.num_prefill == 0) {
    if (load.num_decode == 0) return;
    if (load.num_decode != decode_load_) decode_seconds_ = decode_seconds(load.num_decode);
    decode_load_ = load.num_decode;
    follow(decode_seconds_, seconds);
    return;
  }
  if (load.num_prefill < kLeastSample && token_seconds_ > 0) return;
  note_overshoot(load, seconds);
  // Less decoding is taken off than may have happened, so that no token seems cheaper than it is.
  const double share =
      decode_load_ == 0 ? 0.0 : std::min(1.0, static_cast<double>(load.num_decode) / decode_load_);
  const double prefill = std::max(seconds - share * decode_seconds_, 0.0);
  follow(token_seconds_, prefill / load.num_prefill);
  largest_prefill_ = std::max(largest_prefill_, load.num_prefill);
}

void StepCost::note_overshoot(const StepLoad& load, double seconds) {
  const double expected = decode_seconds(load.num_decode) + load.num_prefill * token_seconds_;
  if (load.num_decode == 0 || decode_load_ == 0 || token_seconds_ <= 0) return;
  const double ratio = std::clamp(seconds / expected, 1.0, kMaxOvershoot);
  overshoot_ = std::max(ratio, overshoot_ + kOvershootDecay * (ratio - overshoot_));
}

int32_t StepCost::prefill_within(Duration limit, int32_t num_decode) const {
  const int32_t most = kMaxGrowth * std::max(largest_prefill_, kLeastSample);
  if (token_seconds_ <= 0) return most;
  const double seconds = to_seconds(limit);
  const double planned = kPlannedShare * seconds / overshoot_;
  const double left = std::max(planned - decode_seconds(num_decode), kLeastPrefillShare * seconds);
  const double num_tokens = std::round(left / token_seconds_);
  return static_cast<int32_t>(std::clamp(num_tokens, 1.0, static_cast<double>(most)));
}

}  // namespace nibble::engine
