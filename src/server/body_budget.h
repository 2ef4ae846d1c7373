// A bound on the bytes of request bodies that the whole server holds at a time, from their arrival
// until they are parsed. Safe to use from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace nibble::server {

class BodyBudget final {
 public:
  explicit BodyBudget(uint64_t bytes_max) : bytes_max_(bytes_max) {}

  uint64_t bytes_held() const { return bytes_held_.load(std::memory_order_relaxed); }

  // The share of one body; gives its bytes back at its end, which may be after that of the budget's
  // owner.
  class Share final {
   public:
    explicit Share(std::shared_ptr<BodyBudget> budget) : budget_(std::move(budget)) {}
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    ~Share() { budget_->bytes_held_.fetch_sub(bytes_, std::memory_order_relaxed); }

    // False, and nothing changes, when the server holds too much already.
    bool grow_to(uint64_t bytes) {
      const uint64_t more = bytes - bytes_;
      const uint64_t held = budget_->bytes_held_.fetch_add(more, std::memory_order_relaxed) + more;
      if (held > budget_->bytes_max_) {
        budget_->bytes_held_.fetch_sub(more, std::memory_order_relaxed);
        return false;
      }
      bytes_ = bytes;
      return true;
    }

   private:
    const std::shared_ptr<BodyBudget> budget_;
    uint64_t bytes_ = 0;
  };

 private:
  const uint64_t bytes_max_;
  std::atomic<uint64_t> bytes_held_ = 0;
};

}  // namespace nibble::server
