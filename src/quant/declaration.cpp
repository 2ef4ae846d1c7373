#include "quant/declaration.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/utf8.h"

namespace nibble::quant {
namespace {

// Whether `entry` is `name` or a dotted prefix of it.
bool covers(std::string_view entry, std::string_view name) {
  return name.substr(0, entry.size()) == entry &&
         (name.size() == entry.size() || name[entry.size()] == '.');
}

// "layers.1*" also matches "layers.10.attn", which its author may not have meant.
bool matches_longer_index(std::string_view entry, std::string_view name) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (entry.size() < 2 || entry.back() != '*') return false;
  const std::string_view prefix = entry.substr(0, entry.size() - 1);
  return is_digit(prefix.back()) && !is_glob(prefix) && name.size() > prefix.size() &&
         name.substr(0, prefix.size()) == prefix && is_digit(name[prefix.size()]);
}

// The name and its forms with a wrapper less or more; the first is the stored one.
std::vector<std::string> variants_of(std::string_view name) {
  std::vector<std::string> variants = {std::string(name)};
  const std::string_view bare = without_wrappers(name);
  if (bare != name) variants.emplace_back(bare);
  for (const std::string_view wrapper :
       {"model.", "language_model.", "model.language_model.", "language_model.model."}) {
    variants.push_back(std::string(wrapper) + std::string(bare));
  }
  return variants;
}

}  // namespace

std::vector<const Statement*> Declaration::broad_statements() const {
  std::vector<const Statement*> statements;
  for (const std::optional<Statement>* statement : {&base_, &moe_, &linear_target_}) {
    if (*statement && (*statement)->kind != SchemeKind::kUnknown) {
      statements.push_back(&**statement);
    }
  }
  std::set<SchemeKind> kinds;
  for (const auto& [name, statement] : layers_) {
    if (!statement.is_dense && kinds.insert(statement.kind).second) {
      statements.push_back(&statement);
    }
  }
  return statements;
}

const Statement* Declaration::per_layer(std::string_view name) {
  if (!layers_.empty()) {
    std::string_view prefix = name;
    while (!prefix.empty()) {
      const auto it = layers_.find(std::string(prefix));
      if (it != layers_.end()) return &it->second;
      const size_t dot = prefix.rfind('.');
      prefix = dot == std::string_view::npos ? std::string_view() : prefix.substr(0, dot);
    }
  }
  if (layer_names_.empty()) return nullptr;
  const std::optional<size_t> entry = layer_names_.match(name);
  return entry ? &layer_statements_[*entry] : nullptr;
}

std::optional<Declaration::Exclusion> Declaration::excluded(std::string_view name) {
  const std::vector<std::string> variants = variants_of(name);
  for (const std::string& variant : variants) {
    const std::optional<size_t> entry = exclusions_.match(variant);
    if (!entry) continue;
    Exclusion exclusion = {.entry = *entry, .is_certain = &variant == &variants.front()};
    const NameList::Entry& found = exclusions_.entries()[*entry];
    if (!exclusion.is_certain) exclusion.how = "; matched as " + escape_for_display(variant);
    if (found.dialect == Dialect::kSubstring && !covers(found.text, variant)) {
      exclusion.how += "; as a substring";
    }
    // "mlp.gate" as a substring of "mlp.gate_proj" is a weak argument.
    const size_t at = name.find(found.text);
    if (!is_glob(found.text) && at != std::string_view::npos &&
        at + found.text.size() < name.size() && name[at + found.text.size()] != '.') {
      exclusion.is_certain = false;
    }
    if (matches_longer_index(found.text, variant)) {
      exclusion.is_certain = false;
      ambiguous_.try_emplace(found.text, variant);
    }
    return exclusion;
  }
  return std::nullopt;
}

const Statement* Declaration::group_statement(std::string_view name) {
  const std::optional<size_t> entry =
      target_names_.empty() ? std::nullopt : target_names_.match(name);
  return entry ? &target_statements_[*entry] : nullptr;
}

Declared Declaration::declare(std::span<const std::string> names, const ModuleRole& role) {
  Declared declared;
  const auto quantized = [&](const Statement& statement) {
    declared.kind = statement.is_dense ? Declared::Kind::kDense : Declared::Kind::kQuantized;
    declared.statement = statement;
  };
  // All names are tried, so that every entry of the lists that applies counts as used.
  for (const std::string& name : names) {
    const std::optional<Exclusion> exclusion = exclusions_.empty() ? std::nullopt : excluded(name);
    if (!exclusion || declared.excluded_by) continue;
    const NameList::Entry& found = exclusions_.entries()[exclusion->entry];
    // The first two names are the module's own.
    const bool is_own_name = &name - names.data() < 2;
    declared.excluded_by = fmt::format("{} ({}{}{})",
                                       quoted(found.text),
                                       found.source,
                                       is_own_name ? "" : "; as " + escape_for_display(name),
                                       exclusion->how);
    declared.is_certain = exclusion->is_certain && is_own_name;
    declared.keeps_native = found.dialect == Dialect::kModelOpt || found.dialect == Dialect::kQuark;
  }
  for (const std::string& name : names) {
    for (const std::string& variant : variants_of(name)) {
      const Statement* statement = per_layer(variant);
      if (statement == nullptr) continue;
      quantized(*statement);
      declared.is_per_layer = true;
      return declared;
    }
  }
  if (declared.excluded_by) {
    declared.kind = Declared::Kind::kExcluded;
    return declared;
  }
  const bool is_routed = role.module_class == ModuleClass::kRoutedExperts;
  if (is_routed && !role.is_draft && moe_) {
    quantized(*moe_);
    return declared;
  }
  if (is_routed && expert_dtype_) {
    quantized(*expert_dtype_);
    return declared;
  }
  for (const std::string& name : names) {
    const Statement* statement = group_statement(name);
    if (statement == nullptr) continue;
    quantized(*statement);
    return declared;
  }
  if (linear_target_) {
    quantized(*linear_target_);
    return declared;
  }
  const bool skips_head = role.module_class == ModuleClass::kLmHead && base_ &&
                          base_->allows_dense && !is_lm_head_quantized_;
  if (base_ && !skips_head) quantized(*base_);
  return declared;
}

std::vector<std::string> Declaration::all_statements(std::span<const std::string> names,
                                                     const ModuleRole& role) {
  std::vector<std::string> said;
  const auto add = [&](std::string text) {
    if (std::find(said.begin(), said.end(), text) == said.end()) said.push_back(std::move(text));
  };
  for (const std::string& name : names) {
    for (const std::string& variant : variants_of(name)) {
      if (const Statement* statement = per_layer(variant)) add(statement->text);
    }
  }
  if (const auto excluded_by = declare(names, role).excluded_by) add("excluded by " + *excluded_by);
  const bool is_routed = role.module_class == ModuleClass::kRoutedExperts;
  if (is_routed && !role.is_draft && moe_) add(moe_->text);
  if (is_routed && expert_dtype_) add(expert_dtype_->text);
  for (const std::string& name : names) {
    if (const Statement* statement = group_statement(name)) add(statement->text);
  }
  if (linear_target_) add(linear_target_->text);
  if (base_) add(base_->text);
  return said;
}

}  // namespace nibble::quant
