// The body of a request as a JSON document.
#pragma once

#include <cstdint>

#include "base/json.h"
#include "base/result.h"
#include "server/http_message.h"

namespace nibble::server {

// Bounded by what a prompt of `max_context` token ids needs. Faults have the reason "invalid_json".
Result<json::Value> parse_body(const HttpRequest& request, int32_t max_context);

}  // namespace nibble::server
