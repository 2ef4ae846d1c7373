// Errors as clients of the OpenAI protocol see them: status, {"error":{message, type, param,
// code}}, Retry-After.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"
#include "server/http_message.h"

namespace nibble::server {

// The one place that maps error classes to HTTP statuses.
int http_status(Errc code);
// With the reasons that have a status of their own: a deadline, an abort.
int http_status(const Error& error);

// What errors are called in metrics and logs: the code that clients see, or that of the error's
// class where they see none.
std::string error_name(const Error& error);

// The `error` object in its envelope. An empty param or code becomes null.
json::Object error_body(int status, const Error& error);

HttpResponse error_response(int status, const Error& error);
HttpResponse error_response(const Error& error);
// Adds Retry-After, which SDKs honour instead of their own short back-off.
HttpResponse error_response(const Error& error, int32_t retry_after_seconds);

// Puts an error response of the OpenAI protocol into another protocol's form. Null: leave it.
using ErrorAdapter = HttpResponse (*)(HttpResponse response, std::string_view request_id);

// A response with a compact JSON body.
HttpResponse json_response(const json::Value& body, int status = 200);

}  // namespace nibble::server
