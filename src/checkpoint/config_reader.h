// Typed, ranged access to JSON configuration files. Every fault names the file, the key, what was
// found and what was expected. Knows JSON, not models.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/result.h"

namespace nibble::checkpoint {

// Alternative spellings of one key, the preferred one first. A dot descends into an object
// ("rope_scaling.factor"). An entry that is null counts as absent. Where several spellings are
// present they must hold the same value.
using Keys = std::initializer_list<std::string_view>;

struct IntRange {
  int64_t min = 0;
  int64_t max = 0;
};

// Both ends belong to the range.
struct FloatRange {
  double min = 0;
  double max = 0;
};

// A configuration document that owns its JSON. All readers give kInvalidArgument for wrong types,
// values out of range, contradicting spellings and absent required keys.
class ConfigReader final {
 public:
  // `file_name` is for messages. kDataLoss for text that is no JSON object.
  static Result<ConfigReader> parse(std::string_view text, std::string_view file_name);

  const std::string& file_name() const { return file_name_; }
  const json::Object& root() const { return *document_.as_object(); }

  // The value under the first spelling that is present, or nullptr.
  Result<const json::Value*> find(Keys keys) const;
  Result<bool> contains(Keys keys) const;

  Result<int64_t> integer(Keys keys, IntRange range) const;
  Result<int64_t> integer_or(Keys keys, IntRange range, int64_t fallback) const;
  Result<double> number(Keys keys, FloatRange range) const;
  Result<double> number_or(Keys keys, FloatRange range, double fallback) const;
  Result<bool> boolean_or(Keys keys, bool fallback) const;
  Result<std::string> string_or(Keys keys, std::string_view fallback) const;

  // Lists of at most `max_size` elements; nullopt when absent.
  Result<std::optional<std::vector<int64_t>>> integers(Keys keys,
                                                       IntRange range,
                                                       int64_t max_size) const;
  Result<std::optional<std::vector<std::string>>> strings(Keys keys, int64_t max_size) const;
  // One integer or a list of them; nullopt when absent.
  Result<std::optional<std::vector<int64_t>>> integer_or_list(Keys keys,
                                                              IntRange range,
                                                              int64_t max_size) const;

  // "config.json: KEY: found FOUND, expected EXPECTED. Correct the file or fetch it again."
  Error fault(std::string_view key, std::string_view found, std::string_view expected) const;

 private:
  ConfigReader() = default;
  Result<const json::Value*> find_one(std::string_view key) const;

  json::Value document_;  // an object
  std::string file_name_;
};

// Reads DIR/config.json. kNotFound when it is missing.
Result<ConfigReader> read_config(const Path& dir);

}  // namespace nibble::checkpoint
