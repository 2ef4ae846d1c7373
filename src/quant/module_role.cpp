#include "quant/module_role.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <vector>

#include "quant/name_pattern.h"

namespace nibble::quant {
namespace {

// Patterns are dotted components: '#' is a number, "**" one or more components at the end, others
// are globs.
struct Rule {
  std::string_view pattern;
  ModuleClass module_class;
};

using enum ModuleClass;

// Outside of layers. The first match counts.
constexpr std::array kGlobalRules = std::to_array<Rule>({
    {"embed", kEmbedding},
    {"embed_tokens", kEmbedding},
    {"head", kLmHead},
    {"lm_head", kLmHead},
    {"hc_head_*", kHyperConnection},
    {"hc_head.*", kHyperConnection},
    {"norm", kNorm},
    {"*_norm", kNorm},
    {"engram.**", kEngram},
    {"visual.**", kVision},
    {"vision*.**", kVision},
    {"mm_projector.**", kVision},
    {"multi_modal_projector.**", kVision},
    {"audio*.**", kVision},
});

// Names of GGUF files: outside of layers, and behind "blk.N.".
constexpr std::array kGgufGlobalRules = std::to_array<Rule>({
    {"token_embd", kEmbedding},
    {"token_embd_norm", kNorm},
    {"output", kLmHead},
    {"output_norm", kNorm},
    {"output_hc_*", kHyperConnection},
    {"rope_freqs", kAttention},
});
constexpr std::array kGgufLayerRules = std::to_array<Rule>({
    {"*norm*", kNorm},
    {"hc_*", kHyperConnection},
    {"nextn.**", kProjection},
    {"indexer.**", kIndexer},
    {"attn_compress*", kCompressor},
    {"attn_*", kAttention},
    {"ffn_gate_inp*", kRouter},
    {"exp_probs_b", kRouter},
    {"exp_probs_b.**", kRouter},
    {"ffn_gate_tid2eid", kRouter},
    {"ffn_*_exps", kRoutedExperts},
    {"ffn_*_shexp", kSharedExperts},
    {"ffn_*", kDenseMlp},
    {"ssm_*", kAttention},
});

// Inside a layer, behind "layers.N." or "mtp.N.". The first match counts.
constexpr std::array kLayerRules = std::to_array<Rule>({
    {"*norm", kNorm},
    {"hc_attn_*", kHyperConnection},
    {"hc_ffn_*", kHyperConnection},
    {"hc_head_*", kHyperConnection},
    {"attn_hc.*", kHyperConnection},
    {"ffn_hc.*", kHyperConnection},
    {"engram.**", kEngram},
    // DeepSeek-V4, original names.
    {"attn.compressor.*", kCompressor},
    {"attn.indexer.**", kIndexer},
    {"attn.q_norm", kNorm},
    {"attn.kv_norm", kNorm},
    {"attn.attn_sink", kAttention},
    {"attn.w[qk]*", kAttention},
    {"attn.wo_[ab]", kAttention},
    {"ffn.gate", kRouter},
    {"ffn.gate.*", kRouter},
    {"ffn.shared_experts.w[123]", kSharedExperts},
    {"ffn.experts.#.w[123]", kRoutedExperts},
    {"e_proj", kProjection},
    {"h_proj", kProjection},
    {"main_proj", kProjection},
    {"markov_head.**", kLmHead},
    {"confidence_head.**", kLmHead},
    // The transformers layout of the same model, and of the others.
    {"self_attn.compressor.indexer.**", kIndexer},
    {"self_attn.compressor.**", kCompressor},
    {"self_attn.indexer.**", kIndexer},
    {"self_attn.*norm", kNorm},
    {"linear_attn.*norm", kNorm},
    {"self_attn.**", kAttention},
    {"linear_attn.**", kAttention},
    {"attention.**", kAttention},
    {"mlp.gate", kRouter},
    {"mlp.gate.*", kRouter},
    {"mlp.router", kRouter},
    {"mlp.router.*", kRouter},
    {"mlp.shared_expert_gate", kRouter},
    {"mlp.shared_experts.*", kSharedExperts},
    {"mlp.shared_expert.*", kSharedExperts},
    {"mlp.experts.#.*", kRoutedExperts},
    {"mlp.experts.*", kRoutedExperts},
    {"block_sparse_moe.gate", kRouter},
    {"block_sparse_moe.gate.*", kRouter},
    {"block_sparse_moe.experts.#.*", kRoutedExperts},
    {"block_sparse_moe.shared_experts.*", kSharedExperts},
    {"mlp.*", kDenseMlp},
    // DeepSeek-V3's MTP layer.
    {"eh_proj", kProjection},
    {"shared_head.norm", kNorm},
    {"shared_head.head", kLmHead},
    {"embed_tokens", kEmbedding},
    {"rotary_emb.*", kAttention},
});

constexpr std::array<std::string_view, 5> kWrappers = {
    "model.", "language_model.", "llm.", "thinker.", "text_model."};

bool is_number(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// Takes the first dotted component off `text`.
std::string_view take_component(std::string_view& text) {
  const size_t dot = text.find('.');
  const std::string_view component = text.substr(0, dot);
  text = dot == std::string_view::npos ? std::string_view() : text.substr(dot + 1);
  return component;
}

std::optional<int32_t> take_number(std::string_view& text) {
  std::string_view rest = text;
  const std::string_view component = take_component(rest);
  if (!is_number(component) || component.size() > 6) return std::nullopt;
  int32_t value = 0;
  std::from_chars(component.data(), component.data() + component.size(), value);
  text = rest;
  return value;
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (text.substr(0, prefix.size()) != prefix) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// Sets `number` to what the last '#' stood for.
bool rule_matches(std::string_view pattern, std::string_view name, int32_t& number) {
  while (!pattern.empty()) {
    if (name.empty()) return false;
    const std::string_view wanted = take_component(pattern);
    if (wanted == "**") return true;
    if (wanted == "#") {
      const std::optional<int32_t> found = take_number(name);
      if (!found) return false;
      number = *found;
      continue;
    }
    if (!glob_matches(wanted, take_component(name))) return false;
  }
  return name.empty();
}

template <size_t N>
std::optional<ModuleRole> look_up(const std::array<Rule, N>& rules, std::string_view name) {
  for (const Rule& rule : rules) {
    int32_t number = -1;
    if (!rule_matches(rule.pattern, name, number)) continue;
    return ModuleRole{.module_class = rule.module_class, .expert = number};
  }
  return std::nullopt;
}

template <size_t N>
std::optional<ModuleRole> role_by(const std::array<Rule, N>& rules,
                                  std::string_view rest,
                                  int32_t layer,
                                  bool is_draft) {
  std::optional<ModuleRole> role = look_up(rules, rest);
  if (role) {
    role->layer = layer;
    role->is_draft = is_draft;
  }
  return role;
}

std::optional<ModuleRole> role_in_layer(std::string_view rest, int32_t layer, bool is_draft) {
  return role_by(kLayerRules, rest, layer, is_draft);
}

std::optional<ModuleRole> draft_role(std::string_view rest) {
  take_prefix(rest, "layers.");
  if (const std::optional<int32_t> layer = take_number(rest)) {
    return role_in_layer(rest, *layer, true);
  }
  if (rest == "fc") return ModuleRole{.module_class = kProjection, .is_draft = true, .layer = 0};
  std::optional<ModuleRole> role = look_up(kGlobalRules, rest);
  if (!role) role = look_up(kLayerRules, rest);
  if (role) role->is_draft = true;
  return role;
}

std::string_view class_name(ModuleClass module_class) {
  switch (module_class) {
    case kEmbedding:
      return "embedding";
    case kAttention:
      return "attention";
    case kCompressor:
      return "compressor";
    case kIndexer:
      return "indexer";
    case kRouter:
      return "router";
    case kSharedExperts:
      return "shared_experts";
    case kRoutedExperts:
      return "routed_experts";
    case kDenseMlp:
      return "dense_mlp";
    case kLmHead:
      return "lm_head";
    case kNorm:
      return "norm";
    case kHyperConnection:
      return "hyper_connection";
    case kProjection:
      return "projection";
    case kEngram:
      return "engram";
    case kVision:
      return "vision";
    case kOther:
      return "other";
  }
  return "unknown";
}

}  // namespace

std::string role_name(const ModuleRole& role) {
  const std::string name(class_name(role.module_class));
  return role.is_draft ? "draft_" + name : name;
}

std::string_view without_wrappers(std::string_view name) {
  for (bool is_changed = true; is_changed;) {
    is_changed = false;
    for (const std::string_view wrapper : kWrappers) is_changed |= take_prefix(name, wrapper);
  }
  return name;
}

std::optional<ModuleRole> role_of(std::string_view module, int32_t num_hidden_layers) {
  std::string_view rest = without_wrappers(module);
  if (take_prefix(rest, "mtp.")) return draft_role(rest);
  if (take_prefix(rest, "layers.")) {
    const std::optional<int32_t> layer = take_number(rest);
    if (!layer) return std::nullopt;
    const bool is_draft = *layer >= num_hidden_layers;
    return role_in_layer(rest, is_draft ? *layer - num_hidden_layers : *layer, is_draft);
  }
  if (take_prefix(rest, "blk.")) {
    const std::optional<int32_t> layer = take_number(rest);
    return layer ? role_by(kGgufLayerRules, rest, *layer, false) : std::nullopt;
  }
  const std::optional<ModuleRole> role = look_up(kGlobalRules, rest);
  return role ? role : look_up(kGgufGlobalRules, rest);
}

}  // namespace nibble::quant
