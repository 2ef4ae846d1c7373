#include "bench_client/event_stream.h"

namespace nibble::bench_client {

bool EventStreamParser::feed(std::string_view bytes,
                             const std::function<void(std::string_view data)>& sink) {
  while (!bytes.empty() && !is_too_large_) {
    if (skip_line_feed_ && bytes.front() == '\n') bytes.remove_prefix(1);
    skip_line_feed_ = false;
    const size_t end = bytes.find_first_of("\r\n");
    line_ += bytes.substr(0, end);
    is_too_large_ = line_.size() + data_.size() > kMaxEventBytes;
    if (end == std::string_view::npos || is_too_large_) break;
    skip_line_feed_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    take_line(line_, sink);
    line_.clear();
  }
  return !is_too_large_;
}

void EventStreamParser::take_line(std::string_view line,
                                  const std::function<void(std::string_view)>& sink) {
  if (line.empty()) {
    if (has_data_) sink(data_);
    data_.clear();
    has_data_ = false;
    return;
  }
  constexpr std::string_view kField = "data";
  const std::string_view name = line.substr(0, line.find(':'));
  if (name != kField) return;  // comments, and fields that this protocol does not use
  std::string_view value = line.substr(kField.size());
  if (value.starts_with(':')) value.remove_prefix(1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (has_data_) data_ += '\n';
  data_ += value;
  has_data_ = true;
}

}  // namespace nibble::bench_client
