// Many HTTP exchanges at a time on one thread, over libcurl's multi interface. Bytes go to the
// caller as they arrive; nothing is retried or followed. Proxies are never used: they would be
// measured, too.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "bench_client/reply.h"

namespace nibble::bench_client {

struct HttpCall {
  std::string url;
  std::vector<std::string> headers;  // "name: value"
  std::optional<std::string> body;   // POST; without it GET
  Duration timeout = std::chrono::hours(1);
};

struct HttpOutcome {
  int32_t status = 0;  // 0: no answer arrived
  std::optional<int32_t> retry_after_seconds;
  std::optional<Failure> failure;  // of the network; also beside a status
};

class HttpClient final {
 public:
  HttpClient();
  ~HttpClient();  // gives up what is active
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // False from `on_bytes` ends the exchange.
  using OnBytes = std::function<bool(int32_t status, std::string_view bytes)>;
  using OnDone = std::function<void(HttpOutcome outcome)>;
  // Callbacks come out of wait(); only on_done may start further exchanges.
  void start(HttpCall call, OnBytes on_bytes, OnDone on_done);
  // Moves everything that is active; returns after something happened or `at_most` has passed.
  void wait(Duration at_most);
  int32_t num_active() const;

  // One exchange from start to end; the body goes to `body`. Nothing else may be active.
  HttpOutcome run(HttpCall call, std::string& body);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble::bench_client
