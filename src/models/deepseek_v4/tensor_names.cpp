#include "models/deepseek_v4/tensor_names.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <utility>

#include "models/deepseek_v4/module_tensors.h"

namespace nibble::models::deepseek_v4 {
namespace {

using Rule = std::pair<std::string_view, std::string_view>;  // transformers, original

// Of the whole model. Suffixes (.weight, .scale) are split off before the look-up where they exist.
constexpr std::array kGlobalRules = std::to_array<Rule>({
    {"model.embed_tokens", "embed"},
    {"lm_head", "head"},
    {"model.norm", "norm"},
    {"model.hc_head.hc_fn", "hc_head_fn"},
    {"model.hc_head.hc_base", "hc_head_base"},
    {"model.hc_head.hc_scale", "hc_head_scale"},
});

// Of a layer, after "model.layers.N.".
constexpr std::array kLayerRules = std::to_array<Rule>({
    {"input_layernorm", "attn_norm"},
    {"post_attention_layernorm", "ffn_norm"},
    {"attn_hc.fn", "hc_attn_fn"},
    {"attn_hc.base", "hc_attn_base"},
    {"attn_hc.scale", "hc_attn_scale"},
    {"ffn_hc.fn", "hc_ffn_fn"},
    {"ffn_hc.base", "hc_ffn_base"},
    {"ffn_hc.scale", "hc_ffn_scale"},
    {"self_attn.sinks", "attn.attn_sink"},
    {"self_attn.q_a_proj", "attn.wq_a"},
    {"self_attn.q_a_norm", "attn.q_norm"},
    {"self_attn.q_b_proj", "attn.wq_b"},
    {"self_attn.kv_proj", "attn.wkv"},
    {"self_attn.kv_norm", "attn.kv_norm"},
    {"self_attn.o_a_proj", "attn.wo_a"},
    {"self_attn.o_b_proj", "attn.wo_b"},
    {"self_attn.compressor.kv_proj", "attn.compressor.wkv"},
    {"self_attn.compressor.gate_proj", "attn.compressor.wgate"},
    {"self_attn.compressor.position_bias", "attn.compressor.ape"},
    {"self_attn.compressor.kv_norm", "attn.compressor.norm"},
    {"self_attn.compressor.indexer.q_b_proj", "attn.indexer.wq_b"},
    {"self_attn.compressor.indexer.scorer.weights_proj", "attn.indexer.weights_proj"},
    {"self_attn.compressor.indexer.weights_proj", "attn.indexer.weights_proj"},
    {"self_attn.compressor.indexer.kv_proj", "attn.indexer.compressor.wkv"},
    {"self_attn.compressor.indexer.gate_proj", "attn.indexer.compressor.wgate"},
    {"self_attn.compressor.indexer.position_bias", "attn.indexer.compressor.ape"},
    {"self_attn.compressor.indexer.kv_norm", "attn.indexer.compressor.norm"},
    {"mlp.gate", "ffn.gate"},
    {"mlp.gate.e_score_correction_bias", "ffn.gate.bias"},
    {"mlp.gate.tid2eid", "ffn.gate.tid2eid"},
    {"mlp.shared_experts.gate_proj", "ffn.shared_experts.w1"},
    {"mlp.shared_experts.up_proj", "ffn.shared_experts.w3"},
    {"mlp.shared_experts.down_proj", "ffn.shared_experts.w2"},
});

constexpr std::string_view kLayerPrefix = "model.layers.";
constexpr std::string_view kFusedPrefix = "mlp.experts.";

template <size_t N>
std::optional<std::string_view> look_up(const std::array<Rule, N>& rules, std::string_view name) {
  for (const auto& [transformers, original] : rules) {
    if (transformers == name) return original;
  }
  return std::nullopt;
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (text.substr(0, prefix.size()) != prefix) return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool take_suffix(std::string_view& text, std::string_view suffix) {
  if (text.size() < suffix.size() || text.substr(text.size() - suffix.size()) != suffix)
    return false;
  text.remove_suffix(suffix.size());
  return true;
}

// Takes "12." off the front.
std::optional<int32_t> take_index(std::string_view& text) {
  int32_t index = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  if (error != std::errc() || index < 0 || end == text.data() + text.size() || *end != '.') {
    return std::nullopt;
  }
  text.remove_prefix(static_cast<size_t>(end - text.data()) + 1);
  return index;
}

// A module path of one layer, without suffix.
std::optional<std::string> original_layer_module(std::string_view rest) {
  if (const auto found = look_up(kLayerRules, rest)) return std::string(*found);
  // Unfused experts: mlp.experts.E.gate_proj.
  if (!take_prefix(rest, kFusedPrefix)) return std::nullopt;
  const std::optional<int32_t> expert = take_index(rest);
  if (!expert) return std::nullopt;
  if (rest == "gate_proj") return fmt::format("ffn.experts.{}.w1", *expert);
  if (rest == "up_proj") return fmt::format("ffn.experts.{}.w3", *expert);
  if (rest == "down_proj") return fmt::format("ffn.experts.{}.w2", *expert);
  return std::nullopt;
}

std::optional<std::string> original_module(std::string_view module) {
  if (const auto found = look_up(kGlobalRules, module)) return std::string(*found);
  if (!take_prefix(module, kLayerPrefix)) return std::nullopt;
  const std::optional<int32_t> layer = take_index(module);
  if (!layer) return std::nullopt;
  const std::optional<std::string> found = original_layer_module(module);
  if (!found) return std::nullopt;
  return fmt::format("layers.{}.{}", *layer, *found);
}

}  // namespace

std::string original_name(std::string_view stored) {
  std::string_view module = stored;
  std::string_view suffix;
  if (take_suffix(module, ".weight_scale_inv")) {
    suffix = ".scale";
  } else if (const auto split = split_module_tensor_name(stored)) {
    module = split->module;
    suffix = stored.substr(module.size());
    // "attn_hc.scale" is a tensor of its own, not the scale of a weight.
    if (split->part == ModulePart::kScale && suffix == ".scale") {
      module = stored;
      suffix = {};
    }
  }
  const std::optional<std::string> found = original_module(module);
  return found.value_or(std::string(module)).append(suffix);
}

std::optional<FusedExperts> parse_fused_experts(std::string_view stored) {
  if (!take_prefix(stored, kLayerPrefix)) return std::nullopt;
  const std::optional<int32_t> layer = take_index(stored);
  if (!layer || !take_prefix(stored, kFusedPrefix)) return std::nullopt;
  FusedExperts fused{.layer = *layer};
  fused.is_scale = take_suffix(stored, ".weight_scale_inv") || take_suffix(stored, "_scale_inv");
  if (!fused.is_scale) take_suffix(stored, ".weight");
  if (stored == "gate_up_proj") {
    fused.part = FusedExperts::Part::kGateUp;
  } else if (stored == "down_proj") {
    fused.part = FusedExperts::Part::kDown;
  } else {
    return std::nullopt;
  }
  return fused;
}

}  // namespace nibble::models::deepseek_v4
