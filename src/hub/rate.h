// How fast bytes arrive and how long the rest takes, smoothed over the last seconds.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>

#include "base/clock.h"

namespace nibble::hub {

class RateMeter final {
 public:
  // `bytes` is the total so far and never shrinks.
  void add(TimePoint now, int64_t bytes) {
    if (!samples_.empty() && now - samples_.back().time < kSpacing) return;
    samples_.push_back({now, bytes});
    while (samples_.size() > kMaxSamples) samples_.pop_front();
  }

  // nullopt until there are two samples, and while nothing arrives.
  std::optional<double> bytes_per_second() const {
    if (samples_.size() < 2) return std::nullopt;
    const double seconds = to_seconds(samples_.back().time - samples_.front().time);
    const auto bytes = static_cast<double>(samples_.back().bytes - samples_.front().bytes);
    if (seconds <= 0 || bytes <= 0) return std::nullopt;
    return bytes / seconds;
  }

  std::optional<std::chrono::seconds> time_for(int64_t bytes) const {
    const std::optional<double> rate = bytes_per_second();
    if (!rate) return std::nullopt;
    return std::chrono::seconds(static_cast<int64_t>(static_cast<double>(bytes) / *rate));
  }

 private:
  static constexpr std::chrono::milliseconds kSpacing{250};
  static constexpr size_t kMaxSamples = 60;  // 15 s

  struct Sample {
    TimePoint time;
    int64_t bytes = 0;
  };
  std::deque<Sample> samples_;  // at most kMaxSamples
};

}  // namespace nibble::hub
