// A mark in the order of a stream's work that the host can wait for.
#pragma once

#include <utility>

#include "base/result.h"
#include "device/device.h"

namespace nibble::device {

// On streams that run each launch to completion (host, emulated GPU) there is nothing to wait for.
class Event final {
 public:
  Event() = default;
  // Marks what was put on the stream so far; a further call moves the mark.
  Result<void> record(Stream& stream);
  // Returns once the marked work is done; at once when nothing is marked. kUnavailable where it
  // failed.
  Result<void> wait() const;

  Event(Event&& other) noexcept : native_(std::exchange(other.native_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(native_, other.native_);
    return *this;
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event();  // NOLINT(performance-trivially-destructible): only without the backend

 private:
  void* native_ = nullptr;
};

}  // namespace nibble::device
