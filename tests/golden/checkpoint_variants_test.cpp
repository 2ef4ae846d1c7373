// The same model under other names and in other formats.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "golden/editable_model.h"
#include "golden/golden_testing.h"

namespace nibble::golden {
namespace {

constexpr int32_t kTokens = 150;

EditableModel flash_like() { return EditableModel::read(golden_dir("flash_like")); }

bool is_expert(const std::string& module) { return module.find(".experts.") != std::string::npos; }
bool is_fp8_linear(const std::string& module) {
  for (const char* suffix : {"wq_a",
                             "wq_b",
                             "attn.wkv",
                             "wo_a",
                             "wo_b",
                             "shared_experts.w1",
                             "shared_experts.w2",
                             "shared_experts.w3"}) {
    if (module.ends_with(suffix) && module.find("compressor") == std::string::npos) return true;
  }
  return false;
}

// As the released checkpoints: FP8 linears, MXFP4 experts.
EditableModel native_flash_like(DType fp8_scale = DType::kF8E8m0) {
  EditableModel model = flash_like();
  model.quantize(is_fp8_linear, quant::Format::kFp8E4m3Block128x128, fp8_scale);
  model.quantize(is_expert, quant::Format::kMxfp4, DType::kF8E8m0);
  return model;
}

std::vector<float> logits_of(EditableModel& model) {
  const Loaded loaded = load(model.write());
  return Sequence(*loaded.model).run(random_ids(*loaded.model, kTokens, 1)).logits.values;
}

// "layers.0.attn.wq_a.scale" -> "model.layers.0.self_attn.q_a_proj.weight_scale_inv", by replacing
// pieces.
std::string transformers_name(std::string name) {
  const std::pair<std::string, std::string> pieces[] = {
      {"embed.weight", "model.embed_tokens.weight"},
      {"head.weight", "lm_head.weight"},
      {"hc_head_", "model.hc_head.hc_"},
      {".scale", ".weight_scale_inv"},
      {".attn_norm.", ".input_layernorm."},
      {".ffn_norm.", ".post_attention_layernorm."},
      {".hc_attn_", ".attn_hc."},
      {".hc_ffn_", ".ffn_hc."},
      {".attn.attn_sink", ".self_attn.sinks"},
      {".attn.indexer.compressor.norm", ".self_attn.compressor.indexer.kv_norm"},
      {".attn.indexer.compressor.", ".self_attn.compressor.indexer."},
      {".attn.indexer.weights_proj", ".self_attn.compressor.indexer.scorer.weights_proj"},
      {".attn.indexer.wq_b", ".self_attn.compressor.indexer.q_b_proj"},
      {".attn.compressor.norm", ".self_attn.compressor.kv_norm"},
      {".attn.compressor.", ".self_attn.compressor."},
      {".attn.", ".self_attn."},
      {".wkv", ".kv_proj"},
      {".wgate", ".gate_proj"},
      {".ape", ".position_bias"},
      {".wq_a", ".q_a_proj"},
      {".q_norm", ".q_a_norm"},
      {".wq_b", ".q_b_proj"},
      {".wo_a", ".o_a_proj"},
      {".wo_b", ".o_b_proj"},
      {".ffn.", ".mlp."},
      {".gate.bias", ".gate.e_score_correction_bias"},
      {".w1.", ".gate_proj."},
      {".w3.", ".up_proj."},
      {".w2.", ".down_proj."},
  };
  if (name == "norm.weight") return "model.norm.weight";
  const bool is_parameter =
      name.find("hc_") != std::string::npos;  // there "scale" is a parameter of its own
  for (const auto& [original, replacement] : pieces) {
    if (is_parameter && original == ".scale") continue;
    const size_t place = name.find(original);
    if (place != std::string::npos) name.replace(place, original.size(), replacement);
  }
  return name.starts_with("layers.") ? "model." + name : name;
}

void rename_all(EditableModel& model) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : model.tensors) names.push_back(name);
  for (const std::string& name : names) model.rename(name, transformers_name(name));
}

void append_bytes(OwnedTensor& to, const OwnedTensor& from) {
  to.dtype = from.dtype;
  to.bytes.insert(to.bytes.end(), from.bytes.begin(), from.bytes.end());
}

// Moves the experts of every layer into gate_up_proj and down_proj tensors with a leading expert
// dimension.
void fuse_experts(EditableModel& model) {
  const int64_t experts = *model.config.find("n_routed_experts")->as_int64();
  const int64_t layers = *model.config.find("num_hidden_layers")->as_int64();
  const auto fuse = [&](int64_t layer,
                        const std::vector<std::string>& parts,
                        const std::string& suffix,
                        const std::string& fused_name) {
    OwnedTensor fused;
    int64_t rows = 0;
    int64_t columns = 0;
    for (int64_t e = 0; e < experts; ++e) {
      rows = 0;
      for (const std::string& part : parts) {
        const std::string name = "layers." + std::to_string(layer) + ".ffn.experts." +
                                 std::to_string(e) + "." + part + suffix;
        const OwnedTensor& source = model.at(name);
        rows += source.shape[0];
        columns = source.shape[1];
        append_bytes(fused, source);
        model.erase(name);
      }
    }
    fused.shape = {experts, rows, columns};
    model.tensors["model.layers." + std::to_string(layer) + ".mlp.experts." + fused_name] = fused;
  };
  for (int64_t l = 0; l < layers; ++l) {
    fuse(l, {"w1", "w3"}, ".weight", "gate_up_proj");
    fuse(l, {"w1", "w3"}, ".scale", "gate_up_proj_scale_inv");
    fuse(l, {"w2"}, ".weight", "down_proj");
    fuse(l, {"w2"}, ".scale", "down_proj_scale_inv");
  }
}

TEST(CheckpointVariants, TransformersNamesGiveTheSameBits) {
  EditableModel original = native_flash_like();
  EditableModel renamed = native_flash_like();
  rename_all(renamed);
  EXPECT_TRUE(renamed.tensors.contains(
      "model.layers.2.self_attn.compressor.indexer.q_b_proj.weight_scale_inv"));
  EXPECT_EQ(logits_of(renamed), logits_of(original));
}

TEST(CheckpointVariants, FusedExpertsGiveTheSameBits) {
  EditableModel original = native_flash_like();
  EditableModel fused = native_flash_like();
  fuse_experts(fused);
  rename_all(fused);
  EXPECT_TRUE(fused.tensors.contains("model.layers.0.mlp.experts.gate_up_proj"));
  EXPECT_EQ(logits_of(fused), logits_of(original));
}

TEST(CheckpointVariants, StoredFormatsComputeWhatTheyDecodeTo) {
  for (const DType scale : {DType::kF8E8m0, DType::kF32}) {
    EditableModel quantized = native_flash_like(scale);
    EditableModel decoded = native_flash_like(scale);
    decoded.dequantize();
    EXPECT_LE(max_difference(logits_of(quantized), logits_of(decoded)), 2e-3f) << dtype_name(scale);
  }
}

TEST(CheckpointVariants, HashTablesOfEitherWidthAreRead) {
  EditableModel wide = flash_like();
  EditableModel narrow = flash_like();
  for (auto& [name, tensor] : narrow.tensors) {
    if (!name.ends_with("tid2eid")) continue;
    ASSERT_EQ(tensor.dtype, DType::kI64);
    OwnedTensor table{.dtype = DType::kI32, .shape = tensor.shape};
    table.bytes.resize(tensor.bytes.size() / 2);
    for (int64_t i = 0; i < tensor.shape.num_elements(); ++i) {
      table.as<int32_t>()[i] = static_cast<int32_t>(tensor.as<int64_t>()[i]);
    }
    tensor = table;
  }
  EXPECT_EQ(logits_of(narrow), logits_of(wide));
}

}  // namespace
}  // namespace nibble::golden
