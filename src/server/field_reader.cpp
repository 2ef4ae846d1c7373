#include "server/field_reader.h"

#include <fmt/format.h>

#include <cmath>

namespace nibble::server {
namespace {

// Doubles below this hold every integer exactly.
constexpr double kExactIntegerMax = 9007199254740992.0;  // 2^53

// Clients of dynamic languages send 16.0 for 16.
std::optional<int64_t> integral_value(const json::Value& value) {
  if (value.as_integer() != nullptr) return value.as_int64();
  const std::optional<double> number = value.is_number() ? value.as_double() : std::nullopt;
  if (!number || std::trunc(*number) != *number || std::abs(*number) > kExactIntegerMax) {
    return std::nullopt;
  }
  return static_cast<int64_t>(*number);
}

std::string shown_number(const json::Value& value) {
  constexpr size_t kMaxShown = 40;
  std::string text = json::dump(value, json::Style::kCompact);
  if (text.size() > kMaxShown) text = text.substr(0, kMaxShown) + "...";
  return text;
}

bool says_something(const json::Value& value) {
  if (const bool* flag = value.as_bool()) return *flag;
  if (const std::string* text = value.as_string()) return !text->empty();
  if (const json::Array* items = value.as_array()) return !items->empty();
  if (const json::Object* members = value.as_object()) return !members->empty();
  return true;
}

}  // namespace

Error wrong_type(std::string param, std::string_view expected, const json::Value& found) {
  return {Errc::kInvalidArgument,
          fmt::format("{}: expected {}, found {}", param, expected, found.kind_name()),
          "invalid_type",
          std::move(param)};
}

Error wrong_value(std::string param, std::string_view text) {
  return {Errc::kInvalidArgument,
          fmt::format("{}: {}", param, text),
          "invalid_value",
          std::move(param)};
}

Error unsupported_field(std::string param, std::string_view text) {
  return {Errc::kUnsupported, fmt::format("{}: {}", param, text), "unsupported", std::move(param)};
}

Result<int64_t> to_integer(const json::Value& value, const std::string& param, IntegerRange range) {
  if (!value.is_number()) return wrong_type(param, "an integer", value);
  const std::optional<int64_t> number = integral_value(value);
  if (!number || *number < range.min || *number > range.max) {
    return wrong_value(param,
                       fmt::format("expected an integer from {} to {}, found {}",
                                   range.min,
                                   range.max,
                                   shown_number(value)));
  }
  return *number;
}

Result<double> to_number(const json::Value& value, const std::string& param, NumberRange range) {
  if (!value.is_number()) return wrong_type(param, "a number", value);
  const std::optional<double> number = value.as_double();
  const bool is_inside = number && *number >= range.min && *number <= range.max;
  if (!is_inside) {
    return wrong_value(param,
                       fmt::format("expected a number from {} to {}, found {}",
                                   range.min,
                                   range.max,
                                   shown_number(value)));
  }
  return *number;
}

const json::Value* FieldReader::any(std::string_view key) {
  const json::Value* value = object_.find(key);
  if (value == nullptr) return nullptr;
  ++num_known_;
  return value->is_null() ? nullptr : value;
}

Result<void> FieldReader::read(std::string_view key, bool& target) {
  const json::Value* value = any(key);
  if (value == nullptr) return {};
  if (value->as_bool() == nullptr) return wrong_type(param(key), "a boolean", *value);
  target = *value->as_bool();
  return {};
}

Result<void> FieldReader::read(std::string_view key, std::string& target) {
  std::optional<std::string> text;
  TRY(read(key, text));
  if (text) target = *std::move(text);
  return {};
}

Result<void> FieldReader::read(std::string_view key, std::optional<std::string>& target) {
  const json::Value* value = any(key);
  if (value == nullptr) return {};
  if (!value->is_string()) return wrong_type(param(key), "a string", *value);
  target = *value->as_string();
  return {};
}

Result<void> FieldReader::read(std::string_view key, int32_t& target, IntegerRange range) {
  std::optional<int64_t> number;
  TRY(read(key, number, range));
  if (number) target = static_cast<int32_t>(*number);
  return {};
}

Result<void> FieldReader::read(std::string_view key,
                               std::optional<int64_t>& target,
                               IntegerRange range) {
  const json::Value* value = any(key);
  if (value == nullptr) return {};
  TRY_ASSIGN(target, to_integer(*value, param(key), range));
  return {};
}

Result<void> FieldReader::read(std::string_view key, float& target, NumberRange range) {
  const json::Value* value = any(key);
  if (value == nullptr) return {};
  TRY_ASSIGN(const double number, to_number(*value, param(key), range));
  target = static_cast<float>(number);
  return {};
}

Result<std::string> FieldReader::required_string(std::string_view key) {
  std::optional<std::string> text;
  TRY(read(key, text));
  if (!text) return wrong_value(param(key), "is missing");
  return *std::move(text);
}

Result<const json::Array*> FieldReader::array(std::string_view key) {
  const json::Value* value = any(key);
  if (value == nullptr) return static_cast<const json::Array*>(nullptr);
  if (!value->is_array()) return wrong_type(param(key), "an array", *value);
  return value->as_array();
}

Result<const json::Object*> FieldReader::object(std::string_view key) {
  const json::Value* value = any(key);
  if (value == nullptr) return static_cast<const json::Object*>(nullptr);
  if (!value->is_object()) return wrong_type(param(key), "an object", *value);
  return value->as_object();
}

Result<void> FieldReader::refuse(std::string_view key, std::string_view why) {
  const json::Value* value = any(key);
  if (value == nullptr || !says_something(*value)) return {};
  return unsupported_field(param(key), why);
}

}  // namespace nibble::server
