// What the configuration files of a checkpoint say about its formats: config.json (at every level
// where a quantization section may hide), hf_quant_config.json, quantize_config.json and the like.
// Words only; detect.h compares them with the stored bytes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "quant/diagnostic.h"
#include "quant/module_role.h"
#include "quant/name_list.h"
#include "quant/scheme.h"
#include "quant/statement.h"

namespace nibble::quant {

// A configuration file of a checkpoint by its plain name.
struct ConfigText {
  std::string file_name;
  std::string text;
};

// The verdict of the files on one module.
struct Declared {
  enum class Kind { kNothing, kDense, kExcluded, kQuantized };
  Kind kind = Kind::kNothing;
  std::optional<Statement> statement;      // kQuantized
  std::optional<std::string> excluded_by;  // the list entry, quoted, with its file
  bool is_certain = true;  // false: only a variant of the name matched; the header decides
  bool is_per_layer = false;
  // The list is about another producer's format: what it leaves out may keep the format that the
  // model was released in.
  bool keeps_native = false;
};

// A key that two files give different values: config.json first, hf_quant_config.json second.
struct Conflict {
  std::string key;
  std::string first;
  std::string second;
};

class Declaration final {
 public:
  // Reads every file that may declare formats; others are ignored. D1 to D4 diagnostics for what
  // is unknown or contradictory.
  static Declaration read(std::span<const ConfigText> configs);

  const std::string& model_type() const { return model_type_; }
  int32_t num_hidden_layers() const { return num_hidden_layers_; }
  const std::string& method() const { return method_; }
  const std::vector<Diagnostic>& diagnostics() const { return diagnostics_; }
  const std::vector<Conflict>& conflicts() const { return conflicts_; }
  std::optional<BlockShape> fp8_block() const { return fp8_block_; }
  int32_t bits() const { return bits_; }
  bool has_act_order() const { return has_act_order_; }
  bool has_kv_scales() const { return has_kv_scales_; }
  // "gptq" (zero points are stored minus one) or "gptq_v2"; empty for other methods.
  const std::string& checkpoint_format() const { return checkpoint_format_; }

  // Statements that at least one module should bear out (D6): those on the whole model, and of the
  // list by layers one for each format.
  std::vector<const Statement*> broad_statements() const;
  // Entries like "layers.1*" that matched a longer index ("layers.10.attn"), with such a name. The
  // headers decide there.
  const std::map<std::string, std::string>& ambiguous_entries() const { return ambiguous_; }
  // Every list whose entries should match something (D5).
  std::vector<const NameList*> lists() const { return {&exclusions_, &target_names_}; }

  // Precedence: per layer, exclusion, moe_quant_algo, expert_dtype, groups, model.
  // `names`: the module, its weight tensor, then the names that fusing or splitting would give it.
  Declared declare(std::span<const std::string> names, const ModuleRole& role);
  // Everything that the files say on the module, highest precedence first; declare() follows the
  // first.
  std::vector<std::string> all_statements(std::span<const std::string> names,
                                          const ModuleRole& role);

 private:
  class Reader;

  const Statement* per_layer(std::string_view name);
  // That of a group in config_groups whose targets name the module.
  const Statement* group_statement(std::string_view name);
  // The entry that excludes a name, and how far that can be believed.
  struct Exclusion {
    size_t entry = 0;
    bool is_certain = true;
    std::string how;  // "; as a substring", "; matched as lm_head", or empty
  };
  std::optional<Exclusion> excluded(std::string_view name);

  std::string model_type_;
  int32_t num_hidden_layers_ = 1 << 20;
  std::string method_;
  std::string checkpoint_format_;
  std::optional<BlockShape> fp8_block_;
  int32_t bits_ = 0;
  bool has_act_order_ = false;
  bool has_kv_scales_ = false;
  bool is_lm_head_quantized_ = false;
  std::optional<Statement> base_;          // model level
  std::optional<Statement> moe_;           // moe_quant_algo
  std::optional<Statement> expert_dtype_;  // expert_dtype
  std::unordered_map<std::string, Statement> layers_;
  NameList layer_names_;                     // patterns of layer_quant_config and dynamic
  std::vector<Statement> layer_statements_;  // as layer_names_
  NameList exclusions_;
  NameList target_names_;
  std::vector<Statement> target_statements_;  // as target_names_
  std::optional<Statement> linear_target_;    // "Linear"
  std::map<std::string, std::string> ambiguous_;
  std::vector<Diagnostic> diagnostics_;
  std::vector<Conflict> conflicts_;
};

}  // namespace nibble::quant
