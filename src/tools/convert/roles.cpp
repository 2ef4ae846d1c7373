#include "tools/convert/roles.h"

#include <algorithm>

namespace nibble::tools {
namespace {

// Last parts of module names that are FP8 in native checkpoints (deepseek-v4 spec 2.1), outside of
// compressors.
constexpr std::string_view kProjections[] = {
    ".wq_a", ".wq_b", ".wkv", ".wo_a", ".wo_b", ".e_proj", ".h_proj", ".main_proj"};

struct ClassRule {
  std::string_view part;  // somewhere in the name
  std::string_view name;
};

// The first that matches decides, so inner modules come before those that contain them.
constexpr ClassRule kClassRules[] = {
    {".ffn.experts.", "routed_experts"},
    {".ffn.shared_experts.", "shared_experts"},
    {".ffn.gate.", "router"},
    {".attn.indexer.", "indexer"},
    {".attn.compressor.", "compressor"},
    {"hc_", "hyper_connection"},
    {"norm", "norm"},
    {".attn.", "attention"},
    {"embed.", "embedding"},
    {"head.", "lm_head"},
    {"_proj.", "projection"},
};

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

WeightRole weight_role(std::string_view module) {
  if (contains(module, ".ffn.experts.")) return WeightRole::kRoutedExpert;
  if (contains(module, ".ffn.shared_experts.")) return WeightRole::kProjection;
  if (contains(module, ".compressor.")) return WeightRole::kOther;
  const bool is_projection =
      std::any_of(std::begin(kProjections), std::end(kProjections), [&](std::string_view suffix) {
        return module.size() > suffix.size() &&
               module.substr(module.size() - suffix.size()) == suffix;
      });
  return is_projection ? WeightRole::kProjection : WeightRole::kOther;
}

bool is_draft(std::string_view name) { return name.substr(0, 4) == "mtp."; }

std::string module_class(std::string_view name) {
  const std::string padded = '.' + std::string(name) + '.';
  const auto* rule = std::find_if(std::begin(kClassRules),
                                  std::end(kClassRules),
                                  [&](const ClassRule& r) { return contains(padded, r.part); });
  const std::string found(rule == std::end(kClassRules) ? "other" : rule->name);
  return is_draft(name) ? "draft_" + found : found;
}

}  // namespace nibble::tools
