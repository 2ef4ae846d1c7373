// What the configuration files of a checkpoint say about its formats. Source: spec "quantization"
// 2.7, rows 1 (native), 4 (NVFP4, form B) and 12 (INT4).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/json.h"

namespace nibble::tools {

// Formats of a whole checkpoint.
enum class CheckpointFormat : uint8_t {
  kBf16,    // nothing quantised
  kNative,  // FP8 128x128 and MXFP4 experts, as DeepSeek publishes
  kNvfp4,   // the same with NVFP4 experts, in ModelOpt's naming
  kInt4,    // INT4 experts in groups of 32, compressed-tensors; the rest BF16
};

struct CheckpointFormatName {
  CheckpointFormat format;
  std::string_view name;
};
inline constexpr CheckpointFormatName kCheckpointFormatNames[] = {
    {CheckpointFormat::kNative, "native"},
    {CheckpointFormat::kNvfp4, "nvfp4"},
    {CheckpointFormat::kInt4, "int4"},
    {CheckpointFormat::kBf16, "bf16"},
};
std::string_view checkpoint_format_name(CheckpointFormat format);

struct Declaration {
  json::Object config;                   // config.json
  std::optional<json::Object> hf_quant;  // hf_quant_config.json, only for NVFP4
};

struct DeclareOptions {
  CheckpointFormat format = CheckpointFormat::kNative;
  int32_t num_hidden_layers = 0;
  // The layers under mtp.* are not in `format`; what they are in follows from their tensors.
  bool drafts_differ = false;
};

// `config` is the config.json of the input; everything that does not concern formats is kept.
Declaration declare_format(const json::Object& config, const DeclareOptions& options);

// Indented as config files usually are.
std::string config_text(const json::Object& config);

}  // namespace nibble::tools
