#include "server/request_body.h"

#include <utility>

namespace nibble::server {

Result<json::Value> parse_body(const HttpRequest& request, int32_t max_context) {
  // Token ids of the longest prompt, twice, and ample room for everything else.
  const json::Limits limits = {.max_nodes = 1'000'000 + 2 * int64_t{max_context},
                               .max_bytes = INT64_MAX};
  Result<json::Value> parsed = json::parse(request.body, limits);
  if (parsed.ok()) return parsed;
  Error error = std::move(parsed).error();
  error.reason = "invalid_json";
  return error;
}

}  // namespace nibble::server
