// Token ids as JSON.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace nibble::cli {

// Enough for inputs of a million tokens, which the limits for requests are not.
inline constexpr json::Limits kIdArrayLimits{
    .max_depth = 64, .max_nodes = 32'000'000, .max_bytes = 512 << 20};

// `what` names the text in messages, here and below.
Result<json::Value> parse_id_arrays(std::string_view text, std::string_view what);

// An array of integers.
Result<std::vector<int32_t>> ids_from_json(const json::Value& value, std::string_view what);
// The same, or an object whose "ids" is one.
Result<std::vector<int32_t>> ids_from_document(const json::Value& value, std::string_view what);

json::Value ids_to_json(const std::vector<int32_t>& ids);

}  // namespace nibble::cli
