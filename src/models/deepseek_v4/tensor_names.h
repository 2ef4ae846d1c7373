// Names of DeepSeek-V4 tensors. The program speaks the names of the original checkpoints
// (spec 2.1); this file translates those of the transformers layout (spec 2.3).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nibble::models::deepseek_v4 {

// The original name of a tensor that a file calls `stored`. Names that no rule knows come back
// unchanged. "model.layers.3.self_attn.q_a_proj.weight_scale_inv" -> "layers.3.attn.wq_a.scale"
std::string original_name(std::string_view stored);

// Experts that transformers fuses into one tensor per layer, [n_routed_experts, rows, columns].
struct FusedExperts {
  enum class Part { kGateUp, kDown };  // kGateUp: rows of w1, then as many rows of w3
  int32_t layer = 0;
  Part part = Part::kGateUp;
  bool is_scale = false;
};
// nullopt for every other name.
std::optional<FusedExperts> parse_fused_experts(std::string_view stored);

}  // namespace nibble::models::deepseek_v4
