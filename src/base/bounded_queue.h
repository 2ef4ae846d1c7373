// A bounded queue of values between threads: the only way that objects cross a thread border.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace nibble {

template <class T>
class BoundedQueue final {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  // False when the queue is full or closed; the value is then left with the caller.
  bool try_push(T&& value) {
    {
      const std::lock_guard lock(mutex_);
      if (is_closed_ || items_.size() >= capacity_) return false;
      items_.push_back(std::move(value));
    }
    ready_.notify_one();
    return true;
  }

  // Blocks until a value arrives; nullopt once the queue is closed and drained.
  std::optional<T> pop() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [&] { return is_closed_ || !items_.empty(); });
    return take_front();
  }

  std::optional<T> try_pop() {
    const std::lock_guard lock(mutex_);
    return take_front();
  }

  // No further pushes succeed; waiting consumers drain what is left.
  void close() {
    {
      const std::lock_guard lock(mutex_);
      is_closed_ = true;
    }
    ready_.notify_all();
  }

  size_t size() const {
    const std::lock_guard lock(mutex_);
    return items_.size();
  }

 private:
  std::optional<T> take_front() {
    if (items_.empty()) return std::nullopt;
    std::optional<T> value(std::move(items_.front()));
    items_.pop_front();
    return value;
  }

  const size_t capacity_;  // the bound of items_
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<T> items_;
  bool is_closed_ = false;
};

}  // namespace nibble
