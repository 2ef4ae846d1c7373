#include "engine/step_cost.h"

#include <algorithm>
#include <cmath>

namespace nibble::engine {
namespace {

constexpr double kWeight = 0.25;  // of a new observation
// Forgotten slowly: disturbances come again.
constexpr double kOvershootWeight = 0.03;
constexpr double kMaxOvershoot = 4;
// Share of the limit that a step is planned to take. The rest absorbs a context that grows from
// chunk to chunk and a machine that is not always equally fast.
constexpr double kPlannedShare = 0.7;
// What prefill gets where decoding alone reaches the limit.
constexpr double kLeastPrefillShare = 0.1;
constexpr int32_t kMaxGrowth = 4;
// Chunks below this say little about the cost of a token.
constexpr int32_t kLeastSample = 16;

void follow(double& estimate, double sample) { estimate += kWeight * (sample - estimate); }

}  // namespace

// More sequences cost at most proportionally more; fewer are not assumed to cost less, since a step
// may be bound by its weights.
double StepCost::decode_seconds(int32_t num_decode) const {
  if (decode_load_ == 0) return 0;
  return decode_seconds_ * std::max(1.0, static_cast<double>(num_decode) / decode_load_);
}

void StepCost::observe(const StepLoad& load, Duration duration) {
  if (load.num_prefill > 0) {
    observe_prefill(load, to_seconds(duration));
  } else if (load.num_decode > 0) {
    observe_decode(load.num_decode, to_seconds(duration));
  }
}

void StepCost::observe_decode(int32_t num_decode, double seconds) {
  if (decode_load_ == 0) {
    decode_seconds_ = seconds;
  } else {
    decode_seconds_ = decode_seconds(num_decode);
    follow(decode_seconds_, seconds);
  }
  decode_load_ = num_decode;
}

void StepCost::observe_prefill(const StepLoad& load, double seconds) {
  const bool is_small = load.num_prefill < kLeastSample && token_seconds_ > 0;
  // Where the plan itself asks for small chunks, they must be able to lead out of there.
  const bool is_planned = load.num_prefill >= planned_;
  if (is_small && !is_planned) return;
  note_overshoot(load, seconds);
  // The decoding in this step took no longer than all of it: what a single slow step taught does
  // not stay while none is without prefill.
  const double decode = decode_seconds(load.num_decode);
  if (load.num_decode > 0 && seconds < decode) {
    decode_seconds_ *= 1 - kWeight * (1 - seconds / decode);
  }
  // Less decoding is taken off than may have happened, so that no token seems cheaper than it is.
  const double share =
      decode_load_ == 0 ? 0.0 : std::min(1.0, static_cast<double>(load.num_decode) / decode_load_);
  const double sample = std::max(seconds - share * decode_seconds_, 0.0) / load.num_prefill;
  if (token_seconds_ <= 0) {
    token_seconds_ = sample;
  } else if (!is_small || sample < token_seconds_) {
    follow(token_seconds_, sample);
  }
  largest_prefill_ = std::max(largest_prefill_, load.num_prefill);
}

void StepCost::note_overshoot(const StepLoad& load, double seconds) {
  if (load.num_decode == 0 || decode_load_ == 0 || token_seconds_ <= 0) return;
  const double expected = decode_seconds(load.num_decode) + load.num_prefill * token_seconds_;
  const double ratio = std::clamp(seconds / expected, 1.0, kMaxOvershoot);
  overshoot_ = std::max(ratio, overshoot_ + kOvershootWeight * (ratio - overshoot_));
}

int32_t StepCost::prefill_within(Duration limit, int32_t num_decode) {
  const int32_t most = kMaxGrowth * std::max(largest_prefill_, kLeastSample);
  planned_ = most;
  if (token_seconds_ <= 0) return planned_;
  const double seconds = to_seconds(limit);
  const double planned = kPlannedShare * seconds / overshoot_;
  const double left = std::max(planned - decode_seconds(num_decode), kLeastPrefillShare * seconds);
  const double num_tokens = std::round(left / token_seconds_);
  planned_ = static_cast<int32_t>(std::clamp(num_tokens, 1.0, static_cast<double>(most)));
  return planned_;
}

}  // namespace nibble::engine
