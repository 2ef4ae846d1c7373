// What a request must satisfy before it is queued. Nothing after this checks its ids and ranges
// again.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "engine/request.h"

namespace nibble::engine {

struct RequestLimits {
  int32_t vocab_size = 0;
  int32_t max_context = 0;
};

inline constexpr int32_t kMaxTopLogprobs = 20;
inline constexpr int32_t kMaxStops = 64;  // of strings, and of ids: each costs time per token
inline constexpr int32_t kMaxStopBytes = 1024;

// kInvalidArgument with `param` naming the field; reason "context_length_exceeded" when prompt and
// max_tokens do not fit the context.
Result<void> validate_request(const Request& request, const RequestLimits& limits);

// max_tokens, or what the context leaves when it is 0. The request must be valid.
int32_t resolved_max_tokens(const Request& request, const RequestLimits& limits);

}  // namespace nibble::engine
