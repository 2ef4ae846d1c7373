#include "checkpoint/generation_config.h"

#include <algorithm>
#include <limits>

#include "checkpoint/config_reader.h"

namespace nibble::checkpoint {
namespace {

constexpr const char* kFileName = "generation_config.json";
constexpr IntRange kTokenIds = {.min = 0, .max = std::numeric_limits<int32_t>::max()};
constexpr IntRange kTopK = {.min = -1, .max = std::numeric_limits<int32_t>::max()};  // -1: all
constexpr int64_t kMaxEosTokens = 64;

Result<std::optional<double>> optional_number(const ConfigReader& reader,
                                              Keys keys,
                                              FloatRange range) {
  TRY_ASSIGN(const bool is_present, reader.contains(keys));
  if (!is_present) return std::optional<double>();
  TRY_ASSIGN(const double value, reader.number(keys, range));
  return std::optional(value);
}

}  // namespace

Result<GenerationConfig> parse_generation_config(std::string_view text,
                                                 std::string_view file_name) {
  TRY_ASSIGN(const ConfigReader reader, ConfigReader::parse(text, file_name));
  GenerationConfig config;
  TRY_ASSIGN(const bool has_bos, reader.contains({"bos_token_id"}));
  if (has_bos) {
    TRY_ASSIGN(const int64_t bos, reader.integer({"bos_token_id"}, kTokenIds));
    config.bos_token_id = static_cast<int32_t>(bos);
  }
  TRY_ASSIGN(const auto eos, reader.integer_or_list({"eos_token_id"}, kTokenIds, kMaxEosTokens));
  if (eos) {
    for (const int64_t id : *eos) config.eos_token_ids.push_back(static_cast<int32_t>(id));
  }
  TRY_ASSIGN(const bool has_do_sample, reader.contains({"do_sample"}));
  if (has_do_sample) {
    TRY_ASSIGN(config.do_sample, reader.boolean_or({"do_sample"}, false));
  }
  TRY_ASSIGN(config.temperature, optional_number(reader, {"temperature"}, {.min = 0, .max = 100}));
  TRY_ASSIGN(config.top_p, optional_number(reader, {"top_p"}, {.min = 0, .max = 1}));
  TRY_ASSIGN(config.min_p, optional_number(reader, {"min_p"}, {.min = 0, .max = 1}));
  TRY_ASSIGN(config.repetition_penalty,
             optional_number(reader, {"repetition_penalty"}, {.min = 0.01, .max = 100}));
  TRY_ASSIGN(const bool has_top_k, reader.contains({"top_k"}));
  if (has_top_k) {
    TRY_ASSIGN(const int64_t top_k, reader.integer({"top_k"}, kTopK));
    config.top_k = static_cast<int32_t>(std::max<int64_t>(top_k, 0));
  }
  return config;
}

Result<GenerationConfig> read_generation_config(const Path& dir) {
  constexpr int64_t kMaxBytes = 1 << 20;
  const Result<std::string> text = read_file(dir / kFileName, kMaxBytes);
  if (!text.ok()) {
    if (text.error().code == Errc::kNotFound) return GenerationConfig{};
    return text.error();
  }
  return parse_generation_config(*text, kFileName);
}

}  // namespace nibble::checkpoint
