#include "quant/config_values.h"

#include <fmt/format.h>

#include <utility>

#include "base/utf8.h"

namespace nibble::quant {

std::string_view string_at(const json::Value& object, std::string_view key) {
  const json::Value* value = object.find(key);
  const std::string* text = value == nullptr ? nullptr : value->as_string();
  return text == nullptr ? std::string_view() : *text;
}

void ConfigValues::error(std::string_view code, std::string message) {
  message += '.';
  diagnostics_.push_back(
      {.severity = Severity::kError, .code = std::string(code), .message = std::move(message)});
}

void ConfigValues::unknown(std::string_view key,
                           std::string_view value,
                           std::string_view file,
                           std::string_view known) {
  error("Q-D1",
        fmt::format("{} {} ({}) is not known to this version; known: {}. Fix: convert the "
                    "checkpoint, or use a version of Nibble that knows it",
                    key,
                    quoted(value),
                    file,
                    known));
}

void ConfigValues::wrong(std::string_view key,
                         const json::Value& value,
                         std::string_view expected) {
  const std::string found = json::dump(value, json::Style::kCompact);
  error("Q-D1",
        fmt::format("{} {} in a quantization section; expected {}. Fix: correct the file, or "
                    "fetch it again",
                    key,
                    escape_for_display(std::string_view(found).substr(0, 80)),
                    expected));
}

int32_t ConfigValues::integer_at(const json::Value& object,
                                 std::string_view key,
                                 int32_t fallback) {
  constexpr int64_t kMax = 1 << 20;
  const json::Value* value = object.find(key);
  if (value == nullptr || value->is_null()) return fallback;
  const std::optional<int64_t> number = value->as_int64();
  if (number && *number >= -1 && *number <= kMax) return static_cast<int32_t>(*number);
  wrong(key, *value, fmt::format("an integer from -1 to {}", kMax));
  return fallback;
}

int32_t ConfigValues::bits_at(const json::Value& object, std::string_view key, int32_t fallback) {
  const int32_t bits = integer_at(object, key, fallback);
  if (bits == fallback || (bits >= 2 && bits <= 8) || bits == 16) return bits;
  wrong(key, *object.find(key), "2 to 8, or 16 for not quantized");
  return fallback;
}

bool ConfigValues::bool_at(const json::Value& object, std::string_view key) {
  const json::Value* value = object.find(key);
  if (value == nullptr || value->is_null()) return false;
  const bool* flag = value->as_bool();
  if (flag == nullptr) wrong(key, *value, "true or false");
  return flag != nullptr && *flag;
}

std::optional<BlockShape> ConfigValues::block_at(const json::Value& object, std::string_view key) {
  const json::Value* value = object.find(key);
  if (value == nullptr || value->is_null()) return std::nullopt;
  if (const json::Array* array = value->as_array(); array != nullptr && array->size() == 2) {
    const std::optional<int64_t> n = (*array)[0].as_int64();
    const std::optional<int64_t> k = (*array)[1].as_int64();
    if (n && k && *n >= 1 && *k >= 1 && *n <= 1 << 16 && *k <= 1 << 16) {
      return BlockShape{static_cast<int32_t>(*n), static_cast<int32_t>(*k)};
    }
  }
  wrong(key, *value, "two integers [n, k] from 1 to 65536");
  return std::nullopt;
}

}  // namespace nibble::quant
