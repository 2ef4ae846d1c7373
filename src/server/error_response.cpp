#include "server/error_response.h"

#include <string_view>
#include <utility>

namespace nibble::server {
namespace {

const char* type_of(int status) {
  if (status == 403) return "permission_error";
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

// The code of errors that carry no more specific reason.
std::string_view default_code(Errc code) {
  switch (code) {
    case Errc::kInvalidArgument:
      return "";
    case Errc::kNotFound:
      return "not_found";
    case Errc::kUnsupported:
      return "unsupported";
    case Errc::kExhausted:
      return "queue_full";
    case Errc::kUnavailable:
      return "unavailable";
    case Errc::kCancelled:
      return "cancelled";
    case Errc::kDataLoss:
    case Errc::kInternal:
      return "internal_error";
  }
  return "internal_error";
}

json::Value string_or_null(std::string_view text) {
  return text.empty() ? json::Value() : json::Value(text);
}

}  // namespace

int http_status(Errc code) {
  switch (code) {
    case Errc::kInvalidArgument:
    case Errc::kUnsupported:
      return 400;
    case Errc::kNotFound:
      return 404;
    case Errc::kExhausted:
      return 429;
    case Errc::kUnavailable:
    case Errc::kCancelled:
      return 503;
    case Errc::kDataLoss:
    case Errc::kInternal:
      return 500;
  }
  return 500;
}

// Clients do not try again after 499, which nginx uses for those that gave up.
int http_status(const Error& error) {
  if (error.reason == "deadline_exceeded") return 504;
  if (error.reason == "aborted") return 499;
  return http_status(error.code);
}

std::string error_name(const Error& error) {
  if (!error.reason.empty()) return error.reason;
  const std::string_view code = default_code(error.code);
  return std::string(code.empty() ? errc_name(error.code) : code);
}

json::Object error_body(int status, const Error& error) {
  const std::string_view code = error.reason.empty() ? default_code(error.code) : error.reason;
  json::Object fields = json::make_object({{"message", error.message},
                                           {"type", type_of(status)},
                                           {"param", string_or_null(error.param)},
                                           {"code", string_or_null(code)}});
  return json::make_object({{"error", std::move(fields)}});
}

HttpResponse error_response(int status, const Error& error) {
  return json_response(error_body(status, error), status);
}

HttpResponse error_response(const Error& error) {
  return error_response(http_status(error), error);
}

HttpResponse error_response(const Error& error, int32_t retry_after_seconds) {
  HttpResponse response = error_response(error);
  response.headers.push_back({"retry-after", std::to_string(retry_after_seconds)});
  return response;
}

HttpResponse json_response(const json::Value& body, int status) {
  HttpResponse response;
  response.status = status;
  response.body = json::dump(body, json::Style::kCompact);
  return response;
}

}  // namespace nibble::server
