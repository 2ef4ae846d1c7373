// Who may talk to the server: the bind rule, API keys, and the checks that keep web pages away from
// a keyless server on loopback (DNS rebinding and cross-site requests). No CORS headers are ever
// sent.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "server/api_keys.h"
#include "server/http_message.h"

namespace nibble::server {

// kInvalidArgument unless `host` is a loopback address or keys protect the server.
Result<void> check_bind_address(std::string_view host, const ApiKeys& keys);

class AccessPolicy final {
 public:
  // `allowed_hosts`: further names that a keyless server may be called by, e.g. behind a local
  // proxy.
  AccessPolicy(ApiKeys keys, std::vector<std::string> allowed_hosts)
      : keys_(std::move(keys)), allowed_hosts_(std::move(allowed_hosts)) {}

  // The refusal of a request (400, 401 or 403), or nothing. `is_public`: needs no key.
  std::optional<HttpResponse> refusal(const HttpRequest& request, bool is_public) const;

  const ApiKeys& keys() const { return keys_; }

 private:
  std::optional<HttpResponse> key_refusal(const HttpRequest& request) const;
  std::optional<HttpResponse> browser_refusal(const HttpRequest& request) const;
  bool is_own_host(std::string_view host_field) const;

  ApiKeys keys_;
  std::vector<std::string> allowed_hosts_;
};

}  // namespace nibble::server
