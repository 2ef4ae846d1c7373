// Who may talk to the server: the bind rule, API keys, and the checks that keep web pages away from
// a keyless server on loopback (DNS rebinding and cross-site requests). No CORS headers are ever
// sent.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "server/api_keys.h"
#include "server/http_message.h"

namespace nibble::server {

// What a route asks of its caller.
enum class Access {
  kPublic,  // no key: the health checks, the files of the status page
  kUser,    // one of the keys, or an admin key
  kAdmin,   // an admin key
};

// kInvalidArgument unless `host` is a loopback address or keys protect the server. `flag` is the
// one that would give it keys.
Result<void> check_bind_address(std::string_view host, const ApiKeys& keys, std::string_view flag);

class AccessPolicy final {
 public:
  struct Options {
    ApiKeys keys = {};
    ApiKeys admin_keys = {};
    // Further names that a keyless server may be called by, e.g. behind a local proxy.
    std::vector<std::string> allowed_hosts = {};
  };
  explicit AccessPolicy(Options options) : options_(std::move(options)) {}

  // From now on. Like everything here, on the I/O thread once the server runs.
  void replace_keys(ApiKeys keys, ApiKeys admin_keys) {
    options_.keys = std::move(keys);
    options_.admin_keys = std::move(admin_keys);
  }

  // The refusal of a request (400, 401 or 403), or nothing.
  std::optional<HttpResponse> refusal(const HttpRequest& request, Access access) const;

  // Whose request it is; call it for requests that were not refused.
  KeyId owner_of(const HttpRequest& request) const;
  // True when it came with an admin key, or when nobody needs any key.
  bool is_admin(const HttpRequest& request) const;

 private:
  std::optional<HttpResponse> admin_refusal(const HttpRequest& request) const;
  std::optional<HttpResponse> key_refusal(const HttpRequest& request, bool is_accepted) const;
  std::optional<HttpResponse> browser_refusal(const HttpRequest& request) const;
  bool is_own_host(std::string_view host_field) const;

  Options options_;
};

}  // namespace nibble::server
