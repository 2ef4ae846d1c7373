#include "models/deepseek_v4/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace nibble::models::deepseek_v4 {
namespace {

using ::testing::HasSubstr;

Result<Config> parse(const std::string& text) {
  TRY_ASSIGN(const checkpoint::ConfigReader reader,
             checkpoint::ConfigReader::parse(text, "config.json"));
  return parse_config(reader);
}

// Only what has no default.
const std::string kMinimal =
    R"({"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8, "n_routed_experts": 8,
        "moe_intermediate_size": 32, "compress_ratios": [0, 4, 128, 4]})";

// DeepSeek-V4-Flash as published.
std::string flash_config() {
  std::string ratios = "0, 0";
  for (int i = 0; i < 20; ++i) ratios += ", 4, 128";
  ratios += ", 4, 0";
  return R"({"architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "vocab_size": 129280,
    "hidden_size": 4096, "num_hidden_layers": 43, "num_attention_heads": 64, "head_dim": 512,
    "qk_rope_head_dim": 64, "num_key_value_heads": 1, "q_lora_rank": 1024, "o_groups": 8, "o_lora_rank": 1024,
    "index_n_heads": 64, "index_head_dim": 128, "index_topk": 512, "sliding_window": 128, "hc_mult": 4,
    "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "rms_norm_eps": 1e-6, "num_experts_per_tok": 6, "n_shared_experts": 1,
    "n_routed_experts": 256, "moe_intermediate_size": 2048, "routed_scaling_factor": 1.5, "num_hash_layers": 3,
    "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": true, "swiglu_limit": 10.0,
    "num_nextn_predict_layers": 1, "rope_theta": 10000, "compress_rope_theta": 160000,
    "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32,
                     "beta_slow": 1},
    "max_position_embeddings": 1048576, "hidden_act": "silu", "attention_bias": false, "attention_dropout": 0,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 1,
    "initializer_range": 0.02, "use_cache": true, "expert_dtype": "fp4",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "compress_ratios": [)" +
         ratios + "]}";
}

// Replaces the only occurrence of `from`.
std::string edited(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  CHECK(at != std::string::npos && text.find(from, at + 1) == std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string with(const std::string& member) { return edited(kMinimal, "}", ", " + member + "}"); }

TEST(Config, ReadsThePublishedFlashConfig) {
  const Result<Config> config = parse(flash_config());
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->hidden_size, 4096);
  EXPECT_EQ(config->num_hidden_layers, 43);
  EXPECT_EQ(config->num_attention_heads, 64);
  EXPECT_EQ(config->qk_nope_head_dim(), 448);
  ASSERT_EQ(config->compress_ratios.size(), 44u);
  EXPECT_EQ(config->compress_ratio(0), 0);
  EXPECT_EQ(config->compress_ratio(2), 4);
  EXPECT_EQ(config->compress_ratio(3), 128);
  EXPECT_EQ(config->compress_ratio(42), 4);
  EXPECT_EQ(config->compress_ratio(43), 0);  // MTP
  EXPECT_EQ(config->compress_ratio(44), 0);
  EXPECT_EQ(config->rope_scaling, (RopeScaling{}));
  EXPECT_TRUE(config->is_hash_layer(2));
  EXPECT_FALSE(config->is_hash_layer(3));
  EXPECT_EQ(config->expert_dtype, "fp4");
  EXPECT_EQ(config->dspark.has_value(), false);
}

TEST(Config, FillsMissingKeysFromTheReleasedModels) {
  const Result<Config> config = parse(kMinimal);
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->vocab_size, 129280);
  EXPECT_EQ(config->head_dim, 512);
  EXPECT_EQ(config->qk_rope_head_dim, 64);
  EXPECT_EQ(config->q_lora_rank, 1024);
  EXPECT_EQ(config->o_groups, 8);
  EXPECT_EQ(config->o_lora_rank, 1024);
  EXPECT_EQ(config->sliding_window, 128);
  EXPECT_EQ(config->index_n_heads, 64);
  EXPECT_EQ(config->index_head_dim, 128);
  EXPECT_EQ(config->index_topk, 512);
  EXPECT_EQ(config->hc_mult, 4);
  EXPECT_EQ(config->hc_sinkhorn_iters, 20);
  EXPECT_EQ(config->hc_eps, 1e-6);
  EXPECT_EQ(config->rms_norm_eps, 1e-6);
  EXPECT_EQ(config->num_experts_per_tok, 6);
  EXPECT_EQ(config->n_shared_experts, 1);
  EXPECT_EQ(config->num_hash_layers, 3);
  EXPECT_EQ(config->routed_scaling_factor, 1.5);
  EXPECT_EQ(config->swiglu_limit, 10.0);
  EXPECT_EQ(config->rope_theta, 10000.0);
  EXPECT_EQ(config->compress_rope_theta, 160000.0);
  EXPECT_EQ(config->rope_scaling, std::nullopt);  // absent means none, not the released one
  EXPECT_EQ(config->max_position_embeddings, 1048576);
  EXPECT_EQ(config->num_nextn_predict_layers, 1);
  EXPECT_EQ(config->bos_token_id, 0);
  EXPECT_EQ(config->eos_token_ids, std::vector<int32_t>{1});
}

TEST(Config, ReadsTheOriginalInferenceConfig) {
  const Result<Config> config = parse(
      R"({"vocab_size": 129280, "dim": 7168, "moe_inter_dim": 3072, "n_layers": 4, "n_hash_layers": 2, "n_heads": 128,
          "n_routed_experts": 384, "n_activated_experts": 8, "score_func": "sqrtsoftplus", "route_scale": 2.5,
          "q_lora_rank": 1536, "o_groups": 16, "o_lora_rank": 512, "head_dim": 256, "rope_head_dim": 32,
          "window_size": 96, "original_seq_len": 4096, "rope_theta": 20000, "rope_factor": 8, "beta_fast": 16,
          "beta_slow": 2, "compress_rope_theta": 80000, "norm_eps": 1e-5, "n_mtp_layers": 3, "dtype": "fp8",
          "scale_fmt": "ue8m0", "expert_dtype": "fp4", "swiglu_limit": 7, "compress_ratios": [128, 128, 4, 128, 0]})");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->hidden_size, 7168);
  EXPECT_EQ(config->moe_intermediate_size, 3072);
  EXPECT_EQ(config->num_hidden_layers, 4);
  EXPECT_EQ(config->num_hash_layers, 2);
  EXPECT_EQ(config->num_attention_heads, 128);
  EXPECT_EQ(config->num_experts_per_tok, 8);
  EXPECT_EQ(config->routed_scaling_factor, 2.5);
  EXPECT_EQ(config->qk_rope_head_dim, 32);
  EXPECT_EQ(config->sliding_window, 96);
  EXPECT_EQ(config->rope_theta, 20000.0);
  EXPECT_EQ(config->compress_rope_theta, 80000.0);
  EXPECT_EQ(config->rms_norm_eps, 1e-5);
  EXPECT_EQ(config->num_nextn_predict_layers, 3);
  EXPECT_EQ(config->swiglu_limit, 7.0);
  const RopeScaling expected = {
      .factor = 8, .original_max_position_embeddings = 4096, .beta_fast = 16, .beta_slow = 2};
  EXPECT_EQ(config->rope_scaling, expected);
}

TEST(Config, ReadsWhatTransformersWrites) {
  const Result<Config> config = parse(
      R"({"model_type": "deepseek_v4", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8,
          "n_routed_experts": 8, "moe_intermediate_size": 32, "head_dim": 64, "partial_rotary_factor": 0.25,
          "layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
          "mlp_layer_types": ["hash_moe", "moe", "moe"],
          "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128},
          "rope_parameters": {"main": {"rope_type": "default", "rope_theta": 12000.0},
                              "compress": {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 4, "beta_fast": 32,
                                           "beta_slow": 1, "original_max_position_embeddings": 512,
                                           "attention_factor": 1.0}}})");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->compress_ratios, (std::vector<int32_t>{0, 4, 128}));
  EXPECT_EQ(config->num_hash_layers, 1);
  EXPECT_EQ(config->qk_rope_head_dim, 16);
  EXPECT_EQ(config->rope_theta, 12000.0);
  EXPECT_EQ(config->compress_rope_theta, 150000.0);
  ASSERT_TRUE(config->rope_scaling.has_value());
  EXPECT_EQ(config->rope_scaling->factor, 4.0);
  EXPECT_EQ(config->rope_scaling->original_max_position_embeddings, 512);
}

TEST(Config, TakesNoScalingWhereNoneIsAskedFor) {
  for (const char* member : {R"("rope_scaling": null)",
                             R"("rope_scaling": {"type": "default"})",
                             R"("rope_parameters": {"compress": {"rope_type": "default"}})",
                             R"("original_seq_len": 0)"}) {
    const Result<Config> config = parse(with(member));
    ASSERT_TRUE(config.ok()) << config.error().message;
    EXPECT_EQ(config->rope_scaling, std::nullopt) << member;
  }
}

TEST(Config, FillsAPartialScalingFromTheReleasedModels) {
  const Result<Config> config =
      parse(with(R"("rope_scaling": {"rope_type": "yarn", "factor": 2})"));
  ASSERT_TRUE(config.ok()) << config.error().message;
  RopeScaling expected;
  expected.factor = 2;
  EXPECT_EQ(config->rope_scaling, expected);
}

TEST(Config, ReadsTheDsparkFields) {
  const Result<Config> config = parse(
      with(R"("dspark_block_size": 5, "dspark_markov_rank": 256, "dspark_noise_token_id": 128799,
              "dspark_target_layer_ids": [1, 2, 3])"));
  ASSERT_TRUE(config.ok()) << config.error().message;
  ASSERT_TRUE(config->dspark.has_value());
  EXPECT_EQ(config->dspark->dspark_block_size, 5);
  EXPECT_EQ(config->dspark->dspark_target_layer_ids, (std::vector<int32_t>{1, 2, 3}));
}

TEST(Config, AllowsUnusualButValidNumbers) {
  for (const char* member : {R"("num_hash_layers": 0)",
                             R"("num_hash_layers": 4)",
                             R"("hc_mult": 1)",
                             R"("sliding_window": 1)",
                             R"("swiglu_limit": 0)",
                             R"("index_head_dim": 96)",
                             R"("eos_token_id": [1, 5])",
                             R"("num_nextn_predict_layers": 0)",
                             R"("num_experts_per_tok": 8)",
                             R"("head_dim": 64)"}) {
    const Result<Config> config = parse(with(member));
    EXPECT_TRUE(config.ok()) << config.error().message;
  }
  // Without an indexer its head width does not matter.
  EXPECT_TRUE(
      parse(edited(with(R"("index_head_dim": 32)"), "[0, 4, 128, 4]", "[0, 0, 128, 0]")).ok());
}

TEST(Config, ReadsTheBundledModel) {
  const auto reader = checkpoint::read_config(Path(NIBBLE_SOURCE_DIR) / "models" / "tiny-v4");
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  const Result<Config> config = parse_config(*reader);
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->hidden_size, 256);
  EXPECT_EQ(config->num_hash_layers, 2);
  EXPECT_EQ(config->compress_ratios, (std::vector<int32_t>{0, 0, 4, 128, 4, 128, 0}));
  EXPECT_EQ(config->rope_scaling, std::nullopt);
}

struct BadConfig {
  std::string text;
  Errc code;
  std::vector<const char*> texts;
};

std::vector<BadConfig> contradictions() {
  const Errc bad = Errc::kDataLoss;
  return {
      {with(R"("o_groups": 3)"), bad, {"o_groups", "found 3", "divisor of num_attention_heads 8"}},
      {with(R"("qk_rope_head_dim": 63)"), bad, {"qk_rope_head_dim", "found 63", "even number"}},
      {with(R"("qk_rope_head_dim": 514)"), bad, {"qk_rope_head_dim", "found 514"}},
      {with(R"("index_head_dim": 32)"), bad, {"qk_rope_head_dim", "found 64", "index_head_dim 32"}},
      {with(R"("partial_rotary_factor": 0.001)"),
       bad,
       {"qk_rope_head_dim", "found 0", "even number"}},
      {with(R"("num_experts_per_tok": 9)"),
       bad,
       {"num_experts_per_tok", "found 9", "n_routed_experts 8"}},
      {with(R"("num_hash_layers": 5)"), bad, {"num_hash_layers", "integer 5", "from 0 to 4"}},
      {with(R"("vocab_size": 100, "bos_token_id": 100)"),
       bad,
       {"bos_token_id", "integer 100", "from 0 to 99"}},
      {with(R"("eos_token_id": [1, 129280])"), bad, {"eos_token_id[1]", "integer 129280"}},
      {with(R"("dim": 128)"), bad, {"dim", "integer 128", "integer 64 as under hidden_size"}},
      {with(R"("mlp_layer_types": ["moe", "hash_moe", "moe", "moe"])"),
       bad,
       {"mlp_layer_types[1]", "hash_moe"}},
      {with(R"("mlp_layer_types": ["hash_moe", "moe", "moe", "moe"], "num_hash_layers": 2)"),
       bad,
       {"mlp_layer_types", "1 hash_moe layers", "num_hash_layers 2"}},
      {with(R"("mlp_layer_types": ["moe"])"),
       bad,
       {"mlp_layer_types", "1 entries", "num_hidden_layers 4"}},
      {with(
           R"("layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention"])"),
       bad,
       {"layer_types", "other layers", "compress_ratios"}},
      {with(
           R"("rope_scaling": {"type": "yarn", "factor": 4}, "original_seq_len": 65536, "rope_factor": 8)"),
       bad,
       {"rope_factor", "another scaling"}},
      {with(
           R"("rope_scaling": {"type": "yarn"}, "rope_parameters": {"compress": {"rope_type": "default"}})"),
       bad,
       {"rope_parameters.compress", "another scaling"}},
      {with(R"("rope_scaling": {"type": "yarn", "beta_fast": 1, "beta_slow": 2})"),
       bad,
       {"beta_fast", "found 1", "beta_slow 2"}},
      {with(R"("dspark_block_size": 5)"), bad, {"dspark_markov_rank", "found nothing"}},
      {with(R"("dspark_block_size": 5, "dspark_markov_rank": 2, "dspark_noise_token_id": 3,
               "dspark_target_layer_ids": [4])"),
       bad,
       {"dspark_target_layer_ids[0]", "integer 4", "from 0 to 3"}},
  };
}

std::vector<BadConfig> bad_lists() {
  const Errc bad = Errc::kDataLoss;
  const auto ratios = [](const char* list) { return edited(kMinimal, "[0, 4, 128, 4]", list); };
  return {
      {ratios("[0, 4, 128]"), bad, {"compress_ratios", "3 entries", "num_hidden_layers 4"}},
      {ratios("[0, 4, 128, 8]"), bad, {"compress_ratios[3]", "found 8", "0, 4 or 128"}},
      {ratios("[0, 4, 128, -4]"), bad, {"compress_ratios[3]", "integer -4"}},
      {ratios("[0, 4, 128, 4.5]"), bad, {"compress_ratios[3]", "number 4.5"}},
      {ratios("4"), bad, {"compress_ratios", "integer 4", "an array"}},
      {ratios("null"), bad, {"compress_ratios or layer_types", "found nothing"}},
      {ratios("[0, 4, 128, 4, 128]"),
       Errc::kUnsupported,
       {"compress_ratios[4]", "found 128", "0 for MTP layers"}},
      {edited(kMinimal,
              R"("compress_ratios": [0, 4, 128, 4])",
              R"("layer_types": ["a", "b", "c", "d"])"),
       bad,
       {"layer_types[0]", "found a", "sliding_attention"}},
      {with(R"("compress_rates": {"compressed_sparse_attention": 8})"),
       bad,
       {"compress_rates.compressed_sparse_attention", "integer 8"}},
  };
}

std::vector<BadConfig> unsupported_variants() {
  const Errc no = Errc::kUnsupported;
  return {
      {with(R"("model_type": "deepseek_v41")"),
       no,
       {"model_type", "deepseek_v41", "expected deepseek_v4"}},
      {with(R"("scoring_func": "sigmoid")"), no, {"scoring_func", "sigmoid", "sqrtsoftplus"}},
      {with(R"("topk_method": "group_limited_greedy")"), no, {"topk_method", "noaux_tc"}},
      {with(R"("hidden_act": "gelu")"), no, {"hidden_act", "gelu", "silu"}},
      {with(R"("norm_topk_prob": false)"), no, {"norm_topk_prob", "found false"}},
      {with(R"("attention_bias": true)"), no, {"attention_bias", "found true"}},
      {with(R"("tie_word_embeddings": true)"), no, {"tie_word_embeddings", "found true"}},
      {with(R"("rope_scaling": {"type": "linear", "factor": 2})"),
       no,
       {"rope_scaling.type", "linear", "yarn"}},
      {with(R"("rope_scaling": {"factor": 2})"), no, {"rope_scaling.type", "yarn or default"}},
      {with(R"("rope_parameters": {"main": {"rope_type": "yarn"}})"),
       no,
       {"rope_parameters.main.rope_type", "yarn"}},
  };
}

TEST(Config, RefusesWhatContradictsItself) {
  std::vector<BadConfig> all = contradictions();
  for (const auto& list : {bad_lists(), unsupported_variants()})
    all.insert(all.end(), list.begin(), list.end());
  for (const BadConfig& c : all) {
    const Result<Config> config = parse(c.text);
    ASSERT_FALSE(config.ok()) << c.text;
    EXPECT_STREQ(errc_name(config.error().code), errc_name(c.code)) << config.error().message;
    EXPECT_THAT(config.error().message, HasSubstr("config.json: "));
    EXPECT_THAT(config.error().message, HasSubstr("expected"));
    for (const char* text : c.texts) EXPECT_THAT(config.error().message, HasSubstr(text));
  }
}

TEST(Config, RequiresWhatHasNoDefault) {
  for (const char* key : {"hidden_size",
                          "num_hidden_layers",
                          "num_attention_heads",
                          "n_routed_experts",
                          "moe_intermediate_size"}) {
    const Result<Config> config = parse(edited(kMinimal, key, "other"));
    ASSERT_FALSE(config.ok()) << key;
    EXPECT_THAT(config.error().message, HasSubstr(key));
    EXPECT_THAT(config.error().message, HasSubstr("found nothing"));
  }
}

// Every number refuses a wrong type, a negative value and a huge one.
TEST(Config, BoundsEveryNumber) {
  for (const char* key : {"vocab_size",
                          "hidden_size",
                          "num_hidden_layers",
                          "max_position_embeddings",
                          "rms_norm_eps",
                          "num_attention_heads",
                          "num_key_value_heads",
                          "head_dim",
                          "qk_rope_head_dim",
                          "q_lora_rank",
                          "o_groups",
                          "o_lora_rank",
                          "sliding_window",
                          "index_n_heads",
                          "index_head_dim",
                          "index_topk",
                          "rope_theta",
                          "compress_rope_theta",
                          "hc_mult",
                          "hc_sinkhorn_iters",
                          "hc_eps",
                          "n_routed_experts",
                          "n_shared_experts",
                          "num_experts_per_tok",
                          "moe_intermediate_size",
                          "num_hash_layers",
                          "routed_scaling_factor",
                          "swiglu_limit",
                          "num_nextn_predict_layers",
                          "bos_token_id",
                          "eos_token_id"}) {
    for (const char* value :
         {"\"12\"", "-1", "1e300", "99999999999999999999", "{}", "true", "[[]]"}) {
      std::string text = kMinimal;
      const std::string name = "\"" + std::string(key) + "\": ";
      const size_t at = text.find(name);
      if (at == std::string::npos) {
        text = with(name + value);
      } else {
        text.insert(at + name.size(), std::string(value) + ", \"was\": ");
      }
      const Result<Config> config = parse(text);
      ASSERT_FALSE(config.ok()) << text;
      EXPECT_EQ(config.error().code, Errc::kDataLoss) << config.error().message;
      EXPECT_THAT(config.error().message, HasSubstr(key));
    }
  }
}

}  // namespace
}  // namespace nibble::models::deepseek_v4
