#include "server/access_policy.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/error_response.h"
#include "server/http_server.h"

namespace nibble::server {
namespace {

// The host of a Host field: "name:port", "1.2.3.4", "[::1]:port". Empty when it is neither.
std::string_view host_of(std::string_view field) {
  if (field.starts_with('[')) {
    const size_t close = field.find(']');
    return close == std::string_view::npos ? std::string_view() : field.substr(1, close - 1);
  }
  const size_t colon = field.find(':');
  const bool has_two_colons = colon != field.rfind(':');
  return has_two_colons ? std::string_view() : field.substr(0, colon);
}

HttpResponse forbidden(std::string message, std::string reason) {
  return error_response(403, {Errc::kInvalidArgument, std::move(message), std::move(reason), {}});
}

std::string_view bearer_token(const std::string& authorization) {
  constexpr std::string_view kScheme = "bearer ";
  const std::string_view text = authorization;
  if (text.size() <= kScheme.size() ||
      !equals_ignoring_case(text.substr(0, kScheme.size()), kScheme)) {
    return {};
  }
  return trim(text.substr(kScheme.size()));
}

// "Authorization: Bearer KEY", or "x-api-key: KEY" as Anthropic's clients send it. Empty: none.
std::string_view presented_key(const HttpRequest& request) {
  const std::string* authorization = request.header("authorization");
  if (authorization != nullptr) return bearer_token(*authorization);
  const std::string* key = request.header("x-api-key");
  return key == nullptr ? std::string_view() : trim(*key);
}

}  // namespace

Result<void> check_bind_address(std::string_view host, const ApiKeys& keys, std::string_view flag) {
  if (!keys.empty() || is_loopback_address(host)) return {};
  return invalid_argument(fmt::format(
      "host {}: other machines could use this server without a key. Give {} FILE, or listen on "
      "127.0.0.1.",
      host,
      flag));
}

std::optional<HttpResponse> AccessPolicy::refusal(const HttpRequest& request, Access access) const {
  const int32_t num_hosts = request.count_header("host");
  if (num_hosts > 1 || (num_hosts == 0 && request.is_http11)) {
    return error_response(400, invalid_argument("expected exactly one Host field"));
  }
  if (access == Access::kAdmin) return admin_refusal(request);
  if (options_.keys.empty()) return browser_refusal(request);
  if (access == Access::kPublic) return std::nullopt;
  const std::string_view key = presented_key(request);
  const bool is_user = options_.keys.accepts(key);
  const bool is_admin = options_.admin_keys.accepts(key);
  return key_refusal(request, is_user || is_admin);
}

// Without an admin key only a server without keys, or its admin port, lets anybody on this machine
// do it: a key for completions must not be one for everything.
std::optional<HttpResponse> AccessPolicy::admin_refusal(const HttpRequest& request) const {
  if (!options_.admin_keys.empty()) {
    return key_refusal(request, options_.admin_keys.accepts(presented_key(request)));
  }
  if (options_.keys.empty() || request.listener == Listener::kAdmin) {
    return browser_refusal(request);
  }
  return forbidden("this route needs an admin key; the server was started without any",
                   "admin_key_required");
}

std::optional<HttpResponse> AccessPolicy::key_refusal(const HttpRequest& request,
                                                      bool is_accepted) const {
  if (is_accepted) return std::nullopt;
  const char* message = presented_key(request).empty()
                            ? "no API key: send 'Authorization: Bearer KEY'"
                            : "wrong API key";
  HttpResponse response =
      error_response(401, {Errc::kInvalidArgument, message, "invalid_api_key", {}});
  response.headers.push_back({"www-authenticate", "Bearer"});
  return response;
}

KeyId AccessPolicy::owner_of(const HttpRequest& request) const {
  if (options_.keys.empty() && options_.admin_keys.empty()) return {};
  const std::string_view key = presented_key(request);
  const std::optional<KeyId> user = options_.keys.find(key);
  const std::optional<KeyId> admin = options_.admin_keys.find(key);
  return user ? *user : admin.value_or(KeyId{});
}

bool AccessPolicy::is_admin(const HttpRequest& request) const {
  return !admin_refusal(request).has_value();
}

std::optional<HttpResponse> AccessPolicy::browser_refusal(const HttpRequest& request) const {
  const std::string* host = request.header("host");
  if (host != nullptr && !is_own_host(*host)) {
    return forbidden(
        "the Host field does not name this machine; a server without an API key answers to "
        "localhost, 127.0.0.1 and [::1] only",
        "host_not_allowed");
  }
  const std::string own = host == nullptr ? "" : *host;
  const auto is_foreign_origin = [&](const Header& field) {
    return equals_ignoring_case(field.name, "origin") && field.value != "http://" + own &&
           field.value != "https://" + own;
  };
  if (std::none_of(request.headers.begin(), request.headers.end(), is_foreign_origin)) {
    return std::nullopt;
  }
  return forbidden("web pages of other origins may not use a server without an API key",
                   "origin_not_allowed");
}

bool AccessPolicy::is_own_host(std::string_view host_field) const {
  const std::string_view host = host_of(host_field);
  const auto is_same = [&](const std::string& allowed) {
    return equals_ignoring_case(allowed, host);
  };
  return is_loopback_address(host) ||
         std::any_of(options_.allowed_hosts.begin(), options_.allowed_hosts.end(), is_same);
}

}  // namespace nibble::server
