#include "quant/detect.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/utf8.h"
#include "quant/stored_module.h"
#include "quant/value_check.h"

namespace nibble::quant {
namespace {

constexpr std::array<std::string_view, 8> kKnownModelTypes = {"deepseek_v4",
                                                              "deepseek_v41",
                                                              "deepseek_v3",
                                                              "deepseek_v32",
                                                              "kimi_k2",
                                                              "kimi_k25",
                                                              "kimi_k3",
                                                              "gpt_oss"};

// Messages of one code beyond this many are counted, not shown.
constexpr int32_t kMaxShownPerCode = 8;

// Collects diagnostics so that a fault of every expert does not bury the others.
class Collector final {
 public:
  void add(Diagnostic diagnostic) {
    if (++counts_[{diagnostic.severity, diagnostic.code}] <= kMaxShownPerCode) {
      diagnostics_.push_back(std::move(diagnostic));
    }
  }
  void add(Severity severity, std::string_view code, std::string message) {
    add({.severity = severity, .code = std::string(code), .message = std::move(message)});
  }
  template <class List>
  void add_all(const List& list) {
    for (const Diagnostic& diagnostic : list) add(diagnostic);
  }
  std::vector<Diagnostic> take() {
    for (const auto& [key, count] : counts_) {
      if (count <= kMaxShownPerCode) continue;
      diagnostics_.push_back({.severity = key.first,
                              .code = key.second,
                              .message = fmt::format("{} more modules with the same fault.",
                                                     count - kMaxShownPerCode)});
    }
    std::stable_sort(
        diagnostics_.begin(), diagnostics_.end(), [](const Diagnostic& a, const Diagnostic& b) {
          return a.severity > b.severity;
        });
    return std::move(diagnostics_);
  }

 private:
  std::vector<Diagnostic> diagnostics_;
  std::map<std::pair<Severity, std::string>, int32_t> counts_;
};

// Projections that kernels compute in one call, by the name that stands for all of them.
struct Fusion {
  std::string_view fused;
  std::array<std::string_view, 3> shards;
};
constexpr std::array kFusions = std::to_array<Fusion>({
    {"qkv_proj", {"q_proj", "k_proj", "v_proj"}},
    {"gate_up_proj", {"gate_proj", "up_proj", ""}},
    {"fused_qkv_a_proj_with_mqa", {"q_a_proj", "kv_a_proj_with_mqa", ""}},
    {"in_proj_qkvz", {"in_proj_qkv", "in_proj_z", ""}},
    {"w13", {"w1", "w3", ""}},
});

std::pair<std::string_view, std::string_view> split_leaf(std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return {"", name};
  return {name.substr(0, dot + 1), name.substr(dot + 1)};
}

// The names under which lists may mean this module.
std::vector<std::string> names_of(std::string_view module) {
  std::vector<std::string> names = {std::string(module), std::string(module) + ".weight"};
  const auto [parent, leaf] = split_leaf(module);
  const bool is_fused_experts =
      parent.size() > 9 && parent.substr(parent.size() - 9) == ".experts.";
  for (const Fusion& fusion : kFusions) {
    for (const std::string_view shard : fusion.shards) {
      if (shard.empty()) continue;
      if (leaf == shard) names.push_back(fmt::format("{}{}", parent, fusion.fused));
      if (leaf != fusion.fused) continue;
      names.push_back(fmt::format("{}{}", parent, shard));
      if (is_fused_experts) names.push_back(fmt::format("{}0.{}", parent, shard));
    }
  }
  if (is_fused_experts && leaf == "down_proj") {
    names.push_back(fmt::format("{}0.down_proj", parent));
  }
  return names;
}

bool is_core(ModuleClass module_class) {
  return module_class == ModuleClass::kAttention || module_class == ModuleClass::kSharedExperts ||
         module_class == ModuleClass::kRoutedExperts || module_class == ModuleClass::kDenseMlp;
}

class Detector final {
 public:
  Detector(const DetectInput& input, const DetectOptions& options)
      : input_(input),
        options_(options),
        declaration_(Declaration::read(input.configs)),
        broad_statements_(declaration_.broad_statements()) {
    hints_ = {.fp8_block = declaration_.fp8_block(),
              .bits = declaration_.bits(),
              .has_act_order = declaration_.has_act_order()};
  }

  Detection run() {
    detection_.model_type = declaration_.model_type();
    detection_.method = declaration_.method();
    if (is_gguf()) {
      detection_.model_type = input_.architecture;
      detection_.method = "gguf";
    }
    collector_.add_all(declaration_.diagnostics());
    stored_ = group_tensors(input_.tensors);
    physical_.reserve(stored_.size());
    for (const StoredModule& stored : stored_) resolve(stored);
    report_unclaimed();
    check_experts();
    check_expert_dtype();
    check_fusions();
    check_draft();
    check_input_scales();
    check_kv_scales();
    check_conflicts();
    check_lists();
    check_broad_statements();
    if (input_.read) {
      collector_.add_all(check_values(input_, options_, scaled_modules(), declaration_));
    }
    detection_.diagnostics = collector_.take();
    return std::move(detection_);
  }

  Result<Explanation> explain(std::string_view wanted);

 private:
  Severity contradiction() const {
    return options_.trusts_headers ? Severity::kWarning : Severity::kError;
  }
  Severity overruled() const { return options_.is_strict ? Severity::kError : Severity::kWarning; }

  bool is_gguf() const { return !input_.block_types.empty(); }

  int64_t block_bytes(const StoredModule& stored) const {
    int64_t bytes = 0;
    for (const int32_t tensor : stored.tensors) {
      if (tensor < 0) continue;
      const auto index = static_cast<size_t>(tensor);
      const BlockType& type = *input_.block_types[index];
      bytes += input_.tensors[index].shape.num_elements() / type.num_elements * type.num_bytes;
    }
    return bytes;
  }

  void resolve(const StoredModule& stored) {
    Physical physical = is_gguf() ? classify_blocks(stored, input_.tensors, input_.block_types)
                                  : classify(stored, input_.tensors, hints_);
    DetectedModule module{.name = std::string(stored.name),
                          .scheme = physical.scheme,
                          .num_matrices = physical.num_matrices,
                          .n = physical.n,
                          .k = physical.k,
                          .num_bytes = is_gguf() ? block_bytes(stored) : stored.num_bytes,
                          .num_tensors = stored.num_tensors};
    const std::optional<ModuleRole> role = role_of(stored.name, declaration_.num_hidden_layers());
    if (role) {
      module.role = *role;
    } else {
      unclaimed_.push_back(module.name);
    }
    collector_.add_all(physical.diagnostics);
    module.is_sound = physical.diagnostics.empty();
    const Declared declared = declaration_.declare(names_of(stored.name), module.role);
    if (module.is_sound) reconcile(stored, module, declared);
    note_agreement(module, declared);
    module.evidence = intern("header: " + physical.evidence + "; " + describe(module, declared));
    detection_.modules.push_back(std::move(module));
    physical_.push_back(std::move(physical));
  }

  static std::string describe(const DetectedModule& module, const Declared& declared) {
    const bool is_plain_role = !is_core(module.role.module_class);
    if (declared.kind == Declared::Kind::kQuantized && !module.scheme.is_quantized() &&
        is_plain_role && !declared.is_per_layer) {
      return "not quantized in this role";
    }
    switch (declared.kind) {
      case Declared::Kind::kNothing:
        return "not declared";
      case Declared::Kind::kExcluded:
        return "excluded by " + *declared.excluded_by;
      case Declared::Kind::kDense:
      case Declared::Kind::kQuantized:
        return declared.statement->text;
    }
    return "";
  }

  int32_t intern(const std::string& evidence) {
    const auto [it, is_new] =
        evidence_index_.try_emplace(evidence, static_cast<int32_t>(detection_.evidence.size()));
    if (is_new) detection_.evidence.push_back(evidence);
    return it->second;
  }

  // Whether a dense weight is something that a quantiser would have taken.
  bool is_quantizable(const StoredModule& stored, const DetectedModule& module) const {
    if (!is_core(module.role.module_class) && module.role.module_class != ModuleClass::kLmHead) {
      return false;
    }
    if (module.role.is_draft || module.scheme.kind == SchemeKind::kIndex) return false;
    const bool is_routed = module.role.module_class == ModuleClass::kRoutedExperts;
    const Part part = stored.has(Part::kWeight) ? Part::kWeight : Part::kOther;
    if (part == Part::kOther && !is_routed) return false;  // a parameter, no linear layer
    const int32_t rank = input_.tensors[static_cast<size_t>(stored.tensor(part))].shape.rank();
    return rank == 2 || (rank == 3 && is_routed);
  }

  void reconcile(const StoredModule& stored,
                 const DetectedModule& module,
                 const Declared& declared) {
    const bool is_quantized = module.scheme.is_quantized();
    if (declared.is_per_layer && declared.excluded_by && !declared.statement->is_dense) {
      return reconcile_both(module, declared);
    }
    if (is_quantized &&
        (declared.kind == Declared::Kind::kExcluded || declared.kind == Declared::Kind::kDense)) {
      return reconcile_excluded(stored, module, declared);
    }
    if (declared.kind != Declared::Kind::kQuantized) return;
    if (!is_quantized) return reconcile_dense(stored, module, declared);
    check_companions(module, *declared.statement);
    if (agrees(*declared.statement, module.scheme)) return;
    // Released files say fp4 for experts of either 4-bit format.
    const bool is_expert_dtype = declared.statement->text.substr(0, 12) == "expert_dtype";
    if (is_expert_dtype && module.scheme.kind == SchemeKind::kNvfp4) return;
    // Draft layers and the native parts of a converted file keep their own format.
    if (module.role.is_draft) return;
    collector_.add(overruled(),
                   "Q-D2",
                   fmt::format("{}: stored as {}; {} says otherwise. The stored bytes decide. Fix: "
                               "correct the file.",
                               escape_for_display(module.name),
                               scheme_name(module.scheme),
                               declared.statement->text));
  }

  // S1: integer weights need what their declaration says beyond scales.
  void check_companions(const DetectedModule& module, const Statement& statement) {
    if (module.scheme.kind != SchemeKind::kInt) return;
    const auto missing = [&](std::string_view what, std::string_view tensor) {
      collector_.add(Severity::kError,
                     "Q-S1",
                     fmt::format("{}: {} is absent; {} declares {}. Fix: the checkpoint is "
                                 "incomplete; fetch it again.",
                                 escape_for_display(module.name),
                                 tensor,
                                 statement.text,
                                 what));
    };
    if (statement.needs_zero_point && !module.scheme.has_zero_point) {
      missing("asymmetric codes", ".weight_zero_point");
    }
    if (statement.needs_group_index && !module.scheme.is_reordered) {
      missing("act-order", ".weight_g_idx");
    }
  }

  void reconcile_both(const DetectedModule& module, const Declared& declared) {
    const bool is_layer_right = agrees(*declared.statement, module.scheme);
    const bool is_exclusion_right = !module.scheme.is_quantized();
    const bool is_decided = is_layer_right || is_exclusion_right;
    borne_out_.insert(declared.statement->text);  // or not: this says it
    collector_.add(
        is_decided ? Severity::kWarning : Severity::kError,
        "Q-C5",
        fmt::format("{}: named by {} and excluded by {}; stored as {}{}. Fix: remove one "
                    "of the entries.",
                    escape_for_display(module.name),
                    declared.statement->text,
                    *declared.excluded_by,
                    scheme_name(module.scheme),
                    is_decided ? ", which decides" : ", which neither explains"));
  }

  void reconcile_excluded(const StoredModule& stored,
                          const DetectedModule& module,
                          const Declared& declared) {
    const bool is_native = module.scheme.carrier == Carrier::kDeepSeek ||
                           module.scheme.carrier == Carrier::kHuggingFaceFp8;
    if (!declared.is_certain || (declared.keeps_native && is_native)) return;
    std::string tensors;
    for (const int32_t tensor : stored.tensors) {
      if (tensor < 0) continue;
      const TensorMeta& meta = input_.tensors[static_cast<size_t>(tensor)];
      if (!tensors.empty()) tensors += ", ";
      tensors += fmt::format("{} {}",
                             dtype_name(meta.dtype),
                             escape_for_display(meta.name.substr(stored.name.size())));
    }
    collector_.add(
        contradiction(),
        "Q-C3",
        fmt::format("{}: left out by {} but has {}: it is quantized ({}). Fix: remove it "
                    "from the list, or pass --trust-headers.",
                    escape_for_display(module.name),
                    declared.excluded_by ? *declared.excluded_by : declared.statement->text,
                    tensors,
                    scheme_name(module.scheme)));
  }

  void reconcile_dense(const StoredModule& stored,
                       const DetectedModule& module,
                       const Declared& declared) {
    if (!is_quantizable(stored, module)) return;
    const bool is_head = module.role.module_class == ModuleClass::kLmHead;
    if (is_head && declared.statement->allows_dense) return;
    // bitsandbytes takes Linear modules only; fused experts stay as they are.
    const bool is_routed = module.role.module_class == ModuleClass::kRoutedExperts;
    if (is_routed && declaration_.method() == "bitsandbytes") return;
    collector_.add(
        contradiction(),
        "Q-C2",
        fmt::format("{}: stored as {} without a scale; {} declares it quantized. Fix: add "
                    "it to the exclusion list, pass --trust-headers, or fetch the "
                    "checkpoint again.",
                    escape_for_display(module.name),
                    scheme_name(module.scheme),
                    declared.statement->text));
  }

  // Which model-wide statements have found a module that bears them out.
  void note_agreement(const DetectedModule& module, const Declared& declared) {
    if (!module.scheme.is_quantized()) return;
    for (const Statement* statement : broad_statements_) {
      const bool is_meant = statement->kind == module.scheme.kind;
      if (is_meant || (declared.statement && declared.statement->text == statement->text)) {
        borne_out_.insert(statement->text);
      }
    }
  }

  void check_broad_statements() {
    for (const Statement* statement : broad_statements_) {
      if (borne_out_.contains(statement->text)) continue;
      collector_.add(
          contradiction(),
          "Q-D6",
          fmt::format("{}: no module is stored that way; expected at least one. Fix: correct the "
                      "file, pass --trust-headers, or fetch the checkpoint again.",
                      statement->text));
    }
  }

  void report_unclaimed() {
    if (unclaimed_.empty()) return;
    const bool is_known = is_known_model_type(detection_.model_type);
    constexpr size_t kShown = 20;
    std::string names;
    for (size_t i = 0; i < std::min(unclaimed_.size(), kShown); ++i) {
      if (i > 0) names += ", ";
      names += escape_for_display(unclaimed_[i]);
    }
    collector_.add(
        is_known ? Severity::kError : Severity::kWarning,
        "Q-C1",
        fmt::format("{} modules that no part of {} claims: {}{}; expected none. Fix: {}.",
                    unclaimed_.size(),
                    detection_.model_type.empty() ? "this model"
                                                  : escape_for_display(detection_.model_type),
                    names,
                    unclaimed_.size() > kShown ? ", ..." : "",
                    is_known ? "remove the tensors, or use a version that knows them"
                             : "none; this model type is not one that Nibble runs"));
  }

  // C6: the experts of a layer run through one grouped kernel.
  void check_experts() {
    using Key = std::tuple<bool, int32_t, std::string>;  // draft, layer, projection
    std::map<Key, std::map<std::string, int32_t>> formats;
    for (const DetectedModule& module : detection_.modules) {
      if (module.role.module_class != ModuleClass::kRoutedExperts || module.role.expert < 0) {
        continue;
      }
      if (!module.is_sound) continue;
      const std::string leaf(split_leaf(module.name).second);
      ++formats[{module.role.is_draft, module.role.layer, leaf}][scheme_name(module.scheme)];
    }
    for (const auto& [key, counts] : formats) {
      if (counts.size() < 2) continue;
      std::string text;
      for (const auto& [format, count] : counts) {
        text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, format);
      }
      collector_.add(
          Severity::kError,
          "Q-C6",
          fmt::format("{}layer {} experts {}: {}; expected one format, as the experts of "
                      "a layer share a kernel. Fix: export the checkpoint anew.",
                      std::get<0>(key) ? "draft " : "",
                      std::get<1>(key),
                      std::get<2>(key),
                      text));
    }
  }

  // K4: what was asked for is honoured or refused, never read into the bytes.
  void check_expert_dtype() {
    if (options_.expert_dtype == ExpertDtype::kAsStored) return;
    const bool wants_fp4 = options_.expert_dtype == ExpertDtype::kFp4;
    for (const DetectedModule& module : detection_.modules) {
      const SchemeKind kind = module.scheme.kind;
      const bool is_fp4 = kind == SchemeKind::kMxfp4 || kind == SchemeKind::kNvfp4;
      const bool is_as_wanted = wants_fp4 ? is_fp4 : kind == SchemeKind::kFp8Block;
      if (module.role.module_class != ModuleClass::kRoutedExperts || module.role.is_draft ||
          !module.is_sound || is_as_wanted) {
        continue;
      }
      return collector_.add(
          Severity::kError,
          "Q-K4",
          fmt::format(
              "{}: routed experts are stored as {} ({}); --expert-dtype {} contradicts that. "
              "Fix: drop the option, or convert the checkpoint.",
              escape_for_display(module.name),
              scheme_name(module.scheme),
              detection_.evidence_of(module),
              wants_fp4 ? "fp4" : "fp8"));
    }
  }

  // C4: projections that could share a call but differ.
  void check_fusions() {
    std::unordered_map<std::string_view, const DetectedModule*> by_name;
    for (const DetectedModule& module : detection_.modules) by_name[module.name] = &module;
    std::set<std::string> seen;
    for (const DetectedModule& module : detection_.modules) {
      const auto [parent, leaf] = split_leaf(module.name);
      for (const Fusion& fusion : kFusions) {
        if (leaf != fusion.shards[0]) continue;
        for (size_t i = 1; i < fusion.shards.size() && !fusion.shards[i].empty(); ++i) {
          const std::string other_name = fmt::format("{}{}", parent, fusion.shards[i]);
          const auto other = by_name.find(other_name);
          if (other == by_name.end() || !module.is_sound || !other->second->is_sound ||
              is_same_numbers(module.scheme, other->second->scheme)) {
            continue;
          }
          const std::string general = without_numbers(module.name);
          if (!seen.insert(general).second) continue;
          collector_.add(
              Severity::kInfo,
              "Q-C4",
              fmt::format("{} is {}, {} is {}: they cannot share one kernel call and run "
                          "as separate matrix products.",
                          general,
                          scheme_name(module.scheme),
                          without_numbers(other_name),
                          scheme_name(other->second->scheme)));
        }
      }
    }
  }

  // C7: the draft's experts against the model's.
  void check_draft() {
    std::map<bool, std::set<std::string>> formats;
    for (const DetectedModule& module : detection_.modules) {
      if (module.role.module_class != ModuleClass::kRoutedExperts || !module.is_sound) continue;
      formats[module.role.is_draft].insert(scheme_name(module.scheme));
    }
    if (formats.size() < 2 || formats[true] == formats[false]) return;
    collector_.add(Severity::kInfo,
                   "Q-C7",
                   fmt::format("draft experts are {}, the model's are {}: the draft gets its own "
                               "kernel.",
                               fmt::join(formats[true], " and "),
                               fmt::join(formats[false], " and ")));
  }

  // S5: static activation scales that only some experts have, or none where they are declared.
  void check_input_scales() {
    std::map<std::pair<ModuleClass, bool>, std::pair<int32_t, std::vector<std::string>>> found;
    std::set<std::pair<ModuleClass, bool>> weight_only;
    for (const DetectedModule& module : detection_.modules) {
      if (module.scheme.kind != SchemeKind::kNvfp4 || !module.is_sound) continue;
      const std::pair key(module.role.module_class, module.role.is_draft);
      const bool is_weight_only = module.scheme.carrier != Carrier::kModelOpt ||
                                  detection_.evidence_of(module).find("W4A16") != std::string::npos;
      if (is_weight_only) weight_only.insert(key);
      auto& [with, without] = found[key];
      if (module.scheme.has_input_scale) {
        ++with;
      } else {
        without.push_back(module.name);
      }
    }
    for (const auto& [key, counts] : found) {
      const auto& [with, without] = counts;
      if (with == 0 && !weight_only.contains(key)) {
        collector_.add(
            Severity::kWarning,
            "Q-S5",
            fmt::format("none of {} NVFP4 {} modules has an input_scale: activations keep "
                        "16 bits (W4A16) on every device. Fix: export with calibration, "
                        "or declare W4A16_NVFP4.",
                        without.size(),
                        role_name({.module_class = key.first, .is_draft = key.second})));
      }
      if (with == 0 || without.empty()) continue;
      constexpr size_t kShown = 12;
      const std::vector<std::string> shown(
          without.begin(),
          without.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, without.size())));
      collector_.add(
          options_.ignores_input_scales ? Severity::kInfo : Severity::kError,
          "Q-S5",
          fmt::format("{} of {} {} modules have no input_scale: {}{}; expected it on all or none. "
                      "Fix: pass --act-scale dynamic to ignore static activation scales.",
                      without.size(),
                      without.size() + static_cast<size_t>(with),
                      role_name({.module_class = key.first, .is_draft = key.second}),
                      fmt::join(shown, ", "),
                      without.size() > kShown ? ", ..." : ""));
    }
  }

  void check_kv_scales() {
    if (!declaration_.has_kv_scales()) return;
    for (const TensorMeta& tensor : input_.tensors) {
      const std::string_view name = tensor.name;
      if (name.ends_with(".k_scale") || name.ends_with(".v_scale")) return;
    }
    collector_.add(Severity::kInfo,
                   "Q-S8",
                   "a quantized KV cache is declared but no k_scale or v_scale is stored: the "
                   "scales are 1.0.");
  }

  // D2: the files against each other, with what the stored bytes say where they can.
  void check_conflicts() {
    for (const Conflict& conflict : declaration_.conflicts()) {
      std::string proof = "the stored bytes support neither";
      if (conflict.key == "group_size") {
        for (const DetectedModule& module : detection_.modules) {
          const Scheme& scheme = module.scheme;
          if (!scheme.is_quantized() || scheme.block.n != 1 || scheme.block.k < 2) continue;
          const std::string group = std::to_string(scheme.block.k);
          if (group != conflict.first && group != conflict.second) continue;
          // Only the converted part is meant, not experts or drafts that kept the native format.
          if (scheme.carrier == Carrier::kDeepSeek) continue;
          proof = fmt::format("{} of {} proves {}",
                              detection_.evidence_of(module).substr(
                                  8, detection_.evidence_of(module).find(';') - 8),
                              module.name,
                              group);
          break;
        }
      } else {
        proof = "the stored bytes decide per module";
      }
      collector_.add(contradiction(),
                     "Q-D2",
                     fmt::format("{} is {} in config.json and {} in hf_quant_config.json; {}. Fix: "
                                 "correct the wrong file, or pass --trust-headers.",
                                 conflict.key,
                                 conflict.first,
                                 conflict.second,
                                 proof));
    }
  }

  // D5: entries of lists that match nothing.
  void check_lists() {
    std::set<std::string> general;
    std::set<std::string> fused_parents;
    for (const DetectedModule& module : detection_.modules) {
      general.insert(without_numbers(module.name));
      const auto [parent, leaf] = split_leaf(module.name);
      if (module.role.module_class == ModuleClass::kRoutedExperts && module.role.expert < 0) {
        fused_parents.insert(std::string(parent));
      }
    }
    for (const auto& [entry, name] : declaration_.ambiguous_entries()) {
      collector_.add(Severity::kWarning,
                     "Q-D5",
                     fmt::format("\"{}\" also matches longer numbers, such as {}; the stored bytes "
                                 "decide there. Fix: end the entry with \".*\".",
                                 escape_for_display(entry),
                                 escape_for_display(name)));
    }
    const std::vector<std::string> names(general.begin(), general.end());
    int32_t num_unused = 0;
    for (const NameList* list : declaration_.lists()) {
      if (list->is_exhausted()) {
        collector_.add(Severity::kError,
                       "Q-D5",
                       fmt::format("a list of {} entries holds too many patterns to try on {} "
                                   "modules; expected plain names. Fix: write names out, or use "
                                   "fewer patterns.",
                                   list->entries().size(),
                                   detection_.modules.size()));
        continue;
      }
      for (const NameList::Entry& entry : list->entries()) {
        if (entry.is_used || means_fused_expert(entry.text, fused_parents)) continue;
        // Beyond what is shown, counting is enough.
        const std::vector<std::string> nearest = ++num_unused <= kMaxShownPerCode
                                                     ? nearest_names(entry.text, names, 3)
                                                     : std::vector<std::string>();
        collector_.add(overruled(),
                       "Q-D5",
                       fmt::format("\"{}\" ({}) matches no module; nearest names: {}. Fix: correct "
                                   "or remove the entry.",
                                   escape_for_display(entry.text),
                                   entry.source,
                                   fmt::join(nearest, ", ")));
      }
    }
  }

  static bool means_fused_expert(std::string_view entry, const std::set<std::string>& parents) {
    const size_t at = entry.find(".experts.");
    return at != std::string_view::npos && parents.contains(std::string(entry.substr(0, at + 9)));
  }

  std::vector<ScaledModule> scaled_modules() const {
    std::vector<ScaledModule> modules;
    for (size_t i = 0; i < stored_.size(); ++i) {
      if (!physical_[i].diagnostics.empty()) continue;
      modules.push_back(
          {.stored = &stored_[i], .physical = &physical_[i], .role = detection_.modules[i].role});
    }
    return modules;
  }

  const DetectInput& input_;
  const DetectOptions& options_;
  Declaration declaration_;
  const std::vector<const Statement*> broad_statements_;
  ShapeHints hints_;
  std::vector<StoredModule> stored_;
  std::vector<Physical> physical_;
  std::vector<std::string> unclaimed_;
  std::set<std::string> borne_out_;
  std::unordered_map<std::string, int32_t> evidence_index_;
  Collector collector_;
  Detection detection_;
};

Result<Explanation> Detector::explain(std::string_view wanted) {
  stored_ = group_tensors(input_.tensors);
  const StoredModule* found = nullptr;
  for (const StoredModule& stored : stored_) {
    bool is_match = stored.name == wanted;
    for (const int32_t tensor : stored.tensors) {
      is_match |= tensor >= 0 && input_.tensors[static_cast<size_t>(tensor)].name == wanted;
    }
    if (is_match) found = &stored;
  }
  if (found == nullptr) {
    std::set<std::string> general;
    for (const StoredModule& stored : stored_) general.insert(without_numbers(stored.name));
    const std::vector<std::string> names(general.begin(), general.end());
    return not_found(fmt::format("module {}: not in the checkpoint; nearest names: {}",
                                 escape_for_display(wanted),
                                 fmt::join(nearest_names(wanted, names, 3), ", ")));
  }
  std::string text = fmt::format("module    {}\n", escape_for_display(found->name));
  for (const int32_t tensor : found->tensors) {
    if (tensor < 0) continue;
    const TensorMeta& meta = input_.tensors[static_cast<size_t>(tensor)];
    text += fmt::format("tensor    {}  {} {}\n",
                        escape_for_display(meta.name),
                        dtype_name(meta.dtype),
                        meta.shape.to_string());
  }
  resolve(*found);
  const DetectedModule& module = detection_.modules.back();
  const bool is_claimed = unclaimed_.empty();
  text += fmt::format("role      {}{}\n",
                      is_claimed ? role_name(module.role) : "none: no part of the model claims it",
                      module.role.layer >= 0 ? fmt::format(", layer {}", module.role.layer) : "");
  text += fmt::format("format    {}, {} x [{}, {}], carrier {}\n",
                      scheme_name(module.scheme),
                      module.num_matrices,
                      module.n,
                      module.k,
                      carrier_name(module.scheme.carrier));
  text += fmt::format("evidence  {}\n", detection_.evidence_of(module));
  const std::vector<std::string> said =
      declaration_.all_statements(names_of(found->name), module.role);
  for (const std::string& statement : said) {
    text += fmt::format(
        "declared  {}{}\n", statement, &statement == said.data() ? "" : "; lower precedence");
  }
  if (said.empty()) text += "declared  nothing that speaks of this module\n";
  for (const Diagnostic& diagnostic : collector_.take()) text += to_text(diagnostic) + "\n";
  return Explanation{.text = std::move(text),
                     .role = role_name(module.role),
                     .format = scheme_name(module.scheme)};
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

}  // namespace

bool is_known_model_type(std::string_view model_type) {
  return std::find(kKnownModelTypes.begin(), kKnownModelTypes.end(), model_type) !=
         kKnownModelTypes.end();
}

std::string without_numbers(std::string_view name) {
  std::string general;
  while (true) {
    const size_t dot = name.find('.');
    const std::string_view component = name.substr(0, dot);
    const bool is_number =
        !component.empty() && component.find_first_not_of("0123456789") == std::string_view::npos;
    general += is_number ? std::string_view("*") : component;
    if (dot == std::string_view::npos) return general;
    general += '.';
    name.remove_prefix(dot + 1);
  }
}

std::vector<std::string> nearest_names(std::string_view name,
                                       std::span<const std::string> names,
                                       size_t count) {
  constexpr size_t kMaxCompared = 200;  // bytes; keeps a hostile entry cheap
  const std::string general = without_numbers(name.substr(0, kMaxCompared));
  constexpr size_t kMaxCandidates = 2000;
  std::vector<std::pair<size_t, std::string>> ranked;
  for (const std::string& candidate : names.first(std::min(names.size(), kMaxCandidates))) {
    ranked.emplace_back(edit_distance(general, std::string_view(candidate).substr(0, kMaxCompared)),
                        candidate);
  }
  std::sort(ranked.begin(), ranked.end());
  std::vector<std::string> nearest;
  for (size_t i = 0; i < std::min(count, ranked.size()); ++i) {
    nearest.push_back(escape_for_display(ranked[i].second));
  }
  return nearest;
}

Detection detect(const DetectInput& input, const DetectOptions& options) {
  return Detector(input, options).run();
}

Result<Explanation> explain(const DetectInput& input,
                            const DetectOptions& options,
                            std::string_view module) {
  return Detector(input, options).explain(module);
}

}  // namespace nibble::quant
