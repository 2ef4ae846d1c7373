// What one request brought, and when: read from the bytes of an OpenAI-compatible answer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "bench_client/event_stream.h"

namespace nibble::bench_client {

// Why a request brought no complete answer. `kind` is a short word to count by: "connect",
// "timeout", "connection_lost", "http_429" (any status), "stream_error" (an error event),
// "truncated" (a stream without its end), "malformed", "empty" (no token).
struct Failure {
  std::string kind;
  std::string message;
};

struct Reply {
  std::string text;  // content, without reasoning
  // Of each event that carried text, reasoning or a piece of a tool call. The event that only names
  // the role is no token.
  std::vector<TimePoint> token_times;
  std::string finish_reason;
  // As the server counts; absent when it does not say.
  std::optional<int64_t> prompt_tokens;
  std::optional<int64_t> completion_tokens;
  std::optional<int64_t> cached_tokens;
  std::optional<Failure> failure;
};

// Reads one answer, chat or text completion, streamed or whole.
class ReplyReader final {
 public:
  explicit ReplyReader(bool is_stream) : is_stream_(is_stream) {}

  // The next bytes of a body with status 200. False when reading on is pointless.
  bool feed(std::string_view bytes, TimePoint now);
  // The body is complete.
  Reply finish(TimePoint now);

 private:
  void take_event(std::string_view data, TimePoint now);
  void take_object(std::string_view text, TimePoint now);
  void fail(std::string kind, std::string message);

  bool is_stream_;
  EventStreamParser events_;
  std::string body_;  // of an answer that is not a stream; at most kMaxEventBytes
  bool is_done_ = false;
  Reply reply_;
};

// The message in an error body of any of the known shapes, or the beginning of the body itself.
std::string error_message(std::string_view body);

}  // namespace nibble::bench_client
