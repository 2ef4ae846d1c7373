// Shapes of models as their config.json states them. Source: spec "deepseek-v4" 1.1.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/json.h"
#include "base/result.h"

namespace nibble::tools {

// flash, pro: the released models. mini: 5.9 B parameters, 3.57 GB native, for machines of every
// size.
inline constexpr std::string_view kPresetNames[] = {"flash", "pro", "mini"};

// The config.json of a preset, without format declarations; nullopt for other names.
std::optional<json::Object> preset_config(std::string_view name);

// Keeps the first `num_layers` layers, and the drafts. kInvalidArgument unless the config has at
// least as many; kUnsupported for dialects without compress_ratios.
Result<json::Object> keep_layers(const json::Object& config, int32_t num_layers);

}  // namespace nibble::tools
