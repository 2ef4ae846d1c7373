// JSON of requests: what parses prints to a text that parses to the same, in both styles; and our
// parser accepts what simdjson's DOM parser accepts, except for what our own rules refuse.
#define SIMDJSON_EXCEPTIONS 0
#include <simdjson.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/json.h"

namespace {

using nibble::json::Style;
using nibble::json::Value;

std::string reprint(std::string_view text, Style style) {
  const auto value = nibble::json::parse(text);
  CHECK(value.ok()) << value.error().message << " in " << text;
  return nibble::json::dump(*value, style);
}

void check_round_trip(const Value& value) {
  const std::string python = nibble::json::dump(value, Style::kPython);
  const std::string compact = nibble::json::dump(value, Style::kCompact);
  CHECK(reprint(python, Style::kPython) == python) << python;
  CHECK(reprint(compact, Style::kCompact) == compact) << compact;
  CHECK(reprint(compact, Style::kPython) == python) << python;
}

// Limits, duplicate keys and byte order marks are ours; the DOM parser knows nothing of them.
// Exponents beyond 64 bits are refused by simdjson's on-demand parser only.
bool is_own_rule(std::string_view message) {
  for (const std::string_view part :
       {"duplicate key", "nested deeper", "more than", "byte order mark", "parsing a number"}) {
    if (message.find(part) != std::string_view::npos) return true;
  }
  return false;
}

// Integers beyond 64 bits are errors of the DOM parser, and it gives depth faults earlier.
bool is_dom_limit(simdjson::error_code fault) {
  return fault == simdjson::NUMBER_ERROR || fault == simdjson::DEPTH_ERROR;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto value = nibble::json::parse(text);
  if (value.ok()) check_round_trip(*value);

  simdjson::dom::parser dom;
  simdjson::dom::element root;
  const simdjson::error_code fault = dom.parse(simdjson::padded_string(text)).get(root);
  if (value.ok()) {
    CHECK(fault == simdjson::SUCCESS || is_dom_limit(fault)) << simdjson::error_message(fault);
  } else if (fault == simdjson::SUCCESS) {
    CHECK(is_own_rule(value.error().message)) << value.error().message;
  }
  return 0;
}
