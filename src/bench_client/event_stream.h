// Server-sent events from bytes that arrive in any pieces. Source: WHATWG HTML, section 9.2.6.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace nibble::bench_client {

class EventStreamParser final {
 public:
  static constexpr size_t kMaxEventBytes = 16 << 20;

  // Hands the data of each event that `bytes` completes to `sink`. False when an event is larger
  // than kMaxEventBytes; nothing is parsed from then on.
  bool feed(std::string_view bytes, const std::function<void(std::string_view data)>& sink);

 private:
  void take_line(std::string_view line, const std::function<void(std::string_view)>& sink);

  std::string line_;  // without its end, which has not arrived
  std::string data_;  // of the event so far
  bool has_data_ = false;
  bool skip_line_feed_ = false;  // of a CR LF that was cut in two
  bool is_too_large_ = false;
};

}  // namespace nibble::bench_client
