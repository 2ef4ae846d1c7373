// Answers before a model is there: alive, not ready. Afterwards everything goes to the API.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <string_view>

#include "server/access_policy.h"
#include "server/http_server.h"

namespace nibble::server {

class FrontDoor final {
 public:
  // `access` must outlive it.
  explicit FrontDoor(const AccessPolicy& access) : access_(access) {}

  HttpHandlers handlers();
  // `api` must outlive the HTTP server. Once; any thread.
  void open(HttpHandlers api);

 private:
  const HttpHandlers* api() const { return api_.load(std::memory_order_acquire); }
  std::optional<HttpResponse> check_head(const HttpRequest& head) const;
  static HttpResponse answer(const HttpRequest& request);

  const AccessPolicy& access_;
  std::optional<HttpHandlers> opened_;
  std::atomic<const HttpHandlers*> api_ = nullptr;
};

}  // namespace nibble::server
