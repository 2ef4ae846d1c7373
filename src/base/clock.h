// Monotonic time behind a seam, so that engine simulations run on a fake clock. Wall time is only
// for display.
#pragma once

#include <chrono>

namespace nibble {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
};

inline double to_seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace nibble
