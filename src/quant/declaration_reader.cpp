// Reads the files that declare formats, one function per producer.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "base/utf8.h"
#include "quant/config_values.h"
#include "quant/declaration.h"

namespace nibble::quant {
namespace {

std::string upper_case(std::string_view text) {
  std::string upper(text);
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return upper;
}

bool is_equal(const json::Value& a, const json::Value& b);

bool is_equal(const json::Object& a, const json::Object& b) {
  if (a.size() != b.size()) return false;
  for (const json::Member& member : a) {
    const json::Value* other = b.find(member.key);
    if (other == nullptr || !is_equal(member.value, *other)) return false;
  }
  return true;
}

// Deep equality that ignores the order of members.
bool is_equal(const json::Value& a, const json::Value& b) {
  if (a.is_object() && b.is_object()) return is_equal(*a.as_object(), *b.as_object());
  if (a.is_array() && b.is_array()) {
    return std::equal(a.as_array()->begin(),
                      a.as_array()->end(),
                      b.as_array()->begin(),
                      b.as_array()->end(),
                      [](const json::Value& x, const json::Value& y) { return is_equal(x, y); });
  }
  return json::dump(a, json::Style::kCompact) == json::dump(b, json::Style::kCompact);
}

struct Algorithm {
  std::string_view name;
  SchemeKind kind;
  int32_t bits;
};

// ModelOpt's quant_algo. Matched whole: "FP4" is a part of six names that need four kernels.
constexpr std::array kAlgorithms = std::to_array<Algorithm>({
    {"FP8", SchemeKind::kFp8Tensor, 0},
    {"FP8_PER_CHANNEL_PER_TOKEN", SchemeKind::kFp8Channel, 0},
    {"FP8_PB_WO", SchemeKind::kFp8Block, 0},
    {"FP8_PB_REAL", SchemeKind::kFp8Block, 0},
    {"FP8_BLOCK_SCALES", SchemeKind::kFp8Block, 0},
    {"MXFP8", SchemeKind::kMxfp8, 0},
    {"NVFP4", SchemeKind::kNvfp4, 0},
    {"NVFP4_AWQ", SchemeKind::kNvfp4, 0},
    {"NVFP4_SVD", SchemeKind::kNvfp4, 0},
    {"W4A16_NVFP4", SchemeKind::kNvfp4, 0},
    {"W4A8_NVFP4_FP8", SchemeKind::kNvfp4, 0},
    {"MXFP4", SchemeKind::kMxfp4, 0},
    {"W4A8_MXFP4_FP8", SchemeKind::kMxfp4, 0},
    {"W4A16_AWQ", SchemeKind::kInt, 4},
    {"W4A8_AWQ", SchemeKind::kInt, 4},
    {"W8A16", SchemeKind::kInt8, 0},
    {"W8A8_SQ_PER_CHANNEL", SchemeKind::kInt8, 0},
});
constexpr std::string_view kMixed = "MIXED_PRECISION";

constexpr std::array<std::string_view, 13> kMethods = {"fp8",
                                                       "deepseek_v4_fp8",
                                                       "modelopt",
                                                       "modelopt_fp4",
                                                       "modelopt_mixed",
                                                       "compressed-tensors",
                                                       "mxfp4",
                                                       "gptq",
                                                       "awq",
                                                       "bitsandbytes",
                                                       "quark",
                                                       "auto-round",
                                                       "fbgemm_fp8"};

constexpr std::array<std::string_view, 10> kPackedFormats = {"pack-quantized",
                                                             "int-quantized",
                                                             "float-quantized",
                                                             "naive-quantized",
                                                             "nvfp4-pack-quantized",
                                                             "mxfp4-pack-quantized",
                                                             "mxfp8-quantized",
                                                             "marlin-24",
                                                             "mixed-precision",
                                                             "dense"};

const Algorithm* find_algorithm(std::string_view name) {
  for (const Algorithm& algorithm : kAlgorithms) {
    if (algorithm.name == name) return &algorithm;
  }
  return nullptr;
}

template <class List>
std::string join(const List& list) {
  std::string text;
  for (const auto& item : list) {
    if (!text.empty()) text += ", ";
    if constexpr (std::is_same_v<std::decay_t<decltype(item)>, Algorithm>) {
      text += item.name;
    } else {
      text += item;
    }
  }
  return text;
}

}  // namespace

// Fills a Declaration from parsed files.
class Declaration::Reader final {
 public:
  Declaration read(std::span<const ConfigText> configs) {
    for (const ConfigText& config : configs) parse(config);
    if (const json::Value* config = document("config.json")) read_config(*config);
    if (const json::Value* config = document("hf_quant_config.json")) read_modelopt_file(*config);
    for (const std::string_view name :
         {"quantize_config.json", "quant_config.json", "quantization_config.json"}) {
      const json::Value* config = document(name);
      if (config != nullptr && out_.method_.empty()) {
        const bool is_awq = config->find("w_bit") != nullptr || name == "quant_config.json";
        read_section(*config, std::string(name), is_awq ? "awq" : "gptq");
      }
    }
    if (document("quant_model_description.json") != nullptr) {
      values_.error(
          "Q-D1",
          "quant_model_description.json: the checkpoint was quantized by Ascend ModelSlim; "
          "expected one of the formats that Nibble detects. Fix: use the original checkpoint");
    }
    return std::move(out_);
  }

 private:
  const json::Value* document(std::string_view file_name) const {
    const auto it = documents_.find(std::string(file_name));
    return it == documents_.end() ? nullptr : &it->second;
  }

  void parse(const ConfigText& config) {
    Result<json::Value> value = json::parse(config.text);
    if (!value.ok() || !value->is_object()) {
      values_.error("Q-F2",
                    fmt::format("{}: {}; expected a JSON object. Fix: fetch the file again",
                                escape_for_display(config.file_name),
                                value.ok() ? std::string("found ") + value->kind_name()
                                           : value.error().message));
      return;
    }
    documents_.insert_or_assign(config.file_name, std::move(value).value());
  }

  // --- config.json ---

  void read_config(const json::Value& config) {
    const json::Value* text_config = nullptr;
    std::vector<std::pair<std::string, const json::Value*>> sections;
    const auto collect = [&](const json::Value& owner, const std::string& path) {
      for (const std::string_view key : {"quantization_config", "compression_config"}) {
        const json::Value* section = owner.find(key);
        if (section != nullptr && section->is_object()) {
          sections.emplace_back(path + std::string(key), section);
        }
      }
    };
    collect(config, "");
    for (const std::string_view key : {"text_config", "language_config", "llm_config"}) {
      const json::Value* nested = config.find(key);
      if (nested == nullptr || !nested->is_object()) continue;
      if (text_config == nullptr) text_config = nested;
      collect(*nested, std::string(key) + ".");
    }
    if (const json::Value* thinker = config.find("thinker_config")) {
      const json::Value* nested = thinker->find("text_config");
      if (nested != nullptr && nested->is_object()) {
        if (text_config == nullptr) text_config = nested;
        collect(*nested, "thinker_config.text_config.");
      }
    }
    for (size_t i = 1; i < sections.size(); ++i) {
      if (is_equal(*sections[0].second, *sections[i].second)) continue;
      values_.error(
          "Q-D3",
          fmt::format("config.json: {} and {} differ; expected the same section or one only. "
                      "Fix: remove the wrong one",
                      sections[0].first,
                      sections[i].first));
    }
    out_.model_type_ = std::string(string_at(config, "model_type"));
    const json::Value& numbers =
        text_config != nullptr && config.find("num_hidden_layers") == nullptr ? *text_config
                                                                              : config;
    out_.num_hidden_layers_ = layers_at(numbers);
    read_expert_dtype(config, "config.json");
    if (text_config != nullptr) read_expert_dtype(*text_config, "config.json");
    if (!sections.empty()) {
      section_ = sections[0].second;
      read_expert_dtype(*section_, "config.json quantization_config");
      read_section(*section_, "config.json", "");
    }
  }

  // Layers from this number on are drafts; a strange number is the model config's to refuse.
  int32_t layers_at(const json::Value& config) const {
    for (const std::string_view key : {"num_hidden_layers", "n_layers"}) {
      const json::Value* value = config.find(key);
      const std::optional<int64_t> number = value == nullptr ? std::nullopt : value->as_int64();
      if (number && *number > 0 && *number <= 1 << 20) return static_cast<int32_t>(*number);
    }
    return out_.num_hidden_layers_;
  }

  void read_expert_dtype(const json::Value& owner, const std::string& file) {
    const json::Value* value = owner.find("expert_dtype");
    if (value == nullptr || value->is_null()) return;
    const std::string_view name = string_at(owner, "expert_dtype");
    Statement statement{.text = fmt::format("expert_dtype {} ({})", name, file)};
    if (name == "fp4") {
      statement.kind = SchemeKind::kMxfp4;
    } else if (name == "fp8") {
      statement.kind = SchemeKind::kFp8Block;
    } else {
      return values_.error(
          "Q-D4",
          fmt::format("expert_dtype {} ({}); expected \"fp4\" or \"fp8\". Fix: correct it "
                      "or remove it, as the stored bytes decide",
                      json::dump(*value, json::Style::kCompact),
                      file));
    }
    out_.expert_dtype_ = std::move(statement);
  }

  // One quantization section, of config.json or a file of its own.
  void read_section(const json::Value& section,
                    const std::string& file,
                    std::string_view default_method) {
    std::string method(string_at(section, "quant_method"));
    if (method.empty()) method = default_method;
    if (method == "compressed_tensors") method = "compressed-tensors";
    const bool has_modelopt_keys = section.find("quant_algo") != nullptr;
    if (method.empty() && has_modelopt_keys) method = "modelopt";
    if (method.empty() && section.find("config_groups") != nullptr) method = "compressed-tensors";
    out_.method_ = method;
    out_.fp8_block_ = values_.block_at(section, "weight_block_size");
    if (method.empty()) return;
    if (std::find(kMethods.begin(), kMethods.end(), method) == kMethods.end()) {
      return values_.unknown("quant_method", method, file, join(kMethods));
    }
    if (const json::Value* kv = section.find("kv_cache_scheme")) {
      out_.has_kv_scales_ = !kv->is_null();
    }
    if (method == "compressed-tensors") return read_compressed_tensors(section, file);
    if (method == "gptq") return read_gptq(section, file);
    if (method == "awq") return read_awq(section, file);
    if (method == "bitsandbytes") return read_bits_and_bytes(section, file);
    if (method == "quark") return read_quark(section, file);
    if (method == "auto-round") return read_auto_round(section, file);
    if (method == "mxfp4") {
      out_.moe_ = Statement{.kind = SchemeKind::kMxfp4,
                            .block = {1, 32},
                            .text = fmt::format("quant_method mxfp4 ({})", file)};
      return read_list(section, "modules_to_not_convert", file, Dialect::kGptOss);
    }
    if (method == "fp8" || method == "deepseek_v4_fp8" || method == "fbgemm_fp8") {
      read_fp8(section, file);
    }
    read_modelopt(section, file);
  }

  void read_fp8(const json::Value& section, const std::string& file) {
    Statement base{.kind = SchemeKind::kFp8Block, .allows_dense = true};
    const std::string& method = out_.method_;
    if (out_.fp8_block_) {
      base.block = *out_.fp8_block_;
      base.text = fmt::format("quant_method {} with weight_block_size [{}, {}] ({})",
                              method,
                              base.block.n,
                              base.block.k,
                              file);
    } else if (method == "deepseek_v4_fp8") {
      base.text = fmt::format("quant_method {} ({})", method, file);
    } else {
      base.kind = method == "fbgemm_fp8" ? SchemeKind::kFp8Channel : SchemeKind::kFp8Tensor;
      base.text = fmt::format("quant_method {} ({})", method, file);
    }
    out_.base_ = std::move(base);
    read_list(section, "ignored_layers", file, Dialect::kSubstring);
    read_list(section, "modules_to_not_convert", file, Dialect::kSubstring);
  }

  // --- ModelOpt, in config.json and hf_quant_config.json ---

  void read_modelopt_file(const json::Value& config) {
    const json::Value* section = config.find("quantization");
    if (section == nullptr || !section->is_object()) return;
    const std::string file = "hf_quant_config.json";
    if (section_ != nullptr) {
      compare(*section_, *section, "quant_algo");
      compare(*section_, *section, "moe_quant_algo");
      compare(*section_, *section, "kv_cache_quant_algo");
      compare(*section_, *section, "group_size");
      compare_lists(*section_, *section);
    }
    if (out_.method_.empty()) out_.method_ = "modelopt";
    read_modelopt(*section, file);
  }

  // The same key in both files with different values that are not null.
  void compare(const json::Value& first, const json::Value& second, std::string_view key) {
    const json::Value* a = first.find(key);
    const json::Value* b = second.find(key);
    if (a == nullptr || b == nullptr || a->is_null() || b->is_null()) return;
    if (a->is_string() && b->is_string() &&
        upper_case(*a->as_string()) == upper_case(*b->as_string())) {
      return;
    }
    if (is_equal(*a, *b)) return;
    out_.conflicts_.push_back({.key = std::string(key),
                               .first = json::dump(*a, json::Style::kCompact),
                               .second = json::dump(*b, json::Style::kCompact)});
  }

  static std::set<std::string> names_in(const json::Value& section) {
    std::set<std::string> names;
    for (const std::string_view key : {"ignore", "exclude_modules"}) {
      const json::Value* list = section.find(key);
      if (list == nullptr || !list->is_array()) continue;
      for (const json::Value& item : *list->as_array()) {
        if (item.is_string()) names.insert(*item.as_string());
      }
    }
    return names;
  }
  void compare_lists(const json::Value& first, const json::Value& second) {
    const std::set<std::string> a = names_in(first);
    const std::set<std::string> b = names_in(second);
    if (a.empty() || b.empty() || a == b) return;
    std::string only;
    for (const std::string& name : a) {
      if (!b.contains(name)) only = fmt::format("{} only in config.json", quoted(name));
    }
    for (const std::string& name : b) {
      if (!a.contains(name)) only = fmt::format("{} only in hf_quant_config.json", quoted(name));
    }
    out_.diagnostics_.push_back(
        {.severity = Severity::kWarning,
         .code = "Q-D2",
         .message = fmt::format("config.json and hf_quant_config.json exclude different modules "
                                "(e.g. {}); the stored bytes decide. Fix: make the lists equal.",
                                only)});
  }

  std::optional<Statement> algorithm_statement(std::string_view algo,
                                               std::string_view key,
                                               const json::Value& owner,
                                               const std::string& file) {
    const std::string name = upper_case(algo);
    const Algorithm* algorithm = find_algorithm(name);
    if (algorithm == nullptr) {
      values_.unknown(key, algo, file, join(kAlgorithms) + ", " + std::string(kMixed));
      return std::nullopt;
    }
    Statement statement{.kind = algorithm->kind,
                        .bits = algorithm->bits,
                        .text = fmt::format("{} {} ({})", key, name, file)};
    if (statement.kind == SchemeKind::kFp8Block && out_.fp8_block_) {
      statement.block = *out_.fp8_block_;
    }
    const bool has_groups = statement.kind == SchemeKind::kNvfp4 ||
                            statement.kind == SchemeKind::kMxfp4 ||
                            statement.kind == SchemeKind::kInt;
    if (has_groups) {
      const int32_t group =
          values_.integer_at(owner, "group_size", values_.integer_at(owner, "awq_block_size", 0));
      if (group > 0) statement.block = {1, group};
    }
    return statement;
  }

  void read_modelopt(const json::Value& section, const std::string& file) {
    if (const std::string_view algo = string_at(section, "quant_algo"); !algo.empty()) {
      if (upper_case(algo) != kMixed) {
        std::optional<Statement> base = algorithm_statement(algo, "quant_algo", section, file);
        if (base) out_.base_ = std::move(base);
      }
    }
    if (const std::string_view algo = string_at(section, "moe_quant_algo"); !algo.empty()) {
      out_.moe_ = algorithm_statement(algo, "moe_quant_algo", section, file);
    }
    if (const json::Value* kv = section.find("kv_cache_quant_algo")) {
      if (!kv->is_null()) out_.has_kv_scales_ = true;
    }
    const json::Value* layers = section.find("quantized_layers");
    if (layers != nullptr && layers->is_object()) {
      for (const json::Member& member : *layers->as_object()) {
        const std::string_view algo = string_at(member.value, "quant_algo");
        if (algo.empty()) {
          out_.layers_.insert_or_assign(
              member.key,
              Statement{.is_dense = true,
                        .text = fmt::format("quantized_layers without algorithm ({})", file)});
          continue;
        }
        std::optional<Statement> statement =
            algorithm_statement(algo, "quantized_layers", member.value, file);
        if (statement) out_.layers_.insert_or_assign(member.key, std::move(*statement));
      }
    }
    read_list(section, "exclude_modules", file, Dialect::kModelOpt);
    read_list(section, "ignore", file, Dialect::kModelOpt);
  }

  void read_list(const json::Value& section,
                 std::string_view key,
                 const std::string& file,
                 Dialect dialect) {
    const json::Value* list = section.find(key);
    if (list == nullptr || !list->is_array()) return;
    for (const json::Value& item : *list->as_array()) {
      const std::string* text = item.as_string();
      if (text == nullptr || text->empty() || !seen_exclusions_.insert(*text).second) continue;
      out_.exclusions_.add(*text, fmt::format("{} in {}", key, file), dialect, out_.diagnostics_);
    }
  }

  // --- compressed-tensors ---

  // The `weights` of a group, or Quark's `weight`.
  Statement group_statement(const json::Value& weights,
                            std::string_view format,
                            const std::string& text) {
    const int32_t bits = values_.bits_at(weights, "num_bits", 0);
    const std::string_view type = string_at(weights, "type");
    const std::string_view strategy = string_at(weights, "strategy");
    const int32_t group = values_.integer_at(weights, "group_size", 0);
    Statement statement{.text = text};
    if (type == "float" && bits == 4) {
      const bool is_mx = format == "mxfp4-pack-quantized" || (format.empty() && group == 32);
      statement.kind = is_mx ? SchemeKind::kMxfp4 : SchemeKind::kNvfp4;
      statement.block = {1, group > 0 ? group : is_mx ? 32 : 16};
    } else if (type == "float" && bits == 8) {
      if (format == "mxfp8-quantized" || (strategy == "group" && group == 32)) {
        statement.kind = SchemeKind::kMxfp8;
      } else if (strategy == "block") {
        statement.kind = SchemeKind::kFp8Block;
        statement.block = values_.block_at(weights, "block_structure").value_or(BlockShape{0, 0});
      } else {
        statement.kind = strategy == "channel" ? SchemeKind::kFp8Channel : SchemeKind::kFp8Tensor;
      }
    } else if (type == "int") {
      const bool is_packed = format.empty() || format == "pack-quantized";
      statement.kind = bits == 8 && !is_packed ? SchemeKind::kInt8 : SchemeKind::kInt;
      statement.bits = statement.kind == SchemeKind::kInt ? bits : 0;
      if (group > 0) statement.block = {1, group};
      if (out_.bits_ == 0) out_.bits_ = bits;
      const json::Value* symmetric = weights.find("symmetric");
      const json::Value* order = weights.find("actorder");
      statement.needs_zero_point = symmetric != nullptr && !values_.bool_at(weights, "symmetric");
      // "group" or "static" reorder while quantising; only "group" needs the index afterwards.
      const bool* is_ordered = order == nullptr ? nullptr : order->as_bool();
      statement.needs_group_index =
          string_at(weights, "actorder") == "group" || (is_ordered != nullptr && *is_ordered);
    }
    return statement;
  }

  void read_compressed_tensors(const json::Value& section, const std::string& file) {
    const std::string_view format = string_at(section, "format");
    const auto check_format = [&](std::string_view name) {
      if (name.empty()) return true;
      if (std::find(kPackedFormats.begin(), kPackedFormats.end(), name) != kPackedFormats.end()) {
        return true;
      }
      values_.unknown("format", name, file, join(kPackedFormats));
      return false;
    };
    if (!check_format(format)) return;
    const json::Value* groups = section.find("config_groups");
    if (groups != nullptr && groups->is_object()) {
      for (const json::Member& member : *groups->as_object()) {
        const json::Value* weights = member.value.find("weights");
        if (weights == nullptr || !weights->is_object()) continue;
        std::string_view own_format = string_at(member.value, "format");
        if (!check_format(own_format)) continue;
        if (own_format.empty() && format != "mixed-precision") own_format = format;
        add_targets(member, group_statement(*weights, own_format, ""), file);
      }
    }
    read_list(section, "ignore", file, Dialect::kCompressedTensors);
  }

  void add_targets(const json::Member& group, Statement statement, const std::string& file) {
    const json::Value* targets = group.value.find("targets");
    if (targets == nullptr || !targets->is_array()) return;
    for (const json::Value& item : *targets->as_array()) {
      const std::string* target = item.as_string();
      if (target == nullptr) continue;
      statement.text = fmt::format("{} target {} ({})", group.key, quoted(*target), file);
      const bool is_class = target->find('.') == std::string::npos &&
                            target->substr(0, 3) != "re:" && !target->empty() &&
                            std::isupper(static_cast<unsigned char>(target->front())) != 0;
      if (is_class) {
        if (!out_.linear_target_) out_.linear_target_ = statement;
        continue;
      }
      out_.target_names_.add(*target,
                             fmt::format("targets of {} in {}", group.key, file),
                             Dialect::kCompressedTensors,
                             out_.diagnostics_);
      out_.target_statements_.push_back(statement);
    }
  }

  // --- integer methods ---

  Statement integer_base(const json::Value& section, const std::string& file) {
    const int32_t bits = values_.bits_at(section, "bits", values_.bits_at(section, "w_bit", 4));
    const int32_t group =
        values_.integer_at(section, "group_size", values_.integer_at(section, "q_group_size", 0));
    out_.bits_ = bits;
    return {
        .kind = SchemeKind::kInt,
        .block = {0, std::max(group, 0)},
        .bits = bits,
        .allows_dense = true,
        .text = fmt::format(
            "quant_method {} with bits {}, group_size {} ({})", out_.method_, bits, group, file)};
  }

  void read_gptq(const json::Value& section, const std::string& file) {
    out_.base_ = integer_base(section, file);
    out_.is_lm_head_quantized_ = values_.bool_at(section, "lm_head");
    out_.has_act_order_ = values_.bool_at(section, "desc_act");
    out_.checkpoint_format_ = std::string(string_at(section, "checkpoint_format"));
    if (out_.checkpoint_format_.empty()) out_.checkpoint_format_ = "gptq";
    if (out_.checkpoint_format_ == "marlin" || values_.bool_at(section, "is_marlin_format")) {
      values_.unknown("checkpoint_format", "marlin", file, "gptq, gptq_v2");
    }
    const json::Value* dynamic = section.find("dynamic");
    if (dynamic == nullptr || !dynamic->is_object()) return;
    for (const json::Member& member : *dynamic->as_object()) {
      std::string_view key = member.key;
      Statement statement = *out_.base_;
      statement.text = fmt::format("dynamic {} ({})", quoted(key), file);
      if (key.substr(0, 2) == "-:") {
        statement.is_dense = true;
        key.remove_prefix(2);
      } else {
        if (key.substr(0, 2) == "+:") key.remove_prefix(2);
        statement.bits = values_.bits_at(member.value, "bits", statement.bits);
        statement.block.k = values_.integer_at(member.value, "group_size", statement.block.k);
      }
      add_layer_pattern("re:" + std::string(key), std::move(statement), "dynamic in " + file);
    }
  }

  void add_layer_pattern(std::string_view pattern, Statement statement, std::string_view source) {
    out_.layer_names_.add(pattern, source, Dialect::kQuark, out_.diagnostics_);
    out_.layer_statements_.push_back(std::move(statement));
  }

  void read_awq(const json::Value& section, const std::string& file) {
    out_.base_ = integer_base(section, file);
    std::string version(string_at(section, "version"));
    std::transform(version.begin(), version.end(), version.begin(), [](unsigned char c) {
      return static_cast<char>(std::tolower(c));
    });
    if (!version.empty() && version != "gemm") values_.unknown("version", version, file, "gemm");
    read_list(section, "modules_to_not_convert", file, Dialect::kSubstring);
  }

  void read_bits_and_bytes(const json::Value& section, const std::string& file) {
    const std::string_view type = string_at(section, "bnb_4bit_quant_type");
    const bool is_4_bit = values_.bool_at(section, "load_in_4bit");
    out_.base_ = Statement{
        .kind = !is_4_bit       ? SchemeKind::kInt8
                : type == "fp4" ? SchemeKind::kBnbFp4
                                : SchemeKind::kNf4,
        .allows_dense = true,
        .text = fmt::format("quant_method bitsandbytes {} ({})", is_4_bit ? type : "int8", file)};
    read_list(section, "llm_int8_skip_modules", file, Dialect::kSubstring);
  }

  void read_auto_round(const json::Value& section, const std::string& file) {
    out_.base_ = integer_base(section, file);
    const std::string_view type = string_at(section, "data_type");
    if (type == "mx_fp") out_.base_->kind = SchemeKind::kMxfp4;
    if (type == "nv_fp") out_.base_->kind = SchemeKind::kNvfp4;
    if (out_.base_->kind != SchemeKind::kInt) out_.base_->bits = 0;
    const json::Value* extra = section.find("extra_config");
    if (extra == nullptr || !extra->is_object()) return;
    for (const json::Member& member : *extra->as_object()) {
      Statement statement = *out_.base_;
      const int32_t bits = values_.bits_at(member.value, "bits", statement.bits);
      statement.is_dense = bits >= 16;
      statement.bits = bits;
      statement.block.k = values_.integer_at(member.value, "group_size", statement.block.k);
      statement.text = fmt::format("extra_config bits {} ({})", bits, file);
      out_.layers_.insert_or_assign(member.key, std::move(statement));
    }
  }

  // --- Quark ---

  std::optional<Statement> quark_statement(const json::Value& config, const std::string& text) {
    const json::Value* weight = config.find("weight");
    if (weight == nullptr || !weight->is_object()) {
      return Statement{.is_dense = true, .text = text};
    }
    const std::string_view dtype = string_at(*weight, "dtype");
    const std::string_view scheme = string_at(*weight, "qscheme");
    const int32_t group = values_.integer_at(*weight, "group_size", 0);
    Statement statement{.text = text};
    if (dtype == "fp4") {
      statement.kind = group == 16 ? SchemeKind::kNvfp4 : SchemeKind::kMxfp4;
      if (group > 0) statement.block = {1, group};
    } else if (dtype == "fp8_e4m3" || dtype == "fp8") {
      statement.kind = scheme == "per_channel" ? SchemeKind::kFp8Channel
                       : scheme == "per_block" ? SchemeKind::kFp8Block
                                               : SchemeKind::kFp8Tensor;
    } else if (dtype == "int4" || dtype == "uint4") {
      statement.kind = SchemeKind::kInt;
      statement.bits = 4;
      if (group > 0) statement.block = {1, group};
    } else if (dtype == "int8") {
      statement.kind = SchemeKind::kInt8;
    } else {
      values_.unknown("weight dtype", dtype, text, "fp4, fp8_e4m3, int4, uint4, int8");
      return std::nullopt;
    }
    return statement;
  }

  void read_quark(const json::Value& section, const std::string& file) {
    if (const json::Value* global = section.find("global_quant_config")) {
      out_.base_ = quark_statement(*global, fmt::format("global_quant_config ({})", file));
    }
    const json::Value* layers = section.find("layer_quant_config");
    if (layers != nullptr && layers->is_object()) {
      for (const json::Member& member : *layers->as_object()) {
        std::optional<Statement> statement = quark_statement(
            member.value, fmt::format("layer_quant_config {} ({})", quoted(member.key), file));
        if (statement) {
          add_layer_pattern(member.key, std::move(*statement), "layer_quant_config in " + file);
        }
      }
    }
    read_list(section, "exclude", file, Dialect::kQuark);
  }

  Declaration out_;
  ConfigValues values_{out_.diagnostics_};
  std::map<std::string, json::Value> documents_;
  const json::Value* section_ = nullptr;  // of config.json
  std::set<std::string> seen_exclusions_;
};

Declaration Declaration::read(std::span<const ConfigText> configs) {
  return Reader().read(configs);
}

}  // namespace nibble::quant
