// The last requests that ended, as numbers only: for the status page. Owner: the I/O thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string_view>

#include "base/clock.h"
#include "engine/request.h"
#include "server/key_id.h"

namespace nibble::server {

struct RecentRequest {
  KeyId owner;
  TimePoint ended_at;
  std::string_view outcome;  // static text: "stop", "length", "abort", "error", "disconnect", ...
  engine::Usage usage;       // zeros for a client that left
  double queue_seconds = 0;
  double prefill_seconds = 0;
  double decode_seconds = 0;
  double total_seconds = 0;  // since arrival
};

// Holds no text of any request, no id and no address. Shared by all keys: a busy one leaves less of
// the others.
class RecentRequests final {
 public:
  static constexpr size_t kCapacity = 50;

  void add(const RecentRequest& request) {
    requests_.push_front(request);
    if (requests_.size() > kCapacity) requests_.pop_back();
  }
  const std::deque<RecentRequest>& newest_first() const { return requests_; }

 private:
  std::deque<RecentRequest> requests_;  // at most kCapacity
};

}  // namespace nibble::server
