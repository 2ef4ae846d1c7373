// What a stored module is for: embedding, attention, routed experts, ... One table of name patterns
// covers the architectures that Nibble knows and the common names of those that it only detects.
// Names are those of the checkpoint, before any renaming.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nibble::quant {

enum class ModuleClass : uint8_t {
  kEmbedding,
  kAttention,
  kCompressor,
  kIndexer,
  kRouter,
  kSharedExperts,
  kRoutedExperts,
  kDenseMlp,
  kLmHead,
  kNorm,
  kHyperConnection,
  kProjection,  // joins a draft layer to the model
  kEngram,
  kVision,
  kOther,  // of a model type that Nibble does not know
};

struct ModuleRole {
  ModuleClass module_class = ModuleClass::kOther;
  bool is_draft = false;
  int32_t layer = -1;   // draft layers count from 0 within "mtp."
  int32_t expert = -1;  // of unfused experts

  friend bool operator==(const ModuleRole&, const ModuleRole&) = default;
};

// "attention", "draft_attention", ...
std::string role_name(const ModuleRole& role);

// The role of a module by its stored name without suffix ("model.layers.3.mlp.gate"). Layers from
// `num_hidden_layers` on are draft layers. nullopt when no pattern knows the name.
std::optional<ModuleRole> role_of(std::string_view module, int32_t num_hidden_layers);

// `name` without the wrappers that multimodal and library code put around a language model:
// "model.", "language_model.", ...
std::string_view without_wrappers(std::string_view name);

}  // namespace nibble::quant
