// generation_config.json: the model author's defaults for sampling and for the tokens that end a
// text.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/result.h"

namespace nibble::checkpoint {

// What the file says; absent keys stay empty, so that the caller's own defaults apply.
struct GenerationConfig {
  std::optional<int32_t> bos_token_id;
  std::vector<int32_t> eos_token_ids;  // the key eos_token_id holds one id or a list
  std::optional<bool> do_sample;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<int32_t> top_k;  // 0: all
  std::optional<double> repetition_penalty;
};

Result<GenerationConfig> parse_generation_config(std::string_view text, std::string_view file_name);

// Reads DIR/generation_config.json; a missing file gives an empty result.
Result<GenerationConfig> read_generation_config(const Path& dir);

}  // namespace nibble::checkpoint
