// What a DeepSeek-V4 tensor is for, by its original name: which weights a format may quantise, and
// under which heading statistics are counted.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace nibble::tools {

enum class WeightRole : uint8_t {
  kRoutedExpert,  // 4 bits in every released form
  kProjection,    // FP8 128x128 in native and NVFP4 checkpoints: attention, shared experts, ...
  kOther,         // never quantised: norms, router, embedding, compressors, hyper-connections, ...
};

// `module` without the last part of a tensor's name: "layers.3.ffn.experts.7.w1".
WeightRole weight_role(std::string_view module);

// Layers that only propose tokens: "mtp.0.attn.wq_a".
bool is_draft(std::string_view name);

// "routed_experts", "attention", "draft_routed_experts", ... of a module or tensor name.
std::string module_class(std::string_view name);

}  // namespace nibble::tools
