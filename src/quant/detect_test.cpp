#include "quant/detect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>

#include "quant/fixture_testing.h"
#include "quant/reference.h"

namespace nibble::quant {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Detection detect_fixture(const Fixture& fixture, const DetectOptions& options = {}) {
  return detect({.configs = fixture.configs, .tensors = fixture.tensors, .read = {}}, options);
}

// Formats of a class, joined; empty when it has no modules.
std::string formats_of(const Detection& detection, std::string_view role) {
  std::set<std::string> names;
  for (const DetectedModule& module : detection.modules) {
    // Biases, sinks and expert tables are parameters, not the class's weights.
    const bool is_weight = module.n > 1 && module.scheme.kind != SchemeKind::kIndex;
    if (role_name(module.role) == role && is_weight) names.insert(scheme_name(module.scheme));
  }
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : "+") + name;
  return text;
}

std::vector<std::string> codes_of(const Detection& detection, Severity at_least) {
  std::vector<std::string> codes;
  for (const Diagnostic& diagnostic : detection.diagnostics) {
    if (diagnostic.severity >= at_least) codes.push_back(diagnostic.code);
  }
  std::sort(codes.begin(), codes.end());
  codes.erase(std::unique(codes.begin(), codes.end()), codes.end());
  return codes;
}
std::vector<std::string> errors_of(const Detection& detection) {
  return codes_of(detection, Severity::kError);
}
std::string text_of(const Detection& detection) {
  std::string text;
  for (const Diagnostic& diagnostic : detection.diagnostics) text += to_text(diagnostic) + "\n";
  return text;
}
std::string message_of(const Detection& detection, std::string_view code) {
  for (const Diagnostic& diagnostic : detection.diagnostics) {
    if (diagnostic.code == code) return to_text(diagnostic);
  }
  return "";
}

// A row of the decision table: class -> formats. Classes that are left out are not compared.
using Row = std::map<std::string, std::string>;

void expect_row(const Fixture& fixture, const Row& row) {
  const Detection detection = detect_fixture(fixture);
  EXPECT_THAT(errors_of(detection), IsEmpty()) << text_of(detection);
  for (const auto& [role, formats] : row) {
    EXPECT_EQ(formats_of(detection, role), formats) << role;
  }
  for (const DetectedModule& module : detection.modules) {
    EXPECT_NE(module.role.module_class, ModuleClass::kOther) << module.name;
    EXPECT_NE(module.scheme.kind, SchemeKind::kUnknown) << module.name;
  }
}

Fixture v4(const V4Options& options, std::string_view members) {
  Fixture fixture = v4_fixture(v4_small(), options);
  fixture.config("config.json", v4_config(v4_small(), members));
  return fixture;
}
Fixture v4_native() { return v4({}, kV4NativeSection); }
Fixture v4_form_b(V4Weights draft = V4Weights::kMxfp4, V4Draft kind = V4Draft::kMtp) {
  Fixture fixture = v4({.experts = V4Weights::kNvfp4, .draft_experts = draft, .draft = kind},
                       v4_form_b_section(2));
  fixture.config("hf_quant_config.json", v4_form_b_hf_quant_config());
  return fixture;
}

// A decoder in the naming of most other models; `linear` and `expert` add a module each.
struct Plain {
  using Add = void (*)(Fixture&, const std::string&, int64_t, int64_t);
  Add attention;
  Add shared;
  Add experts;
  Add head = [](Fixture& f, const std::string& m, int64_t n, int64_t k) { f.dense(m, n, k); };
  Add dense_mlp = nullptr;  // of layer 0, where set
  DType dtype = DType::kBf16;
  std::string prefix = "model.";
};
void bf16(Fixture& f, const std::string& m, int64_t n, int64_t k) { f.dense(m, n, k); }
void f16(Fixture& f, const std::string& m, int64_t n, int64_t k) { f.dense(m, n, k, DType::kF16); }

Fixture plain(const Plain& p) {
  Fixture f;
  f.dense(p.prefix + "embed_tokens", 512, 256, p.dtype);
  f.vector(p.prefix + "norm", 256, p.dtype);
  p.head(f, "lm_head", 512, 256);
  for (int32_t l = 0; l < 2; ++l) {
    const std::string layer = p.prefix + "layers." + std::to_string(l) + ".";
    f.vector(layer + "input_layernorm", 256, p.dtype);
    f.vector(layer + "post_attention_layernorm", 256, p.dtype);
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
      p.attention(f, layer + "self_attn." + name, 256, 256);
    }
    if (l == 0 && p.dense_mlp != nullptr) {
      p.dense_mlp(f, layer + "mlp.gate_proj", 512, 256);
      p.dense_mlp(f, layer + "mlp.up_proj", 512, 256);
      p.dense_mlp(f, layer + "mlp.down_proj", 256, 512);
      continue;
    }
    f.dense(layer + "mlp.gate", 4, 256, p.dtype);
    for (const char* name : {"gate_proj", "up_proj", "down_proj"}) {
      p.shared(f, layer + "mlp.shared_experts." + name, 256, 256);
      for (int32_t e = 0; e < 4; ++e) {
        p.experts(f, layer + "mlp.experts." + std::to_string(e) + "." + name, 256, 256);
      }
    }
  }
  return f;
}

std::string plain_config(std::string_view model_type, std::string_view section) {
  return "{\"model_type\":\"" + std::string(model_type) + R"(","num_hidden_layers":2,)" +
         R"("quantization_config":)" + std::string(section) + "}";
}

void nvfp4(Fixture& f, const std::string& m, int64_t n, int64_t k) { f.nvfp4_modelopt(m, n, k); }
void fp8_v3(Fixture& f, const std::string& m, int64_t n, int64_t k) {
  f.fp8_block(m, n, k, ".weight_scale_inv", DType::kF32);
}
void fp8_tensor(Fixture& f, const std::string& m, int64_t n, int64_t k) { f.fp8_tensor(m, n, k); }

// --- the decision table ---

TEST(DecisionTable, Row01NativeV4) {
  expect_row(v4_native(),
             {{"embedding", "bf16"},
              {"attention", "fp8_block128x128"},
              {"shared_experts", "fp8_block128x128"},
              {"routed_experts", "mxfp4"},
              {"router", "bf16"},
              {"lm_head", "bf16"},
              {"hyper_connection", "f32"},
              {"draft_routed_experts", "mxfp4"},
              {"draft_attention", "fp8_block128x128"},
              {"draft_projection", "fp8_block128x128"}});
}

TEST(DecisionTable, Row02BaseAndFp8Repacks) {
  constexpr std::string_view kSection =
      R"(,"quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]})";
  const Row row = {{"attention", "fp8_block128x128"},
                   {"routed_experts", "fp8_block128x128"},
                   {"draft_routed_experts", "fp8_block128x128"},
                   {"router", "bf16"}};
  const V4Options f32_scales = {.linears = V4Weights::kFp8BlockF32,
                                .experts = V4Weights::kFp8BlockF32,
                                .draft_experts = V4Weights::kFp8BlockF32};
  expect_row(v4(f32_scales, kSection), row);
  const V4Options e8m0_scales = {.experts = V4Weights::kFp8Block,
                                 .draft_experts = V4Weights::kFp8Block};
  expect_row(v4(e8m0_scales, R"(,"expert_dtype":"fp8")" + std::string(kSection)), row);
}

TEST(DecisionTable, Row03FormA) {
  Fixture fixture = v4({.experts = V4Weights::kNvfp4, .draft_experts = V4Weights::kNvfp4}, "");
  std::string layers;
  for (int32_t l = 0; l < 2; ++l) {
    for (int32_t e = 0; e < 4; ++e) {
      for (const char* w : {"w1", "w2", "w3"}) {
        layers += (layers.empty() ? "\"layers." : ",\"layers.") + std::to_string(l) +
                  ".ffn.experts." + std::to_string(e) + "." + w +
                  R"(":{"quant_algo":"NVFP4","awq_block_size":16})";
      }
    }
  }
  fixture.config(
      "hf_quant_config.json",
      R"({"quantization":{"quant_algo":null,"quantized_layers":{)" + layers +
          R"(},"exclude_modules":["*.attn.*","*.attn_norm.*","*.ffn.shared_experts.*","*.ffn.gate.*","embed.weight","head.weight"]}})");
  expect_row(fixture,
             {{"attention", "fp8_block128x128"},
              {"shared_experts", "fp8_block128x128"},
              {"routed_experts", "nvfp4"},
              {"router", "bf16"},
              {"draft_routed_experts", "nvfp4"}});
  EXPECT_THAT(codes_of(detect_fixture(fixture), Severity::kWarning), IsEmpty())
      << text_of(detect_fixture(fixture));
}

TEST(DecisionTable, Row04FormB) {
  const Fixture fixture = v4_form_b();
  expect_row(fixture,
             {{"embedding", "bf16"},
              {"attention", "fp8_block128x128"},
              {"shared_experts", "fp8_block128x128"},
              {"routed_experts", "nvfp4"},
              {"router", "bf16"},
              {"lm_head", "bf16"},
              {"draft_routed_experts", "mxfp4"}});
  const Detection detection = detect_fixture(fixture);
  EXPECT_THAT(codes_of(detection, Severity::kInfo), ElementsAre("Q-C7")) << text_of(detection);
}

TEST(DecisionTable, Row05FormBWithDspark) {
  expect_row(v4_form_b(V4Weights::kMxfp4, V4Draft::kDspark),
             {{"routed_experts", "nvfp4"},
              {"draft_routed_experts", "mxfp4"},
              {"draft_attention", "fp8_block128x128"},
              {"draft_lm_head", "bf16"},
              {"draft_projection", "fp8_block128x128"}});
}

TEST(DecisionTable, Row06CommunityRepacks) {
  constexpr std::string_view kIgnore = R"("*.attn.*","*.ffn.shared_experts.*","head")";
  Fixture fixture = v4(
      {.experts = V4Weights::kNvfp4, .draft_experts = V4Weights::kNvfp4, .draft = V4Draft::kDspark},
      v4_form_b_section(2, kIgnore, "dsv4-nvfp4-experts-mtp-fallback"));
  expect_row(fixture, {{"routed_experts", "nvfp4"}, {"draft_routed_experts", "nvfp4"}});
}

TEST(DecisionTable, Row07V41) {
  const V4Options native = {.linears = V4Weights::kFp8Block32, .has_engram = true};
  Fixture fixture = v4_fixture(v4_small(), native);
  fixture.dense("vision.patch_embed", 256, 192);
  fixture.config(
      "config.json",
      v4_config(
          v4_small(),
          R"(,"quantization_config":{"quant_method":"fp8","expert_dtype":"fp4","weight_block_size":[32,32]})",
          "deepseek_v41"));
  const Row row = {{"attention", "fp8_block32x32"},
                   {"shared_experts", "fp8_block32x32"},
                   {"routed_experts", "mxfp4"},
                   {"engram", "mxfp8"},
                   {"vision", "bf16"},
                   {"hyper_connection", "f32"},
                   {"draft_routed_experts", "mxfp4"}};
  expect_row(fixture, row);

  V4Options options = native;
  options.experts = V4Weights::kNvfp4;
  Fixture converted = v4_fixture(v4_small(), options);
  converted.dense("vision.patch_embed", 256, 192);
  converted.config(
      "config.json",
      v4_config(v4_small(),
                v4_form_b_section(
                    2, R"("*.attn.*","*.ffn.shared_experts.*","head","mtp.*")", "dsv41", "[32,32]"),
                "deepseek_v41"));
  Row nvfp4_row = row;
  nvfp4_row["routed_experts"] = "nvfp4";
  expect_row(converted, nvfp4_row);
}

TEST(DecisionTable, Row08DeepSeekV3) {
  Fixture fixture = plain({.attention = fp8_v3, .shared = fp8_v3, .experts = fp8_v3});
  const std::string mtp = "model.layers.2.";
  fp8_v3(fixture, mtp + "self_attn.o_proj", 256, 256);
  fp8_v3(fixture, mtp + "mlp.experts.0.up_proj", 256, 256);
  fixture.dense(mtp + "eh_proj", 256, 512);
  fixture.vector(mtp + "enorm", 256);
  fixture.dense(mtp + "shared_head.head", 512, 256);
  fixture.config(
      "config.json",
      plain_config(
          "deepseek_v3",
          R"({"quant_method":"fp8","fmt":"e4m3","activation_scheme":"dynamic","weight_block_size":[128,128]})"));
  expect_row(fixture,
             {{"attention", "fp8_block128x128"},
              {"routed_experts", "fp8_block128x128"},
              {"router", "bf16"},
              {"lm_head", "bf16"},
              {"draft_routed_experts", "fp8_block128x128"},
              {"draft_projection", "bf16"}});
}

TEST(DecisionTable, Row09R1Nvfp4) {
  Fixture fixture = plain({.attention = bf16, .shared = nvfp4, .experts = nvfp4});
  fixture.dense("model.layers.2.mlp.experts.0.up_proj", 256, 256);
  const std::string list =
      R"(["lm_head","model.layers.0.self_attn*","model.layers.1.self_attn*","model.layers.2*"])";
  fixture.config("hf_quant_config.json",
                 R"({"quantization":{"quant_algo":"NVFP4","group_size":16,)"
                 R"("kv_cache_quant_algo":null,"exclude_modules":)" +
                     list + "}}");
  const Row row = {{"attention", "bf16"},
                   {"shared_experts", "nvfp4"},
                   {"routed_experts", "nvfp4"},
                   {"lm_head", "bf16"},
                   {"draft_routed_experts", "bf16"}};
  Fixture early = fixture;
  early.config("config.json", R"({"model_type":"deepseek_v3","num_hidden_layers":2})");
  expect_row(early, row);
  Fixture late = fixture;
  late.config(
      "config.json",
      plain_config(
          "deepseek_v3",
          R"({"quant_method":"modelopt","quant_algo":"NVFP4","group_size":16,"config_groups":{},"ignore":)" +
              list + "}"));
  expect_row(late, row);
}

// B05: the per-layer map of a mixed checkpoint.
TEST(DecisionTable, Row10MixedPerLayerMapB05) {
  Fixture fixture = plain({.attention = fp8_tensor, .shared = fp8_tensor, .experts = nvfp4});
  std::string layers;
  for (int32_t l = 0; l < 2; ++l) {
    const std::string layer = "\"model.layers." + std::to_string(l) + ".";
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
      layers += layer + "self_attn." + name + R"(":{"quant_algo":"FP8"},)";
    }
    layers += layer + R"(mlp.shared_experts":{"quant_algo":"fp8"},)";
    layers += layer + R"(mlp.experts":{"quant_algo":"NVFP4","group_size":16},)";
  }
  layers.pop_back();
  fixture.config("config.json",
                 plain_config("qwen3_5_moe",
                              R"({"quant_method":"modelopt","quant_algo":"MIXED_PRECISION",)"
                              R"("quantized_layers":{)" +
                                  layers + "}}"));
  expect_row(fixture,
             {{"attention", "fp8_tensor"},
              {"shared_experts", "fp8_tensor"},
              {"routed_experts", "nvfp4"},
              {"router", "bf16"},
              {"lm_head", "bf16"}});
}

TEST(DecisionTable, Row11ModelOptFp8) {
  Fixture fixture = plain({.attention = fp8_tensor, .shared = fp8_tensor, .experts = fp8_tensor});
  fixture.add("model.layers.0.self_attn.k_proj.k_scale", DType::kF32, {});
  fixture.add("model.layers.0.self_attn.v_proj.v_scale", DType::kF32, {});
  fixture.config(
      "config.json",
      plain_config(
          "qwen3_moe",
          R"({"quant_method":"modelopt","quant_algo":"FP8","kv_cache_scheme":{"num_bits":8,"type":"float","dynamic":false},"ignore":["lm_head"]})"));
  expect_row(fixture,
             {{"attention", "fp8_tensor"}, {"routed_experts", "fp8_tensor"}, {"lm_head", "bf16"}});
}

std::string kimi_section(std::string_view format, std::string_view weights) {
  return R"({"quant_method":"compressed-tensors","format":")" + std::string(format) +
         R"(","config_groups":{"group_0":{"targets":["Linear"],"input_activations":null,"weights":)" +
         std::string(weights) +
         R"(}},"ignore":["lm_head","re:.*self_attn.*","re:.*shared_experts.*","re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]})";
}
constexpr std::string_view kInt4Weights =
    R"({"num_bits":4,"type":"int","symmetric":true,"strategy":"group","group_size":32})";

TEST(DecisionTable, Row12KimiInt4) {
  const Row row = {{"embedding", "bf16"},
                   {"attention", "bf16"},
                   {"shared_experts", "bf16"},
                   {"dense_mlp", "bf16"},
                   {"routed_experts", "int4_g32"},
                   {"router", "bf16"},
                   {"lm_head", "bf16"}};
  Plain kimi = {
      .attention = bf16,
      .shared = bf16,
      .experts = [](Fixture& f, const std::string& m, int64_t n, int64_t k) { f.int4_ct(m, n, k); },
      .dense_mlp = bf16};
  Fixture k2 = plain(kimi);
  k2.config("config.json", plain_config("kimi_k2", kimi_section("pack-quantized", kInt4Weights)));
  expect_row(k2, row);

  // K2.5: everything one level deeper, and a vision tower.
  kimi.prefix = "language_model.model.";
  kimi.head = [](Fixture& f, const std::string& m, int64_t n, int64_t k) {
    f.dense("language_model." + m, n, k);
  };
  Fixture k25 = plain(kimi);
  k25.dense("vision_tower.blocks.0.mlp.fc0", 256, 256);
  k25.dense("mm_projector.linear_1", 256, 256);
  k25.config(
      "config.json",
      R"({"model_type":"kimi_k25","text_config":{"num_hidden_layers":2,"quantization_config":)" +
          kimi_section("pack-quantized", kInt4Weights) + "}}");
  expect_row(k25, row);
}

TEST(DecisionTable, Row13KimiMxfp4) {
  Fixture fixture = plain(
      {.attention = bf16,
       .shared = bf16,
       .experts =
           [](Fixture& f, const std::string& m, int64_t n, int64_t k) { f.mxfp4_ct(m, n, k); },
       .dense_mlp = bf16});
  fixture.config(
      "config.json",
      plain_config(
          "kimi_k3",
          kimi_section(
              "mxfp4-pack-quantized",
              R"({"num_bits":4,"type":"float","group_size":32,"scale_dtype":"torch.uint8"})")));
  expect_row(fixture, {{"attention", "bf16"}, {"routed_experts", "mxfp4"}, {"lm_head", "bf16"}});
}

TEST(DecisionTable, Row14GptOss) {
  Fixture f;
  f.dense("model.embed_tokens", 512, 2880);
  f.vector("model.norm", 2880);
  f.dense("lm_head", 512, 2880);
  for (int32_t l = 0; l < 2; ++l) {
    const std::string layer = "model.layers." + std::to_string(l) + ".";
    f.vector(layer + "input_layernorm", 2880);
    f.vector(layer + "post_attention_layernorm", 2880);
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
      f.dense(layer + "self_attn." + name, 2880, 2880);
      f.add(layer + "self_attn." + name + ".bias", DType::kBf16, {2880});
    }
    f.add(layer + "self_attn.sinks", DType::kBf16, {64});
    f.dense(layer + "mlp.router", 4, 2880);
    f.add(layer + "mlp.router.bias", DType::kBf16, {4});
    const std::string experts = layer + "mlp.experts.";
    f.add(experts + "gate_up_proj_blocks", DType::kU8, {4, 5760, 90, 16});
    f.add(experts + "gate_up_proj_scales", DType::kU8, {4, 5760, 90});
    f.add(experts + "gate_up_proj_bias", DType::kBf16, {4, 5760});
    f.add(experts + "down_proj_blocks", DType::kU8, {4, 2880, 90, 16});
    f.add(experts + "down_proj_scales", DType::kU8, {4, 2880, 90});
    f.add(experts + "down_proj_bias", DType::kBf16, {4, 2880});
  }
  f.config(
      "config.json",
      plain_config(
          "gpt_oss",
          R"({"quant_method":"mxfp4","modules_to_not_convert":["model.layers.*.self_attn","model.layers.*.mlp.router","model.embed_tokens","lm_head"]})"));
  expect_row(f,
             {{"attention", "bf16"},
              {"routed_experts", "mxfp4"},
              {"router", "bf16"},
              {"embedding", "bf16"},
              {"lm_head", "bf16"}});
  const Detection detection = detect_fixture(f);
  EXPECT_THAT(detection.diagnostics, IsEmpty()) << text_of(detection);
}

constexpr std::string_view kNvfp4Group =
    R"({"targets":["Linear"],"weights":{"num_bits":4,"type":"float","strategy":"tensor_group","group_size":16},"input_activations":{"num_bits":4,"type":"float","strategy":"tensor_group","group_size":16,"dynamic":"local"}})";
void nvfp4_ct(Fixture& f, const std::string& m, int64_t n, int64_t k) { f.nvfp4_ct(m, n, k); }

TEST(DecisionTable, Row15LlmCompressorNvfp4) {
  Fixture fixture = plain({.attention = nvfp4_ct, .shared = nvfp4_ct, .experts = nvfp4_ct});
  fixture.config(
      "config.json",
      plain_config("qwen3_moe",
                   R"({"quant_method":"compressed-tensors","format":"nvfp4-pack-quantized",)"
                   R"("config_groups":{"group_0":)" +
                       std::string(kNvfp4Group) + R"(},"ignore":["lm_head","re:.*mlp.gate$"]})"));
  expect_row(fixture,
             {{"attention", "nvfp4"},
              {"shared_experts", "nvfp4"},
              {"routed_experts", "nvfp4"},
              {"router", "bf16"},
              {"lm_head", "bf16"}});
}

TEST(DecisionTable, Row16CompressedTensorsMixed) {
  Fixture fixture = plain(
      {.attention =
           [](Fixture& f, const std::string& m, int64_t n, int64_t k) { f.fp8_channel(m, n, k); },
       .shared = nvfp4_ct,
       .experts = nvfp4_ct});
  fixture.config(
      "config.json",
      plain_config(
          "qwen3_moe",
          R"({"quant_method":"compressed-tensors","format":"mixed-precision","config_groups":{"group_0":{"targets":["Linear"],"format":"nvfp4-pack-quantized","weights":{"num_bits":4,"type":"float","strategy":"tensor_group","group_size":16}},"group_1":{"targets":["re:.*self_attn.*"],"format":"float-quantized","weights":{"num_bits":8,"type":"float","strategy":"channel"}}},"ignore":["lm_head"]})"));
  expect_row(
      fixture,
      {{"attention", "fp8_channel"}, {"shared_experts", "nvfp4"}, {"routed_experts", "nvfp4"}});
  EXPECT_THAT(codes_of(detect_fixture(fixture), Severity::kWarning), IsEmpty())
      << text_of(detect_fixture(fixture));
}

TEST(DecisionTable, Row17Fp8Dynamic) {
  constexpr Plain::Add kChannel = [](Fixture& f, const std::string& m, int64_t n, int64_t k) {
    f.fp8_channel(m, n, k);
  };
  Fixture fixture = plain({.attention = kChannel, .shared = kChannel, .experts = kChannel});
  fixture.config(
      "config.json",
      plain_config(
          "qwen3_moe",
          R"({"quant_method":"compressed-tensors","format":"float-quantized","config_groups":{"group_0":{"targets":["Linear"],"weights":{"num_bits":8,"type":"float","strategy":"channel"},"input_activations":{"num_bits":8,"type":"float","strategy":"token","dynamic":true}}},"ignore":["lm_head"]})"));
  expect_row(fixture, {{"attention", "fp8_channel"}, {"routed_experts", "fp8_channel"}});
}

void gptq(Fixture& f, const std::string& m, int64_t n, int64_t k) { f.gptq(m, n, k); }

TEST(DecisionTable, Row18Gptq) {
  Plain model = {
      .attention = gptq, .shared = gptq, .experts = gptq, .head = f16, .dtype = DType::kF16};
  constexpr std::string_view kSection =
      R"({"quant_method":"gptq","bits":4,"group_size":128,"desc_act":false,"sym":true,"checkpoint_format":"gptq")";
  Fixture fixture = plain(model);
  fixture.config("config.json", plain_config("qwen3_moe", std::string(kSection) + "}"));
  expect_row(fixture,
             {{"attention", "int4_g128"},
              {"shared_experts", "int4_g128"},
              {"routed_experts", "int4_g128"},
              {"router", "f16"},
              {"lm_head", "f16"}});
  model.head = gptq;
  Fixture with_head = plain(model);
  with_head.config("config.json",
                   plain_config("qwen3_moe", std::string(kSection) + R"(,"lm_head":true})"));
  expect_row(with_head, {{"lm_head", "int4_g128"}});
}

TEST(DecisionTable, Row18GptqInOldFileAndWithDynamicRules) {
  Fixture fixture =
      plain({.attention = f16, .shared = gptq, .experts = gptq, .head = f16, .dtype = DType::kF16});
  fixture.config("config.json", R"({"model_type":"qwen3_moe","num_hidden_layers":2})");
  fixture.config(
      "quantize_config.json",
      R"({"bits":4,"group_size":128,"desc_act":false,"dynamic":{"-:.*self_attn.*":{},"+:.*experts.*":{"bits":4}}})");
  expect_row(fixture, {{"attention", "f16"}, {"routed_experts", "int4_g128"}});
}

TEST(DecisionTable, Row19Awq) {
  constexpr Plain::Add kAwq = [](Fixture& f, const std::string& m, int64_t n, int64_t k) {
    f.awq(m, n, k);
  };
  Fixture fixture = plain(
      {.attention = kAwq, .shared = kAwq, .experts = kAwq, .head = f16, .dtype = DType::kF16});
  fixture.config(
      "config.json",
      plain_config(
          "qwen3_moe",
          R"({"quant_method":"awq","bits":4,"group_size":128,"zero_point":true,"version":"gemm","modules_to_not_convert":["mlp.gate"]})"));
  expect_row(fixture,
             {{"attention", "int4_g128"}, {"routed_experts", "int4_g128"}, {"router", "f16"}});
}

TEST(DecisionTable, Row20AutoRound) {
  Fixture fixture =
      plain({.attention = gptq, .shared = f16, .experts = gptq, .head = f16, .dtype = DType::kF16});
  std::string extra;
  for (int32_t l = 0; l < 2; ++l) {
    for (const char* name : {"gate_proj", "up_proj", "down_proj"}) {
      extra += (extra.empty() ? "\"model.layers." : ",\"model.layers.") + std::to_string(l) +
               ".mlp.shared_experts." + name + R"(":{"bits":16})";
    }
  }
  fixture.config(
      "config.json",
      plain_config(
          "qwen3_moe",
          R"({"quant_method":"auto-round","bits":4,"group_size":128,"sym":true,"packing_format":"auto_round:auto_gptq","extra_config":{)" +
              extra + "}}"));
  expect_row(
      fixture,
      {{"attention", "int4_g128"}, {"shared_experts", "f16"}, {"routed_experts", "int4_g128"}});
}

constexpr std::string_view kQuarkSection =
    R"({"quant_method":"quark","global_quant_config":{"weight":{"dtype":"fp4","qscheme":"per_group","group_size":32,"scale_format":"e8m0","is_dynamic":false},"input_tensors":{"dtype":"fp4","group_size":32,"is_dynamic":true}},"export":{"weight_format":"real_quantized","pack_method":"reorder"})";
void mxfp4_quark(Fixture& f, const std::string& m, int64_t n, int64_t k) { f.mxfp4_quark(m, n, k); }

TEST(DecisionTable, Row21Quark) {
  Fixture fixture = plain({.attention = bf16, .shared = mxfp4_quark, .experts = mxfp4_quark});
  fixture.config("config.json",
                 plain_config("qwen3_moe",
                              std::string(kQuarkSection) +
                                  R"(,"exclude":["lm_head","re:.*self_attn.*","re:.*mlp.gate$"],)"
                                  R"("layer_quant_config":{}})"));
  expect_row(fixture,
             {{"attention", "bf16"},
              {"shared_experts", "mxfp4"},
              {"routed_experts", "mxfp4"},
              {"lm_head", "bf16"}});
}

TEST(DecisionTable, Row22QuarkWithFp8Attention) {
  Fixture fixture = plain({.attention =
                               [](Fixture& f, const std::string& m, int64_t n, int64_t k) {
                                 f.fp8_block(m, n, k, ".weight_scale", DType::kF32);
                               },
                           .shared = mxfp4_quark,
                           .experts = mxfp4_quark});
  fixture.config(
      "config.json",
      plain_config(
          "deepseek_v4",
          std::string(kQuarkSection) +
              R"(,"exclude":["lm_head","re:.*mlp.gate$"],"layer_quant_config":{"*self_attn*":{"weight":{"dtype":"fp8_e4m3","qscheme":"per_block"}}}})"));
  expect_row(fixture,
             {{"attention", "fp8_block128x128"},
              {"shared_experts", "mxfp4"},
              {"routed_experts", "mxfp4"}});
}

TEST(DecisionTable, Row23BitsAndBytes) {
  constexpr Plain::Add kNf4 = [](Fixture& f, const std::string& m, int64_t n, int64_t k) {
    f.nf4(m, n, k);
  };
  Fixture fixture = plain({.attention = kNf4, .shared = kNf4, .experts = bf16});
  fixture.config(
      "config.json",
      plain_config(
          "qwen3_moe",
          R"({"quant_method":"bitsandbytes","load_in_4bit":true,"bnb_4bit_quant_type":"nf4","bnb_4bit_use_double_quant":true,"llm_int8_skip_modules":["lm_head"]})"));
  const Detection detection = detect_fixture(fixture);
  EXPECT_THAT(errors_of(detection), IsEmpty()) << text_of(detection);
  for (const DetectedModule& module : detection.modules) {
    if (module.role.module_class != ModuleClass::kAttention) continue;
    EXPECT_EQ(scheme_name(module.scheme), "nf4") << module.name;
    EXPECT_EQ(module.num_tensors, 6);
  }
  EXPECT_EQ(formats_of(detection, "routed_experts"), "bf16");
}

// Every tensor says for itself what it is.
TEST(DecisionTable, Row24Gguf) {
  struct Stored {
    const char* name;
    Shape shape;
    int32_t type;
  };
  const Stored stored[] = {{"token_embd.weight", Shape{512, 256}, 12},
                           {"output.weight", Shape{512, 256}, 14},
                           {"output_norm.weight", Shape{256}, 0},
                           {"blk.0.attn_norm.weight", Shape{256}, 0},
                           {"blk.0.attn_q_a.weight", Shape{256, 256}, 8},
                           {"blk.0.ffn_gate_inp.weight", Shape{4, 256}, 0},
                           {"blk.0.exp_probs_b.bias", Shape{4}, 0},
                           {"blk.0.ffn_gate_exps.weight", Shape{4, 256, 256}, 39},
                           {"blk.0.ffn_down_exps.weight", Shape{4, 256, 256}, 39},
                           {"blk.0.ffn_up_shexp.weight", Shape{256, 256}, 30}};
  std::vector<TensorMeta> tensors;
  std::vector<const BlockType*> types;
  for (const Stored& tensor : stored) {
    tensors.push_back({.name = tensor.name, .dtype = DType::kU8, .shape = tensor.shape});
    types.push_back(find_block_type(tensor.type));
  }
  const Detection detection = detect({.configs = {},
                                      .tensors = tensors,
                                      .read = {},
                                      .block_types = types,
                                      .architecture = "deepseek2"});
  EXPECT_THAT(detection.diagnostics, IsEmpty()) << text_of(detection);
  EXPECT_EQ(detection.model_type, "deepseek2");
  EXPECT_EQ(detection.method, "gguf");
  const Row row = {{"embedding", "gguf_q4_k"},
                   {"attention", "gguf_q8_0"},
                   {"shared_experts", "bf16"},
                   {"routed_experts", "gguf_mxfp4"},
                   {"router", "f32"},
                   {"lm_head", "gguf_q6_k"}};
  for (const auto& [role, formats] : row) EXPECT_EQ(formats_of(detection, role), formats) << role;
  for (const DetectedModule& module : detection.modules) {
    EXPECT_NE(module.role.module_class, ModuleClass::kOther) << module.name;
    if (module.name != "blk.0.ffn_gate_exps") continue;
    EXPECT_EQ(module.num_bytes, 4 * 256 * 8 * 17);
  }
}

// --- mutations ---

TEST(Mutation, DroppedScaleIsS1) {
  for (Fixture fixture : {v4_native(), v4_form_b()}) {
    for (const char* scale : {"layers.1.ffn.experts.3.w2.scale",
                              "layers.1.ffn.experts.3.w2.weight_scale_2",
                              "layers.0.attn.wq_a.scale"}) {
      Fixture mutant = fixture;
      if (mutant.find(scale) == nullptr) continue;
      mutant.remove(scale);
      const Detection detection = detect_fixture(mutant);
      EXPECT_THAT(errors_of(detection), ElementsAre("Q-S1")) << text_of(detection);
    }
  }
  Fixture fixture = v4_form_b();
  fixture.remove("layers.1.ffn.experts.3.w2.weight_scale_2");
  EXPECT_THAT(message_of(detect_fixture(fixture), "Q-S1"),
              HasSubstr("error[Q-S1] layers.1.ffn.experts.3.w2: weight is packed FP4 but "
                        ".weight_scale_2 is absent"));
}

TEST(Mutation, LabelOfPackedCodesDoesNotMatter) {
  Fixture fixture = v4_native();
  for (TensorMeta& tensor : fixture.tensors) {
    if (tensor.dtype == DType::kI8) tensor.dtype = DType::kU8;
  }
  const Detection detection = detect_fixture(fixture);
  EXPECT_THAT(detection.diagnostics, IsEmpty()) << text_of(detection);
  EXPECT_EQ(formats_of(detection, "routed_experts"), "mxfp4");
}

TEST(Mutation, SwappedScaleLabelIsS2) {
  Fixture fixture = v4_native();
  fixture.find("layers.0.ffn.experts.1.w1.scale")->dtype = DType::kF8E4m3;
  const Detection detection = detect_fixture(fixture);
  EXPECT_THAT(errors_of(detection), ElementsAre("Q-S2")) << text_of(detection);
  EXPECT_THAT(message_of(detection, "Q-S2"),
              HasSubstr("layers.0.ffn.experts.1.w1.scale is F8_E4M3 [256, 8]; expected F8_E4M3 "
                        "[256, 16] for NVFP4 [256, 256] in groups of 16"));
}

// B23: group scales of half the size.
TEST(Mutation, HalvedGroupScalesAreS2B23) {
  Fixture fixture = v4_form_b();
  for (TensorMeta& tensor : fixture.tensors) {
    if (tensor.dtype == DType::kF8E4m3 && tensor.shape == Shape{256, 16}) {
      tensor.shape = Shape{256, 8};
    }
  }
  const Detection detection = detect_fixture(fixture);
  EXPECT_THAT(errors_of(detection), ElementsAre("Q-S2")) << text_of(detection);
  EXPECT_THAT(message_of(detection, "Q-S2"), HasSubstr("expected F8_E4M3 [256, 16]"));
  EXPECT_THAT(text_of(detection), HasSubstr("16 more modules with the same fault"));
}

TEST(Mutation, RenamedGlobalScaleIsS6) {
  Fixture fixture = v4_form_b();
  fixture.find("layers.0.ffn.experts.0.w1.weight_scale_2")->name =
      "layers.0.ffn.experts.0.w1.weight_global_scale";
  const Detection detection = detect_fixture(fixture);
  EXPECT_THAT(errors_of(detection), ElementsAre("Q-S6")) << text_of(detection);
}

TEST(Mutation, QuantizedHeadInExclusionsIsC3) {
  Fixture fixture = plain({.attention = nvfp4, .shared = nvfp4, .experts = nvfp4, .head = nvfp4});
  const std::string section =
      R"({"quant_method":"modelopt","quant_algo":"NVFP4","group_size":16,"exclude_modules":["lm_head","*.mlp.gate"]})";
  fixture.config("config.json", plain_config("deepseek_v3", section));
  const Detection detection = detect_fixture(fixture);
  EXPECT_THAT(errors_of(detection), ElementsAre("Q-C3")) << text_of(detection);
  EXPECT_THAT(message_of(detection, "Q-C3"), HasSubstr("lm_head: left out by \"lm_head\""));
  EXPECT_THAT(message_of(detection, "Q-C3"), HasSubstr("F8_E4M3 .weight_scale"));
  EXPECT_THAT(errors_of(detect_fixture(fixture, {.trusts_headers = true})), IsEmpty());
}

TEST(Mutation, DenseWeightWhereQuantizationIsDeclaredIsC2) {
  Fixture fixture = v4_native();
  fixture.remove("layers.0.attn.wq_a.scale");
  fixture.find("layers.0.attn.wq_a.weight")->dtype = DType::kBf16;
  EXPECT_THAT(errors_of(detect_fixture(fixture)), ElementsAre("Q-C2"));
}

TEST(Mutation, GroupSizeThatFilesDisagreeOnIsD2) {
  Fixture fixture = v4({.experts = V4Weights::kNvfp4}, v4_form_b_section(2));
  fixture.config(
      "hf_quant_config.json",
      v4_form_b_hf_quant_config(R"("*.attn.*","*.ffn.shared_experts.*","head","mtp.*")", 32));
  const Detection detection = detect_fixture(fixture);
  EXPECT_THAT(errors_of(detection), ElementsAre("Q-D2")) << text_of(detection);
  EXPECT_THAT(message_of(detection, "Q-D2"),
              HasSubstr("group_size is 16 in config.json and 32 in hf_quant_config.json"));
  EXPECT_THAT(message_of(detection, "Q-D2"), HasSubstr("proves 16"));
  const Detection trusting = detect_fixture(fixture, {.trusts_headers = true});
  EXPECT_THAT(errors_of(trusting), IsEmpty());
  EXPECT_THAT(codes_of(trusting, Severity::kWarning), ElementsAre("Q-D2"));
}

TEST(Mutation, UnmatchedPatternIsD5) {
  Fixture fixture =
      v4({.experts = V4Weights::kNvfp4},
         v4_form_b_section(2, R"("*.attn.*","*.ffn.shared_expert.*","head","mtp.*")"));
  const Detection detection = detect_fixture(fixture);
  EXPECT_THAT(errors_of(detection), IsEmpty());
  EXPECT_THAT(codes_of(detection, Severity::kWarning), ElementsAre("Q-D5")) << text_of(detection);
  EXPECT_THAT(message_of(detection, "Q-D5"), HasSubstr(".ffn.shared_experts.w1"));
  EXPECT_THAT(errors_of(detect_fixture(fixture, {.is_strict = true})), ElementsAre("Q-D5"));
}

TEST(Mutation, DraftCastToNvfp4) {
  // Beside a native model the draft merely differs.
  const Detection native =
      detect_fixture(v4({.draft_experts = V4Weights::kNvfp4}, kV4NativeSection));
  EXPECT_THAT(codes_of(native, Severity::kInfo), ElementsAre("Q-C7")) << text_of(native);
  // In form B the list says that the draft was left alone.
  const Detection form_b = detect_fixture(v4_form_b(V4Weights::kNvfp4));
  EXPECT_THAT(errors_of(form_b), ElementsAre("Q-C3")) << text_of(form_b);
  EXPECT_THAT(message_of(form_b, "Q-C3"), HasSubstr("\"mtp.*\""));
}

TEST(Mutation, UnknownTensorIsC1) {
  Fixture fixture = v4_native();
  fixture.dense("layers.0.attn.surprise", 256, 256);
  const Detection detection = detect_fixture(fixture);
  EXPECT_THAT(errors_of(detection), ElementsAre("Q-C1"));
  EXPECT_THAT(message_of(detection, "Q-C1"), HasSubstr("layers.0.attn.surprise"));
}

TEST(Mutation, ScaleWithoutWeightIsC1b) {
  Fixture fixture = v4_form_b();
  fixture.remove("layers.0.ffn.experts.0.w1.weight");
  EXPECT_THAT(errors_of(detect_fixture(fixture)), testing::Contains("Q-C1b"));
}

TEST(Mutation, GroupThatDoesNotDivideKIsP1) {
  Fixture fixture = v4_native();
  fixture.find("layers.0.ffn.experts.0.w1.weight")->shape = Shape{256, 120};
  fixture.find("layers.0.ffn.experts.0.w1.scale")->shape = Shape{256, 7};
  EXPECT_THAT(errors_of(detect_fixture(fixture)), testing::Contains("Q-P1"));
}

TEST(Mutation, UnknownWordsAreD1) {
  const std::pair<std::string_view, std::string_view> sections[] = {
      {R"({"quant_method":"modelopt","quant_algo":"W4A8_FOO"})", "W4A8_FOO"},
      {R"({"quant_method":"modelopt","quant_algo":"FP4"})", "FP4"},
      {R"({"quant_method":"magic"})", "magic"},
      {R"({"quant_method":"w4afp8"})", "w4afp8"},
      {R"({"quant_method":"compressed-tensors","format":"sparse-24"})", "sparse-24"},
      {R"({"quant_method":"awq","bits":4,"group_size":128,"version":"gemv"})", "gemv"},
      {R"({"quant_method":"gptq","bits":4,"group_size":128,"checkpoint_format":"marlin"})",
       "marlin"},
  };
  for (const auto& [section, word] : sections) {
    Fixture fixture = plain({.attention = bf16, .shared = bf16, .experts = bf16});
    fixture.config("config.json", plain_config("qwen3_moe", section));
    const Detection detection = detect_fixture(fixture);
    EXPECT_THAT(errors_of(detection), testing::Contains("Q-D1")) << section;
    EXPECT_THAT(message_of(detection, "Q-D1"), HasSubstr("\"" + std::string(word) + "\""));
  }
}

TEST(Mutation, NestedSectionThatDiffersIsD3) {
  Fixture fixture = plain({.attention = fp8_v3, .shared = fp8_v3, .experts = fp8_v3});
  fixture.config(
      "config.json",
      R"({"model_type":"deepseek_v3","num_hidden_layers":2,"quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]},"text_config":{"quantization_config":{"weight_block_size":[32,32],"quant_method":"fp8"}}})");
  EXPECT_THAT(errors_of(detect_fixture(fixture)), ElementsAre("Q-D3"));
}

TEST(Mutation, StrangeExpertDtypeIsD4) {
  Fixture fixture = v4({}, R"(,"expert_dtype":"int4")");
  EXPECT_THAT(errors_of(detect_fixture(fixture)), ElementsAre("Q-D4"));
}

TEST(Mutation, DeclaredButNowhereStoredIsD6) {
  Fixture fixture = v4({}, v4_form_b_section(2));
  EXPECT_THAT(errors_of(detect_fixture(fixture)), testing::Contains("Q-D6"));
  EXPECT_THAT(message_of(detect_fixture(fixture), "Q-D6"), HasSubstr("moe_quant_algo NVFP4"));
}

TEST(Mutation, ExpertsOfDifferentFormatsAreC6) {
  Fixture fixture = v4_native();
  fixture.remove("layers.1.ffn.experts.2.w1.scale");
  fixture.remove("layers.1.ffn.experts.2.w1.weight");
  fixture.fp8_block("layers.1.ffn.experts.2.w1", 256, 256);
  const Detection detection = detect_fixture(fixture);
  EXPECT_THAT(errors_of(detection), ElementsAre("Q-C6"));
  EXPECT_THAT(message_of(detection, "Q-C6"), HasSubstr("1 fp8_block128x128, 3 mxfp4"));
}

TEST(Mutation, InputScaleMissingInSomeExpertsIsS5) {
  Fixture fixture = v4_form_b();
  fixture.remove("layers.1.ffn.experts.2.w1.input_scale");
  const Detection detection = detect_fixture(fixture);
  EXPECT_THAT(errors_of(detection), ElementsAre("Q-S5"));
  EXPECT_THAT(message_of(detection, "Q-S5"), HasSubstr("layers.1.ffn.experts.2.w1"));
  EXPECT_THAT(errors_of(detect_fixture(fixture, {.ignores_input_scales = true})), IsEmpty());
}

TEST(Mutation, InputScaleMissingEverywhereIsAWarning) {
  Fixture fixture = v4_form_b();
  std::erase_if(fixture.tensors,
                [](const TensorMeta& tensor) { return tensor.name.ends_with(".input_scale"); });
  const Detection detection = detect_fixture(fixture);
  EXPECT_THAT(errors_of(detection), IsEmpty()) << text_of(detection);
  EXPECT_THAT(codes_of(detection, Severity::kWarning), ElementsAre("Q-S5"));
  EXPECT_THAT(message_of(detection, "Q-S5"), HasSubstr("W4A16"));
}

TEST(Mutation, EntryInListAndExclusionIsC5) {
  Fixture fixture = plain({.attention = bf16, .shared = nvfp4, .experts = nvfp4});
  fixture.config(
      "config.json",
      plain_config(
          "deepseek_v3",
          R"({"quant_method":"modelopt","quant_algo":"NVFP4","quantized_layers":{"model.layers.0.self_attn.q_proj":{"quant_algo":"FP8"}},"exclude_modules":["*self_attn*","lm_head"]})"));
  const Detection detection = detect_fixture(fixture);
  EXPECT_THAT(errors_of(detection), IsEmpty()) << text_of(detection);
  EXPECT_THAT(codes_of(detection, Severity::kWarning), ElementsAre("Q-C5")) << text_of(detection);
}

TEST(Mutation, ListByLayersThatNothingBearsOutIsD6) {
  Fixture fixture = plain({.attention = bf16, .shared = bf16, .experts = bf16});
  fixture.config(
      "config.json",
      plain_config(
          "deepseek_v3",
          R"({"quant_method":"modelopt","quant_algo":"MIXED_PRECISION","quantized_layers":{"model.layers.0.mlp.experts":{"quant_algo":"NVFP4","group_size":16}}})"));
  EXPECT_THAT(errors_of(detect_fixture(fixture)), testing::Contains("Q-D6"));
}

TEST(Mutation, IntegerWeightsNeedWhatIsDeclaredS1) {
  const auto with_weights = [](std::string_view members) {
    Fixture fixture = plain({.attention = bf16,
                             .shared = bf16,
                             .experts = [](Fixture& f, const std::string& m, int64_t n, int64_t k) {
                               f.int4_ct(m, n, k);
                             }});
    const std::string weights =
        R"({"num_bits":4,"type":"int","strategy":"group","group_size":32)" + std::string(members);
    fixture.config("config.json",
                   plain_config("kimi_k2", kimi_section("pack-quantized", weights + "}")));
    return detect_fixture(fixture);
  };
  EXPECT_THAT(errors_of(with_weights(R"(,"symmetric":true)")), IsEmpty());
  const Detection asymmetric = with_weights(R"(,"symmetric":false)");
  EXPECT_THAT(errors_of(asymmetric), ElementsAre("Q-S1"));
  EXPECT_THAT(message_of(asymmetric, "Q-S1"), HasSubstr(".weight_zero_point is absent"));
  const Detection ordered = with_weights(R"(,"actorder":"group")");
  EXPECT_THAT(message_of(ordered, "Q-S1"), HasSubstr(".weight_g_idx is absent"));
}

TEST(Mutation, CompanionsOfOddShapeAreS2) {
  const std::pair<const char*, Shape> mutations[] = {{"qzeros", Shape{2, 16}},
                                                     {"g_idx", Shape{128}}};
  for (const auto& [part, shape] : mutations) {
    Fixture fixture = plain(
        {.attention = gptq, .shared = gptq, .experts = gptq, .head = f16, .dtype = DType::kF16});
    fixture.config(
        "config.json",
        plain_config("qwen3_moe", R"({"quant_method":"gptq","bits":4,"group_size":128})"));
    fixture.find("model.layers.0.self_attn.q_proj." + std::string(part))->shape = shape;
    EXPECT_THAT(errors_of(detect_fixture(fixture)), ElementsAre("Q-S2")) << part;
    fixture.remove("model.layers.0.self_attn.q_proj.qzeros");
    EXPECT_THAT(errors_of(detect_fixture(fixture)), testing::Contains("Q-S1")) << part;
  }
  Fixture form_b = v4_form_b();
  form_b.find("layers.0.ffn.experts.0.w1.input_scale")->shape = Shape{7};
  EXPECT_THAT(errors_of(detect_fixture(form_b)), ElementsAre("Q-S2"));
}

TEST(Mutation, ScalesInTileOrderAreS2) {
  for (const DType dtype : {DType::kU8, DType::kF8E4m3}) {
    Fixture fixture = v4_form_b();
    TensorMeta* scale = fixture.find("layers.0.ffn.experts.0.w1.weight_scale");
    *scale = {.name = scale->name, .dtype = dtype, .shape = Shape{4096}};
    EXPECT_THAT(message_of(detect_fixture(fixture), "Q-S2"), HasSubstr("tensor-core tile order?"));
  }
}

TEST(Mutation, ValuesOfAnotherKindAreD1) {
  for (const auto& [member, text] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"("desc_act":5)", "desc_act 5 in a quantization section; expected true or false"},
           {R"("lm_head":"yes")", "lm_head \"yes\""},
           {R"("group_size":"128")", "group_size \"128\""},
           {R"("group_size":99999999999)", "group_size 99999999999"},
           {R"("bits":3.5)", "bits 3.5"},
           {R"("bits":9)", "bits 9 in a quantization section; expected 2 to 8"}}) {
    Fixture fixture = plain({.attention = f16, .shared = f16, .experts = f16, .head = f16});
    fixture.config(
        "config.json",
        plain_config("qwen3_moe", R"({"quant_method":"gptq",)" + std::string(member) + "}"));
    EXPECT_THAT(message_of(detect_fixture(fixture), "Q-D1"), HasSubstr(text));
  }
}

// --- values ---

// Bytes of every tensor by dtype, with exceptions by name.
struct Values {
  const Fixture& fixture;
  std::map<std::string, std::vector<std::byte>> special = {};

  static std::vector<std::byte> f32(float value) {
    std::vector<std::byte> bytes(sizeof(value));
    std::memcpy(bytes.data(), &value, sizeof(value));
    return bytes;
  }
  // Rows in order, `group` to a group.
  static std::vector<std::byte> group_index(int64_t num_bytes, int32_t group) {
    std::vector<int32_t> index(static_cast<size_t>(num_bytes) / sizeof(int32_t));
    for (size_t i = 0; i < index.size(); ++i) index[i] = static_cast<int32_t>(i) / group;
    std::vector<std::byte> bytes(static_cast<size_t>(num_bytes));
    std::memcpy(bytes.data(), index.data(), bytes.size());
    return bytes;
  }
  ReadTensorBytes reader() const {
    return [this](size_t index, int64_t begin, int64_t count) -> Result<std::vector<std::byte>> {
      const TensorMeta& tensor = fixture.tensors[index];
      if (const auto it = special.find(tensor.name); it != special.end()) {
        return std::vector<std::byte>(it->second.begin() + begin,
                                      it->second.begin() + begin + count);
      }
      if (tensor.name.ends_with(".g_idx")) return group_index(count, 128);
      const bool is_divisor = tensor.name.find("global_scale") != std::string::npos;
      if (tensor.dtype == DType::kF32 && count == 4) return f32(is_divisor ? 4000.0F : 1e-3F);
      const int code = tensor.dtype == DType::kF8E4m3 ? 0x39
                       : tensor.dtype == DType::kI32  ? 0x77
                                                      : 121;
      return std::vector<std::byte>(static_cast<size_t>(count), std::byte(code));
    };
  }
  Detection run() const {
    return detect({.configs = fixture.configs, .tensors = fixture.tensors, .read = reader()}, {});
  }
};

TEST(Value, SoundScalesSayNothing) {
  const Fixture native = v4_native();
  EXPECT_THAT(Values{native}.run().diagnostics, IsEmpty());
  const Fixture form_b = v4_form_b();
  EXPECT_THAT(codes_of(Values{form_b}.run(), Severity::kInfo), ElementsAre("Q-C7"));
}

TEST(Value, NanScaleIsS3) {
  const Fixture native = v4_native();
  Values values{
      native, {{"layers.0.ffn.experts.3.w3.scale", std::vector<std::byte>(2048, std::byte{120})}}};
  values.special.begin()->second[1777] = std::byte{255};
  const Detection detection = values.run();
  EXPECT_THAT(errors_of(detection), ElementsAre("Q-S3"));
  EXPECT_THAT(
      message_of(detection, "Q-S3"),
      HasSubstr("layers.0.ffn.experts.3.w3.scale: byte 1777 is 0xFF, which is NaN in E8M0"));

  const Fixture form_b = v4_form_b();
  for (const int code : {0x7F, 0xFF, 0xB8}) {
    Values e4m3{form_b,
                {{"layers.0.ffn.experts.3.w3.weight_scale",
                  std::vector<std::byte>(4096, std::byte{0x30})}}};
    e4m3.special.begin()->second[5] = std::byte(code);
    EXPECT_THAT(errors_of(e4m3.run()), ElementsAre("Q-S3")) << code;
  }
}

// B16: absent, zero and NaN globals are three different messages.
TEST(Value, GlobalScalesB16) {
  const std::string name = "layers.1.ffn.experts.0.w2.weight_scale_2";
  Fixture form_b = v4_form_b();
  std::set<std::string> messages;
  for (const float value : {0.0F, -1.0F, std::numeric_limits<float>::quiet_NaN()}) {
    const Detection detection = Values{form_b, {{name, Values::f32(value)}}}.run();
    EXPECT_THAT(errors_of(detection), ElementsAre("Q-S3"));
    messages.insert(message_of(detection, "Q-S3"));
  }
  form_b.remove(name);
  messages.insert(message_of(detect_fixture(form_b), "Q-S1"));
  EXPECT_EQ(messages.size(), 4U);
}

TEST(Value, MixedUpConventionIsS6) {
  const Fixture form_b = v4_form_b();
  const Detection modelopt =
      Values{form_b, {{"layers.1.ffn.experts.0.w2.weight_scale_2", Values::f32(3584)}}}.run();
  EXPECT_THAT(errors_of(modelopt), ElementsAre("Q-S6"));
  Fixture ct = plain({.attention = nvfp4_ct, .shared = nvfp4_ct, .experts = nvfp4_ct});
  ct.config("config.json",
            plain_config("qwen3_moe",
                         R"({"quant_method":"compressed-tensors","format":"nvfp4-pack-quantized",)"
                         R"("config_groups":{"group_0":)" +
                             std::string(kNvfp4Group) + R"(},"ignore":["lm_head"]})"));
  const Detection divisor = Values{
      ct,
      {{"model.layers.0.self_attn.q_proj.weight_global_scale",
        Values::f32(1e-4F)}}}.run();
  EXPECT_THAT(errors_of(divisor), ElementsAre("Q-S6"));
}

TEST(Value, ExponentsLabelledE4m3AreS4) {
  const Fixture form_b = v4_form_b();
  Values values{form_b, {}};
  for (const TensorMeta& tensor : form_b.tensors) {
    if (tensor.name.find(".weight_scale") == std::string::npos) continue;
    if (tensor.dtype != DType::kF8E4m3) continue;
    values.special[tensor.name] = std::vector<std::byte>(4096, std::byte{0x76});
  }
  EXPECT_THAT(errors_of(values.run()), ElementsAre("Q-S4"));
  for (auto& [name, bytes] : values.special) {
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(0x73 + i % 6);
  }
  EXPECT_THAT(errors_of(values.run()), ElementsAre("Q-S4"));
}

TEST(Value, ScalesOfNormalWeightsAreNoExponents) {
  const Fixture form_b = v4_form_b();
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.02F);
  std::vector<float> weights(64 * 4096);
  for (float& weight : weights) weight = normal(random);
  // Also weights that were rounded to MXFP4 before: their scales are few.
  const QuantizedWeight rounded = quantize(Format::kMxfp4, weights, 64, 4096);
  std::vector<float> few(weights.size());
  dequantize(rounded.view(), few);
  for (const std::vector<float>& matrix : {weights, few}) {
    const std::vector<std::byte> scales = quantize(Format::kNvfp4, matrix, 64, 4096).scales;
    Values values{form_b, {}};
    for (const TensorMeta& tensor : form_b.tensors) {
      if (tensor.name.find(".weight_scale") == std::string::npos) continue;
      if (tensor.dtype == DType::kF8E4m3) values.special[tensor.name] = scales;
    }
    EXPECT_THAT(errors_of(values.run()), IsEmpty());
  }
}

// What a cast of weights whose scales differ little consists of.
TEST(Value, LargestScalesOfLosslessCastsAreNoExponents) {
  const Fixture form_b = v4_form_b();
  Values values{form_b, {}};
  for (const TensorMeta& tensor : form_b.tensors) {
    if (tensor.name.find(".weight_scale") == std::string::npos) continue;
    if (tensor.dtype != DType::kF8E4m3) continue;
    std::vector<std::byte>& bytes = values.special[tensor.name];
    bytes.assign(4096, std::byte{0x70});
    bytes[0] = std::byte{0x78};
  }
  const Detection detection = values.run();
  EXPECT_THAT(errors_of(detection), IsEmpty());
  EXPECT_THAT(message_of(detection, "Q-S4"), HasSubstr("cast losslessly from MXFP4"));
}

TEST(Value, LosslessCastsAndUnequalPairsAreNamed) {
  const Fixture form_b = v4_form_b();
  Values values{form_b, {{"layers.1.ffn.experts.0.w3.weight_scale_2", Values::f32(4e-3F)}}};
  for (const TensorMeta& tensor : form_b.tensors) {
    if (tensor.dtype == DType::kF8E4m3 && tensor.name.find("_scale") != std::string::npos) {
      values.special[tensor.name] = std::vector<std::byte>(4096, std::byte{0x40});
    }
  }
  const Detection detection = values.run();
  EXPECT_THAT(codes_of(detection, Severity::kInfo), ElementsAre("Q-C7", "Q-S4", "Q-S7"));
  EXPECT_THAT(message_of(detection, "Q-S7"), HasSubstr("in 1 of 8 pairs, by up to 4x"));
  EXPECT_THAT(message_of(detection, "Q-S4"), HasSubstr("cast losslessly from MXFP4"));
}

TEST(Value, ZeroInputScaleIsS5) {
  const Fixture form_b = v4_form_b();
  const Detection detection =
      Values{form_b, {{"layers.1.ffn.experts.0.w2.input_scale", Values::f32(0)}}}.run();
  EXPECT_THAT(errors_of(detection), ElementsAre("Q-S5"));
}

TEST(Value, MislabelledGptqZeroPointsAreS9) {
  Fixture fixture = plain(
      {.attention = gptq, .shared = gptq, .experts = gptq, .head = f16, .dtype = DType::kF16});
  fixture.config(
      "config.json",
      plain_config(
          "qwen3_moe",
          R"({"quant_method":"gptq","bits":4,"group_size":128,"checkpoint_format":"gptq_v2"})"));
  EXPECT_THAT(errors_of(Values{fixture}.run()), ElementsAre("Q-S9"));
}

Fixture gptq_model(std::string_view members) {
  Fixture fixture = plain(
      {.attention = gptq, .shared = gptq, .experts = gptq, .head = f16, .dtype = DType::kF16});
  fixture.config("config.json",
                 plain_config("qwen3_moe",
                              R"({"quant_method":"gptq","bits":4,"group_size":128)" +
                                  std::string(members) + "}"));
  return fixture;
}

TEST(Value, AmbiguousGptqZeroPointIsS9) {
  const Fixture fixture = gptq_model(R"(,"checkpoint_format":"gptq")");
  EXPECT_THAT(Values{fixture}.run().diagnostics, IsEmpty());
  Values values{fixture,
                {{"model.layers.0.self_attn.q_proj.qzeros",
                  std::vector<std::byte>(2 * 32 * 4, std::byte{0x77})}}};
  values.special.begin()->second[3] = std::byte{0xF7};
  EXPECT_THAT(errors_of(values.run()), ElementsAre("Q-S9"));
  EXPECT_THAT(message_of(values.run(), "Q-S9"), HasSubstr("16 or, by wrapping, 0"));
}

TEST(Value, UndeclaredActOrderIsD2) {
  const std::string name = "model.layers.1.self_attn.o_proj.g_idx";
  std::vector<std::byte> reordered = Values::group_index(1024, 128);
  reordered[0] = std::byte{1};
  const Fixture plain_order = gptq_model(R"(,"desc_act":false)");
  const Detection detection = Values{plain_order, {{name, reordered}}}.run();
  EXPECT_THAT(errors_of(detection), ElementsAre("Q-D2"));
  EXPECT_THAT(message_of(detection, "Q-D2"), HasSubstr(name + ": row 0 belongs to group 1"));
  const Fixture act_order = gptq_model(R"(,"desc_act":true)");
  const Detection declared = Values{act_order, {{name, reordered}}}.run();
  EXPECT_THAT(declared.diagnostics, IsEmpty());
  for (const DetectedModule& module : declared.modules) {
    EXPECT_EQ(module.scheme.is_reordered, module.scheme.kind == SchemeKind::kInt) << module.name;
  }
}

// A group of zeros may have the scale 0, one of other codes may not.
TEST(Value, ZeroScaleOfCodesIsS3) {
  const Fixture form_b = v4_form_b();
  const std::string expert = "layers.0.ffn.experts.3.w3.";
  std::vector<std::byte> scales(4096, std::byte{0x39});
  scales[17] = std::byte{0};
  std::vector<std::byte> codes(256 * 128, std::byte{0x88});
  Values values{form_b, {{expert + "weight_scale", scales}, {expert + "weight", codes}}};
  EXPECT_THAT(errors_of(values.run()), IsEmpty());
  values.special[expert + "weight"][17 * 8 + 5] = std::byte{0x81};
  EXPECT_THAT(errors_of(values.run()), ElementsAre("Q-S3"));
  EXPECT_THAT(message_of(values.run(), "Q-S3"),
              HasSubstr(expert + "weight_scale: group 17 has the scale 0"));
}

TEST(Value, UnequalQkvGlobalsAreS7) {
  Fixture fixture = plain({.attention = nvfp4, .shared = nvfp4, .experts = nvfp4});
  fixture.config(
      "config.json",
      plain_config("qwen3_moe",
                   R"({"quant_method":"modelopt","quant_algo":"NVFP4","ignore":["lm_head"]})"));
  const Detection detection = Values{
      fixture,
      {{"model.layers.0.self_attn.k_proj.weight_scale_2",
        Values::f32(2e-3F)}}}.run();
  EXPECT_THAT(message_of(detection, "Q-S7"), HasSubstr("q_proj and k_proj differ in 1 of 2 pairs"));
}

TEST(Value, ZeroPerTensorScaleIsS3) {
  Fixture fixture = plain({.attention = fp8_tensor, .shared = fp8_tensor, .experts = fp8_tensor});
  fixture.config(
      "config.json",
      plain_config("qwen3_moe",
                   R"({"quant_method":"modelopt","quant_algo":"FP8","ignore":["lm_head"]})"));
  const Detection detection =
      Values{fixture, {{"model.layers.0.self_attn.k_proj.weight_scale", Values::f32(0)}}}.run();
  EXPECT_THAT(errors_of(detection), ElementsAre("Q-S3"));
}

// --- field reports ---

TEST(FieldReport, B03ExclusionMeansCheckpointNames) {
  const Detection detection = detect_fixture(v4_form_b(V4Weights::kMxfp4, V4Draft::kDspark));
  for (const DetectedModule& module : detection.modules) {
    if (module.role.module_class != ModuleClass::kRoutedExperts) continue;
    EXPECT_EQ(scheme_name(module.scheme), module.role.is_draft ? "mxfp4" : "nvfp4") << module.name;
  }
}

TEST(FieldReport, B04MixedPrecisionWithoutMoeAlgorithm) {
  std::string section = v4_form_b_section(2);
  const std::string key = R"("moe_quant_algo":"NVFP4",)";
  section.erase(section.find(key), key.size());
  Fixture fixture = v4({.experts = V4Weights::kNvfp4, .draft = V4Draft::kDspark}, section);
  expect_row(fixture, {{"routed_experts", "nvfp4"}, {"draft_routed_experts", "mxfp4"}});
}

TEST(FieldReport, B06NoInputScaleIsAskedOfMxfp4Drafts) {
  Fixture fixture = v4(
      {.experts = V4Weights::kNvfp4, .draft = V4Draft::kDspark},
      v4_form_b_section(
          2, R"("*.attn.*","*.ffn.shared_experts.*","head")", "dsv4-nvfp4-experts-mtp-fallback"));
  expect_row(fixture, {{"draft_routed_experts", "mxfp4"}});
}

// B08: a flag that forces another format of the experts is refused in words, not by a size error.
TEST(FieldReport, B08FlagThatContradictsTheStoredExperts) {
  const Fixture native = v4_native();
  const Detection forced = detect_fixture(native, {.expert_dtype = ExpertDtype::kFp8});
  EXPECT_THAT(errors_of(forced), ElementsAre("Q-K4")) << text_of(forced);
  EXPECT_THAT(message_of(forced, "Q-K4"),
              HasSubstr("routed experts are stored as mxfp4 (header: I8 + F8_E8M0/32; expert_dtype "
                        "fp4 (config.json)); --expert-dtype fp8 contradicts that"));
  EXPECT_THAT(errors_of(detect_fixture(native, {.expert_dtype = ExpertDtype::kFp4})), IsEmpty());
}

TEST(FieldReport, B12ThreeDialectsInOneList) {
  Fixture fixture = plain({.attention = bf16, .shared = mxfp4_quark, .experts = mxfp4_quark});
  fixture.dense("model.visual.blocks.0.mlp.fc1", 256, 256);
  fixture.config(
      "config.json",
      plain_config(
          "qwen3_5_moe",
          std::string(kQuarkSection) +
              R"(,"exclude":["model.visual.*","re:.*mlp.gate$","*self_attn*","lm_head","never.*"]})"));
  const Detection detection = detect_fixture(fixture);
  EXPECT_THAT(errors_of(detection), IsEmpty()) << text_of(detection);
  EXPECT_EQ(formats_of(detection, "attention"), "bf16");
  EXPECT_EQ(formats_of(detection, "vision"), "bf16");
  EXPECT_THAT(codes_of(detection, Severity::kWarning), ElementsAre("Q-D5"));
  EXPECT_THAT(message_of(detection, "Q-D5"), HasSubstr("\"never.*\""));
}

TEST(FieldReport, B13VisionTowerUnderAnotherPrefix) {
  Fixture fixture = plain({.attention = nvfp4, .shared = nvfp4, .experts = nvfp4});
  fixture.dense("model.vision_tower.encoder.layers.0.fc1", 256, 256);
  fixture.config(
      "hf_quant_config.json",
      R"({"quantization":{"quant_algo":"NVFP4","group_size":16,"exclude_modules":["vision_tower*","lm_head"]}})");
  fixture.config("config.json", R"({"model_type":"qwen3_5_moe","num_hidden_layers":2})");
  const Detection detection = detect_fixture(fixture);
  EXPECT_THAT(codes_of(detection, Severity::kWarning), IsEmpty()) << text_of(detection);
  EXPECT_EQ(formats_of(detection, "vision"), "bf16");
}

TEST(FieldReport, B21InputScaleBesideFp8IsKnown) {
  Fixture fixture = plain({.attention = fp8_tensor, .shared = fp8_tensor, .experts = fp8_tensor});
  fixture.fp8_tensor("model.layers.0.linear_attn.in_proj", 256, 256);
  fixture.config(
      "config.json",
      plain_config("qwen3_5_moe",
                   R"({"quant_method":"modelopt","quant_algo":"FP8","ignore":["lm_head"]})"));
  const Detection detection = detect_fixture(fixture);
  EXPECT_THAT(detection.diagnostics, IsEmpty()) << text_of(detection);
}

TEST(FieldReport, B57ExpertsThatTheRecipeMissed) {
  Fixture f = plain({.attention = nvfp4_ct,
                     .shared = nvfp4_ct,
                     .experts = [](Fixture&, const std::string&, int64_t, int64_t) {}});
  std::string ignore = "\"lm_head\"";
  for (int32_t l = 0; l < 2; ++l) {
    const std::string experts = "model.layers." + std::to_string(l) + ".mlp.experts.";
    f.add(experts + "gate_up_proj", DType::kBf16, {4, 512, 256});
    f.add(experts + "down_proj", DType::kBf16, {4, 256, 256});
    for (int32_t e = 0; e < 4; ++e) {
      for (const char* name : {"gate_proj", "up_proj", "down_proj"}) {
        ignore += ",\"" + experts + std::to_string(e) + "." + name + "\"";
      }
    }
  }
  f.config("config.json",
           plain_config("qwen3_moe",
                        R"({"quant_method":"compressed-tensors","format":"nvfp4-pack-quantized",)"
                        R"("config_groups":{"group_0":)" +
                            std::string(kNvfp4Group) + R"(},"ignore":[)" + ignore + "]}"));
  const Detection detection = detect_fixture(f);
  EXPECT_THAT(codes_of(detection, Severity::kWarning), IsEmpty()) << text_of(detection);
  EXPECT_EQ(formats_of(detection, "routed_experts"), "bf16");
  EXPECT_EQ(formats_of(detection, "shared_experts"), "nvfp4");
}

TEST(FieldReport, B58TargetsByRegexOnly) {
  Fixture fixture = plain({.attention = bf16,
                           .shared = bf16,
                           .experts = [](Fixture& f, const std::string& m, int64_t n, int64_t k) {
                             f.int4_ct(m, n, k);
                           }});
  fixture.config(
      "config.json",
      plain_config(
          "qwen3_moe",
          R"({"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{"group_0":{"targets":["re:.*mlp\\.experts\\.\\d+\\.(gate|up|down)_proj$"],"weights":)" +
              std::string(kInt4Weights) + R"(}},"ignore":[]})"));
  const Detection detection = detect_fixture(fixture);
  EXPECT_THAT(codes_of(detection, Severity::kWarning), IsEmpty()) << text_of(detection);
  EXPECT_EQ(formats_of(detection, "routed_experts"), "int4_g32");
  EXPECT_EQ(formats_of(detection, "attention"), "bf16");
}

// --- traps of pattern lists ---

// Scales of a module without weights are parameters of their own, both of them.
TEST(Detect, ClaimsScalesWithoutAWeightOneByOne) {
  Fixture fixture;
  fixture.add("model.layers.0.self_attn.attn.k_scale", DType::kF32, {});
  fixture.add("model.layers.0.self_attn.attn.v_scale", DType::kF32, {});
  fixture.add("model.layers.0.mlp.up_proj.weight.absmax", DType::kU8, {64});
  fixture.add("model.layers.0.mlp.up_proj.weight.quant_state.bitsandbytes__nf4", DType::kU8, {9});
  const Detection detection = detect_fixture(fixture);
  std::set<std::string> names;
  for (const DetectedModule& module : detection.modules) names.insert(module.name);
  EXPECT_EQ(names.size(), 4U);
  for (const TensorMeta& tensor : fixture.tensors) EXPECT_TRUE(names.contains(tensor.name));
}

// "layers.1*" was meant for layer 1; layers 10 to 19 are what their bytes say.
TEST(Detect, StarsThatMatchLongerNumbersLeaveItToTheBytes) {
  Fixture fixture;
  fixture.dense("model.embed_tokens", 512, 256);
  fixture.dense("lm_head", 512, 256);
  for (const int32_t layer : {1, 10}) {
    const std::string name = "model.layers." + std::to_string(layer) + ".self_attn.o_proj";
    layer == 1 ? bf16(fixture, name, 256, 256) : nvfp4(fixture, name, 256, 256);
  }
  fixture.config(
      "config.json",
      R"({"model_type":"deepseek_v3","num_hidden_layers":12,"quantization_config":{"quant_method":"modelopt","quant_algo":"NVFP4","ignore":["lm_head","model.layers.1*"]}})");
  const Detection detection = detect_fixture(fixture);
  EXPECT_THAT(errors_of(detection), IsEmpty()) << text_of(detection);
  EXPECT_THAT(
      message_of(detection, "Q-D5"),
      HasSubstr("\"model.layers.1*\" also matches longer numbers, such as model.layers.10."));
}

// Which way of matching it was is part of the evidence.
TEST(Detect, SaysHowAnEntryMatched) {
  Fixture fixture = plain({.attention = fp8_v3, .shared = fp8_v3, .experts = bf16});
  fixture.dense("model.vision_tower.fc1", 256, 256);
  fixture.config(
      "config.json",
      plain_config(
          "qwen3_moe",
          R"({"quant_method":"fp8","weight_block_size":[128,128],"modules_to_not_convert":["experts","vision_tower"]})"));
  const DetectInput input = {.configs = fixture.configs, .tensors = fixture.tensors, .read = {}};
  EXPECT_THAT(explain(input, {}, "model.layers.0.mlp.experts.0.up_proj")->text,
              HasSubstr("\"experts\" (modules_to_not_convert in config.json; as a substring)"));
  EXPECT_THAT(explain(input, {}, "model.vision_tower.fc1")->text,
              HasSubstr("excluded by \"vision_tower\""));
}

TEST(Detect, ClaimsEveryTensorOnce) {
  for (const Fixture& fixture :
       {v4_native(), v4_form_b(), v4_form_b(V4Weights::kMxfp4, V4Draft::kDspark)}) {
    const Detection detection = detect_fixture(fixture);
    int64_t tensors = 0;
    int64_t bytes = 0;
    for (const DetectedModule& module : detection.modules) {
      tensors += module.num_tensors;
      bytes += module.num_bytes;
    }
    int64_t expected = 0;
    for (const TensorMeta& tensor : fixture.tensors) {
      expected += tensor.shape.num_elements() * dtype_size(tensor.dtype);
    }
    EXPECT_EQ(tensors, static_cast<int64_t>(fixture.tensors.size()));
    EXPECT_EQ(bytes, expected);
  }
}

TEST(Detect, ExplainShowsTheWholeEvidence) {
  const Fixture fixture = v4_form_b();
  const DetectInput input = {.configs = fixture.configs, .tensors = fixture.tensors, .read = {}};
  const Result<Explanation> found = explain(input, {}, "mtp.0.ffn.experts.1.w3");
  ASSERT_TRUE(found.ok());
  const std::string* text = &found->text;
  EXPECT_EQ(found->role, "draft_routed_experts");
  EXPECT_EQ(found->format, "mxfp4");
  EXPECT_THAT(*text, HasSubstr("mtp.0.ffn.experts.1.w3.scale  F8_E8M0 [256, 8]"));
  EXPECT_THAT(*text, HasSubstr("role      draft_routed_experts, layer 0"));
  EXPECT_THAT(*text, HasSubstr("format    mxfp4, 1 x [256, 256], carrier deepseek"));
  EXPECT_THAT(*text, HasSubstr("excluded by \"mtp.*\" (ignore in config.json)"));
  EXPECT_THAT(*text,
              HasSubstr("declared  excluded by \"mtp.*\" (ignore in config.json)\n"
                        "declared  expert_dtype fp4 (config.json); lower precedence\n"));
  const Result<Explanation> unknown = explain(input, {}, "layers.0.attn.wq_c");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().code, Errc::kNotFound);
  EXPECT_THAT(unknown.error().message, HasSubstr("layers.*.attn.wq_a"));
}

// Patterns times names are bounded: beyond that only literals are looked up.
TEST(NameList, StopsTryingPatternsBeyondItsBudget) {
  std::vector<Diagnostic> diagnostics;
  NameList list(1000);
  list.add("re:(.*a){20}x", "ignore", Dialect::kCompressedTensors, diagnostics);
  list.add("re:model.*", "ignore", Dialect::kCompressedTensors, diagnostics);
  list.add("lm_head", "ignore", Dialect::kCompressedTensors, diagnostics);
  EXPECT_EQ(list.match("model.layers.0"), 1U);
  EXPECT_FALSE(list.is_exhausted());
  for (int32_t i = 0; i < 10; ++i)
    (void)list.match("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
  EXPECT_TRUE(list.is_exhausted());
  EXPECT_EQ(list.match("lm_head"), 2U);
  EXPECT_EQ(list.match("model.layers.1"), std::nullopt);
}

TEST(Detect, HoldsForHostileConfigs) {
  for (
      const std::string_view text :
      {"",
       "[]",
       "{",
       R"({"quantization_config":3})",
       R"({"quantization_config":{"quant_method":7}})",
       R"({"quantization_config":{"quant_method":"fp8","weight_block_size":[0,128]}})",
       R"({"quantization_config":{"quant_method":"fp8","weight_block_size":"x"}})",
       R"({"quantization_config":{"quant_method":"modelopt","quantized_layers":[1],"ignore":{"a":1}}})",
       R"({"num_hidden_layers":-5,"text_config":[],"thinker_config":1})"}) {
    Fixture fixture = v4_fixture(v4_small(), {});
    fixture.config("config.json", std::string(text));
    const Detection detection = detect_fixture(fixture);
    EXPECT_EQ(formats_of(detection, "routed_experts"), "mxfp4") << text;
  }
}

}  // namespace
}  // namespace nibble::quant
