// One flag that ends all work of a pull: set by the first failure, or by the caller's own flag.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <utility>

namespace nibble::hub {

class Cancel final {
 public:
  // `is_interrupted` is asked often and from any thread; a null function never interrupts.
  explicit Cancel(std::function<bool()> is_interrupted = {})
      : is_interrupted_(std::move(is_interrupted)) {}

  void request() {
    {
      const std::lock_guard lock(mutex_);
      is_requested_ = true;
    }
    changed_.notify_all();
  }

  bool is_set() const {
    const std::lock_guard lock(mutex_);
    return is_requested_ || is_interrupted();
  }

  // True when the time passed without a cancel.
  bool sleep(std::chrono::milliseconds duration) const {
    constexpr std::chrono::milliseconds kSlice{50};  // how late the caller's flag may be seen
    const auto deadline = std::chrono::steady_clock::now() + duration;
    std::unique_lock lock(mutex_);
    while (!is_requested_ && !is_interrupted()) {
      const auto now = std::chrono::steady_clock::now();
      if (now >= deadline) return true;
      changed_.wait_until(lock, std::min(deadline, now + kSlice));
    }
    return false;
  }

 private:
  bool is_interrupted() const { return is_interrupted_ && is_interrupted_(); }

  const std::function<bool()> is_interrupted_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool is_requested_ = false;
};

}  // namespace nibble::hub
