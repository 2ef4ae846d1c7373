#include "checkpoint/config_reader.h"

#include <fmt/format.h>

#include "checkpoint/display.h"

namespace nibble::checkpoint {
namespace {

constexpr json::Limits kConfigLimits = {
    .max_depth = 32, .max_nodes = 200'000, .max_bytes = 4 << 20};

std::string_view first_of(Keys keys) { return *keys.begin(); }

std::string join(Keys keys) {
  std::string text;
  for (const std::string_view key : keys) {
    if (!text.empty()) text += " or ";
    text += key;
  }
  return text;
}

std::string describe(IntRange range) {
  return fmt::format("an integer from {} to {}", range.min, range.max);
}
std::string describe(FloatRange range) {
  return fmt::format("a number from {} to {}", range.min, range.max);
}

// Equal as values: 10000 and 10000.0 agree.
bool is_same(const json::Value& a, const json::Value& b) {
  if (a.is_number() && b.is_number()) return a.as_double() == b.as_double();
  return a.kind() == b.kind() &&
         json::dump(a, json::Style::kCompact) == json::dump(b, json::Style::kCompact);
}

}  // namespace

Result<ConfigReader> ConfigReader::parse(std::string_view text, std::string_view file_name) {
  ConfigReader reader;
  reader.file_name_ = display_name(file_name);
  Result<json::Value> document = json::parse(text, kConfigLimits);
  if (!document.ok()) {
    return data_loss(fmt::format("{}: {}, expected a JSON object. Fetch the file again.",
                                 reader.file_name_,
                                 document.error().message));
  }
  if (!document->is_object()) {
    return data_loss(fmt::format("{}: found {}, expected a JSON object. Fetch the file again.",
                                 reader.file_name_,
                                 display_value(*document)));
  }
  reader.document_ = std::move(document).value();
  return reader;
}

Error ConfigReader::fault(std::string_view key,
                          std::string_view found,
                          std::string_view expected) const {
  return data_loss(fmt::format("{}: {}: found {}, expected {}. Correct the file or fetch it again.",
                               file_name_,
                               key,
                               found,
                               expected));
}

Result<const json::Value*> ConfigReader::find_one(std::string_view key) const {
  const json::Value* value = &document_;
  for (size_t begin = 0; begin <= key.size();) {
    const size_t end = std::min(key.find('.', begin), key.size());
    if (!value->is_object()) {
      return fault(key.substr(0, begin - 1), display_value(*value), "an object");
    }
    value = value->find(key.substr(begin, end - begin));
    if (value == nullptr || value->is_null()) return nullptr;
    begin = end + 1;
  }
  return value;
}

Result<const json::Value*> ConfigReader::find(Keys keys) const {
  const json::Value* found = nullptr;
  std::string_view found_key;
  for (const std::string_view key : keys) {
    TRY_ASSIGN(const json::Value* value, find_one(key));
    if (value == nullptr) continue;
    if (found != nullptr && !is_same(*found, *value)) {
      return fault(key,
                   display_value(*value),
                   fmt::format("{} as under {}", display_value(*found), found_key));
    }
    if (found == nullptr) {
      found = value;
      found_key = key;
    }
  }
  return found;
}

Result<bool> ConfigReader::contains(Keys keys) const {
  TRY_ASSIGN(const json::Value* value, find(keys));
  return value != nullptr;
}

Result<int64_t> ConfigReader::integer(Keys keys, IntRange range) const {
  TRY_ASSIGN(const json::Value* value, find(keys));
  if (value == nullptr) return fault(join(keys), "nothing", describe(range));
  const std::optional<int64_t> number = value->as_int64();
  if (!number || *number < range.min || *number > range.max) {
    return fault(join(keys), display_value(*value), describe(range));
  }
  return *number;
}

Result<int64_t> ConfigReader::integer_or(Keys keys, IntRange range, int64_t fallback) const {
  TRY_ASSIGN(const bool is_present, contains(keys));
  if (!is_present) return fallback;
  return integer(keys, range);
}

Result<double> ConfigReader::number(Keys keys, FloatRange range) const {
  TRY_ASSIGN(const json::Value* value, find(keys));
  if (value == nullptr) return fault(join(keys), "nothing", describe(range));
  const std::optional<double> number = value->as_double();
  if (!number || !(*number >= range.min && *number <= range.max)) {
    return fault(join(keys), display_value(*value), describe(range));
  }
  return *number;
}

Result<double> ConfigReader::number_or(Keys keys, FloatRange range, double fallback) const {
  TRY_ASSIGN(const bool is_present, contains(keys));
  if (!is_present) return fallback;
  return number(keys, range);
}

Result<bool> ConfigReader::boolean_or(Keys keys, bool fallback) const {
  TRY_ASSIGN(const json::Value* value, find(keys));
  if (value == nullptr) return fallback;
  const bool* flag = value->as_bool();
  if (flag == nullptr) return fault(join(keys), display_value(*value), "true or false");
  return *flag;
}

Result<std::string> ConfigReader::string_or(Keys keys, std::string_view fallback) const {
  TRY_ASSIGN(const json::Value* value, find(keys));
  if (value == nullptr) return std::string(fallback);
  const std::string* text = value->as_string();
  if (text == nullptr) return fault(join(keys), display_value(*value), "a string");
  return *text;
}

Result<std::optional<std::vector<int64_t>>> ConfigReader::integers(Keys keys,
                                                                   IntRange range,
                                                                   int64_t max_size) const {
  TRY_ASSIGN(const json::Value* value, find(keys));
  if (value == nullptr) return std::optional<std::vector<int64_t>>();
  const json::Array* array = value->as_array();
  if (array == nullptr || static_cast<int64_t>(array->size()) > max_size) {
    return fault(join(keys),
                 display_value(*value),
                 fmt::format("an array of at most {} integers", max_size));
  }
  std::vector<int64_t> numbers;
  for (const json::Value& element : *array) {
    const std::optional<int64_t> number = element.as_int64();
    if (!number || *number < range.min || *number > range.max) {
      return fault(fmt::format("{}[{}]", first_of(keys), numbers.size()),
                   display_value(element),
                   describe(range));
    }
    numbers.push_back(*number);
  }
  return std::optional(std::move(numbers));
}

Result<std::optional<std::vector<std::string>>> ConfigReader::strings(Keys keys,
                                                                      int64_t max_size) const {
  TRY_ASSIGN(const json::Value* value, find(keys));
  if (value == nullptr) return std::optional<std::vector<std::string>>();
  const json::Array* array = value->as_array();
  if (array == nullptr || static_cast<int64_t>(array->size()) > max_size) {
    return fault(
        join(keys), display_value(*value), fmt::format("an array of at most {} strings", max_size));
  }
  std::vector<std::string> texts;
  for (const json::Value& element : *array) {
    const std::string* text = element.as_string();
    if (text == nullptr) {
      return fault(
          fmt::format("{}[{}]", first_of(keys), texts.size()), display_value(element), "a string");
    }
    texts.push_back(*text);
  }
  return std::optional(std::move(texts));
}

Result<std::optional<std::vector<int64_t>>> ConfigReader::integer_or_list(Keys keys,
                                                                          IntRange range,
                                                                          int64_t max_size) const {
  TRY_ASSIGN(const json::Value* value, find(keys));
  if (value == nullptr || value->is_array()) return integers(keys, range, max_size);
  TRY_ASSIGN(const int64_t number, integer(keys, range));
  return std::optional(std::vector<int64_t>{number});
}

Result<ConfigReader> read_config(const Path& dir) {
  constexpr int64_t kMaxBytes = 4 << 20;
  Result<std::string> text = read_file(dir / "config.json", kMaxBytes);
  if (!text.ok()) {
    Error error = std::move(text).error();
    error.message = fmt::format("config.json: {}. Pass the directory of a checkpoint.",
                                display_name(error.message));
    return error;
  }
  return ConfigReader::parse(*text, "config.json");
}

}  // namespace nibble::checkpoint
