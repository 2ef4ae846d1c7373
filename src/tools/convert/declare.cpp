#include "tools/convert/declare.h"

#include <fmt/format.h>

#include "base/check.h"

namespace nibble::tools {
namespace {

using json::Array;
using json::make_object;
using json::Object;
using json::Value;

// Keys that form B adds to a native quantization_config.
constexpr std::string_view kNvfp4Keys[] = {"quant_algo",
                                           "moe_quant_algo",
                                           "group_size",
                                           "kv_cache_quant_algo",
                                           "config_groups",
                                           "quantized_layers",
                                           "ignore",
                                           "producer"};

Object native_quantization() {
  return make_object({{"quant_method", "fp8"},
                      {"fmt", "e4m3"},
                      {"scale_fmt", "ue8m0"},
                      {"activation_scheme", "dynamic"},
                      {"weight_block_size", Array{128, 128}}});
}

// What the input says of its FP8 weights, which are kept: or what a native checkpoint says.
Object fp8_quantization(const Object& config) {
  const Value* found = config.find("quantization_config");
  const Value* method = found == nullptr ? nullptr : found->find("quant_method");
  if (method == nullptr || method->as_string() == nullptr || *method->as_string() != "fp8") {
    return native_quantization();
  }
  Object quantization = *found->as_object();
  for (const std::string_view key : kNvfp4Keys) quantization.erase(key);
  return quantization;
}

// Glob patterns over module names, as ModelOpt writes them.
Array nvfp4_exclusions(bool drafts_differ) {
  Array patterns{"*.attn.*", "*.ffn.shared_experts.*", "*.ffn.gate", "embed", "head"};
  if (drafts_differ) patterns.emplace_back("mtp.*");
  return patterns;
}

Object nvfp4_layers(int32_t num_hidden_layers) {
  Object layers;
  for (int32_t l = 0; l < num_hidden_layers; ++l) {
    layers.set(fmt::format("layers.{}.ffn.experts", l),
               make_object({{"quant_algo", "NVFP4"}, {"group_size", 16}}));
  }
  return layers;
}

void declare_nvfp4(Declaration& declaration, const DeclareOptions& options) {
  const Array exclusions = nvfp4_exclusions(options.drafts_differ);
  const Object layers = nvfp4_layers(options.num_hidden_layers);
  const Object producer = make_object({{"name", "nibble"}});
  Object quantization = fp8_quantization(declaration.config);
  quantization.set("quant_algo", "MIXED_PRECISION");
  quantization.set("moe_quant_algo", "NVFP4");
  quantization.set("group_size", 16);
  quantization.set("kv_cache_quant_algo", nullptr);
  quantization.set(
      "config_groups",
      make_object(
          {{"group_0",
            make_object(
                {{"targets", Array{"Linear"}},
                 {"weights",
                  make_object({{"num_bits", 4}, {"type", "float"}, {"group_size", 16}})}})}}));
  quantization.set("quantized_layers", layers);
  quantization.set("ignore", exclusions);
  quantization.set("producer", producer);
  declaration.config.set("expert_dtype", "fp4");
  declaration.config.set("quantization_config", std::move(quantization));
  declaration.hf_quant = make_object({{"producer", producer},
                                      {"quantization",
                                       make_object({{"quant_algo", "MIXED_PRECISION"},
                                                    {"kv_cache_quant_algo", nullptr},
                                                    {"group_size", 16},
                                                    {"exclude_modules", exclusions},
                                                    {"quantized_layers", layers}})}});
}

// compressed-tensors: patterns with "re:" are regular expressions from the start of the name.
void declare_int4(Declaration& declaration, const DeclareOptions& options) {
  Array ignore{"head", "re:.*\\.attn\\..*", "re:.*\\.ffn\\.shared_experts\\..*", "re:.*\\.gate$"};
  if (options.drafts_differ) ignore.emplace_back("re:mtp\\..*");
  const Object weights = make_object({{"num_bits", 4},
                                      {"type", "int"},
                                      {"symmetric", true},
                                      {"strategy", "group"},
                                      {"group_size", 32}});
  const Object group = make_object({{"targets", Array{"Linear"}},
                                    {"input_activations", nullptr},
                                    {"output_activations", nullptr},
                                    {"weights", weights}});
  declaration.config.erase("expert_dtype");
  declaration.config.set("quantization_config",
                         make_object({{"quant_method", "compressed-tensors"},
                                      {"format", "pack-quantized"},
                                      {"quantization_status", "compressed"},
                                      {"config_groups", make_object({{"group_0", group}})},
                                      {"ignore", std::move(ignore)}}));
}

void append_indented(std::string& out, const Value& value, size_t depth) {
  const auto new_line = [&](size_t level) { out.append(1, '\n').append(2 * level, ' '); };
  const Object* object = value.as_object();
  const Array* array = value.as_array();
  if ((object == nullptr || object->empty()) && (array == nullptr || array->empty())) {
    return json::dump_to(out, value, json::Style::kPython);
  }
  out += object != nullptr ? '{' : '[';
  bool is_first = true;
  const auto separate = [&] {
    if (!is_first) out += ',';
    is_first = false;
    new_line(depth + 1);
  };
  if (object != nullptr) {
    for (const json::Member& member : *object) {
      separate();
      json::append_quoted(out, member.key);
      out += ": ";
      append_indented(out, member.value, depth + 1);
    }
  } else {
    for (const Value& element : *array) {
      separate();
      append_indented(out, element, depth + 1);
    }
  }
  new_line(depth);
  out += object != nullptr ? '}' : ']';
}

}  // namespace

std::string_view checkpoint_format_name(CheckpointFormat format) {
  for (const CheckpointFormatName& entry : kCheckpointFormatNames) {
    if (entry.format == format) return entry.name;
  }
  return {};
}

Declaration declare_format(const Object& config, const DeclareOptions& options) {
  Declaration declaration{.config = config, .hf_quant = std::nullopt};
  switch (options.format) {
    case CheckpointFormat::kBf16:
      declaration.config.erase("expert_dtype");
      declaration.config.erase("quantization_config");
      break;
    case CheckpointFormat::kNative:
      declaration.config.set("expert_dtype", "fp4");
      declaration.config.set("quantization_config", fp8_quantization(config));
      break;
    case CheckpointFormat::kNvfp4:
      declare_nvfp4(declaration, options);
      break;
    case CheckpointFormat::kInt4:
      declare_int4(declaration, options);
      break;
  }
  return declaration;
}

std::string config_text(const Object& config) {
  std::string text;
  append_indented(text, config, 0);
  text += '\n';
  return text;
}

}  // namespace nibble::tools
