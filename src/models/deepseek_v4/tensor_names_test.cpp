#include "models/deepseek_v4/tensor_names.h"

#include <gtest/gtest.h>

namespace nibble::models::deepseek_v4 {
namespace {

TEST(TensorNames, TranslatesTheTransformersLayout) {
  EXPECT_EQ(original_name("model.embed_tokens.weight"), "embed.weight");
  EXPECT_EQ(original_name("lm_head.weight"), "head.weight");
  EXPECT_EQ(original_name("model.norm.weight"), "norm.weight");
  EXPECT_EQ(original_name("model.hc_head.hc_scale"), "hc_head_scale");
  EXPECT_EQ(original_name("model.layers.60.self_attn.q_a_proj.weight_scale_inv"),
            "layers.60.attn.wq_a.scale");
  EXPECT_EQ(original_name("model.layers.0.self_attn.sinks"), "layers.0.attn.attn_sink");
  EXPECT_EQ(original_name("model.layers.2.self_attn.compressor.indexer.scorer.weights_proj.weight"),
            "layers.2.attn.indexer.weights_proj.weight");
  EXPECT_EQ(original_name("model.layers.2.self_attn.compressor.indexer.weights_proj.weight"),
            "layers.2.attn.indexer.weights_proj.weight");
  EXPECT_EQ(original_name("model.layers.2.self_attn.compressor.indexer.kv_norm.weight"),
            "layers.2.attn.indexer.compressor.norm.weight");
  EXPECT_EQ(original_name("model.layers.7.attn_hc.scale"), "layers.7.hc_attn_scale");
  EXPECT_EQ(original_name("model.layers.7.mlp.gate.e_score_correction_bias"),
            "layers.7.ffn.gate.bias");
  EXPECT_EQ(original_name("model.layers.7.mlp.gate.weight"), "layers.7.ffn.gate.weight");
  EXPECT_EQ(original_name("model.layers.7.mlp.experts.31.up_proj.weight"),
            "layers.7.ffn.experts.31.w3.weight");
}

TEST(TensorNames, KeepsOriginalAndUnknownNames) {
  for (const char* name : {"embed.weight",
                           "layers.3.attn.wq_a.scale",
                           "layers.3.hc_attn_scale",
                           "mtp.0.e_proj.weight",
                           "model.layers.3.mlp.unknown.weight",
                           "model.layers..self_attn.sinks",
                           "model.layers.-1.self_attn.sinks",
                           "model.layers.99999999999.self_attn.sinks",
                           ""}) {
    EXPECT_EQ(original_name(name), name);
  }
  EXPECT_EQ(original_name("layers.3.attn.wq_a.weight_scale_inv"), "layers.3.attn.wq_a.scale");
}

TEST(TensorNames, RecognisesFusedExperts) {
  const auto weight = parse_fused_experts("model.layers.12.mlp.experts.gate_up_proj");
  ASSERT_TRUE(weight);
  EXPECT_EQ(weight->layer, 12);
  EXPECT_EQ(weight->part, FusedExperts::Part::kGateUp);
  EXPECT_FALSE(weight->is_scale);
  for (const char* name : {"model.layers.3.mlp.experts.down_proj_scale_inv",
                           "model.layers.3.mlp.experts.down_proj.weight_scale_inv"}) {
    const auto scale = parse_fused_experts(name);
    ASSERT_TRUE(scale) << name;
    EXPECT_EQ(scale->part, FusedExperts::Part::kDown);
    EXPECT_TRUE(scale->is_scale);
  }
  EXPECT_FALSE(parse_fused_experts("model.layers.3.mlp.experts.5.down_proj.weight"));
  EXPECT_FALSE(parse_fused_experts("layers.3.ffn.experts.5.w2.weight"));
}

}  // namespace
}  // namespace nibble::models::deepseek_v4
