// Typed, ranged reading of the members of a JSON object from outside. Every number of a request
// passes through here before it reaches anything that could take it for a size or an index.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"

namespace nibble::server {

// Inclusive bounds.
struct IntegerRange {
  int64_t min = INT32_MIN;
  int64_t max = INT32_MAX;
};
struct NumberRange {
  double min = 0;
  double max = 0;
};

// "field: expected X, found Y", with param and the reason "invalid_type".
Error wrong_type(std::string param, std::string_view expected, const json::Value& found);
// "field: ...", with param and the reason "invalid_value".
Error wrong_value(std::string param, std::string_view text);
// "field: ...", kUnsupported with param.
Error unsupported_field(std::string param, std::string_view text);

Result<int64_t> to_integer(const json::Value& value, const std::string& param, IntegerRange range);
Result<double> to_number(const json::Value& value, const std::string& param, NumberRange range);

// Readers leave the target as it is when the member is absent or null. A read key counts as known;
// each key is read at most once.
class FieldReader final {
 public:
  // `path` precedes the keys in messages and params: "", "messages[2].", ...
  explicit FieldReader(const json::Object& object, std::string path = {})
      : object_(object), path_(std::move(path)) {}

  Result<void> read(std::string_view key, bool& target);
  Result<void> read(std::string_view key, std::string& target);
  Result<void> read(std::string_view key, std::optional<std::string>& target);
  Result<void> read(std::string_view key, int32_t& target, IntegerRange range);
  Result<void> read(std::string_view key, std::optional<int64_t>& target, IntegerRange range);
  Result<void> read(std::string_view key, float& target, NumberRange range);

  // kInvalidArgument when it is absent.
  Result<std::string> required_string(std::string_view key);

  // The member of that kind, or nullptr when absent or null.
  Result<const json::Array*> array(std::string_view key);
  Result<const json::Object*> object(std::string_view key);
  const json::Value* any(std::string_view key);

  // kUnsupported when the member is present and says something (not null, false, or empty).
  Result<void> refuse(std::string_view key, std::string_view why);
  // Marks a key as known without looking at it.
  void ignore(std::string_view key) { any(key); }

  std::string param(std::string_view key) const { return path_ + std::string(key); }
  // Members that nobody asked for.
  int64_t num_unknown() const { return static_cast<int64_t>(object_.size()) - num_known_; }

 private:
  const json::Object& object_;
  const std::string path_;
  int64_t num_known_ = 0;
};

}  // namespace nibble::server
