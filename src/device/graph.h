// Recorded work of a CUDA stream, and device time. In a build without the backend both answer
// kUnsupported.
#pragma once

#include <functional>
#include <utility>

#include "base/result.h"
#include "device/device.h"

namespace nibble::device {

// What `enqueue` launched on a stream, ready to be replayed with the same arguments.
class Graph final {
 public:
  // Errors of `enqueue` are passed on; nothing runs while it records.
  static Result<Graph> capture(Stream& stream, const std::function<Result<void>()>& enqueue);
  Result<void> launch(Stream& stream) const;

  Graph(Graph&& other) noexcept : native_(std::exchange(other.native_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept {
    std::swap(native_, other.native_);
    return *this;
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph();  // NOLINT(performance-trivially-destructible): only without the backend

 private:
  explicit Graph(void* native) : native_(native) {}

  void* native_ = nullptr;
};

// Device time from before to after what `enqueue` puts on the stream, in microseconds. Waits for
// it.
Result<double> elapsed_us(Stream& stream, const std::function<Result<void>()>& enqueue);

}  // namespace nibble::device
