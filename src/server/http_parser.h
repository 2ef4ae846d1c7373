// Bytes of a connection to HTTP requests, one after the other. Pure: no sockets, no clocks. Heads
// go through Beast's parser, which refuses smuggling (both length and chunking, several lengths,
// bare LF); limits are enforced while bytes arrive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "server/http_message.h"

namespace nibble::server {

struct HttpLimits {
  uint32_t header_bytes = 32 << 10;
  uint64_t body_bytes = 8 << 20;
};

class HttpParser final {
 public:
  enum class State {
    kNeedMore,  // all given bytes are used, or must be given again together with more
    kHead,      // the head is complete: request() is filled except for its body; go on feeding
    kDone,      // the request is complete: take it
    kFault,     // fault_status() and fault_text() tell why; the connection cannot be used further
  };
  struct Progress {
    State state = State::kNeedMore;
    size_t num_used = 0;
  };

  explicit HttpParser(const HttpLimits& limits);
  ~HttpParser();
  HttpParser(HttpParser&&) noexcept;
  HttpParser& operator=(HttpParser&&) noexcept;

  // Uses the front of `bytes`: the head only when it is complete in one piece, the body as it
  // comes. Reports kHead once, kDone once; never reads past the end of the request.
  Progress feed(std::string_view bytes);

  const HttpRequest& request() const;
  HttpRequest take_request();
  // The client waits for "100 Continue" before it sends the body. Valid from kHead on.
  bool expects_continue() const;

  int fault_status() const;
  const char* fault_text() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble::server
