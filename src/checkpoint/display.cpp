#include "checkpoint/display.h"

#include <fmt/format.h>

#include "base/json.h"
#include "base/utf8.h"

namespace nibble::checkpoint {
namespace {

constexpr size_t kMaxNameBytes = 160;
constexpr size_t kMaxValueBytes = 80;

std::string cut(std::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return escape_for_display(text);
  std::string_view head = text.substr(0, max_bytes);
  head.remove_suffix(static_cast<size_t>(incomplete_utf8_suffix(head)));
  return escape_for_display(head) + fmt::format("... ({} bytes)", text.size());
}

}  // namespace

std::string display_name(std::string_view text) { return cut(text, kMaxNameBytes); }

std::string display_value(const json::Value& value) {
  if (value.is_null()) return "null";
  if (value.is_array()) return fmt::format("array of {}", value.as_array()->size());
  if (value.is_object()) return fmt::format("object of {}", value.as_object()->size());
  return fmt::format(
      "{} {}", value.kind_name(), cut(json::dump(value, json::Style::kPython), kMaxValueBytes));
}

}  // namespace nibble::checkpoint
