#include "tools/synth/presets.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace nibble::tools {
namespace {

using json::Array;
using json::make_object;
using json::Object;
using json::Value;

// What the presets differ in, under the names of config.json.
struct Sizes {
  std::string_view name;
  int32_t vocab_size;
  int32_t hidden_size;
  int32_t moe_intermediate_size;
  int32_t num_hidden_layers;
  int32_t num_attention_heads;
  int32_t q_lora_rank;
  int32_t o_groups;
  int32_t o_lora_rank;
  int32_t n_routed_experts;
  double routed_scaling_factor;
  int32_t first_ratios;  // of layers 0 and 1; then 4 and 128 take turns
  int32_t index_n_heads;
  int32_t index_topk;
  int32_t num_nextn_predict_layers;
  int32_t max_position_embeddings;
};

constexpr Sizes kPresets[] = {
    {.name = "flash",
     .vocab_size = 129280,
     .hidden_size = 4096,
     .moe_intermediate_size = 2048,
     .num_hidden_layers = 43,
     .num_attention_heads = 64,
     .q_lora_rank = 1024,
     .o_groups = 8,
     .o_lora_rank = 1024,
     .n_routed_experts = 256,
     .routed_scaling_factor = 1.5,
     .first_ratios = 0,
     .index_n_heads = 64,
     .index_topk = 512,
     .num_nextn_predict_layers = 1,
     .max_position_embeddings = 1'048'576},
    {.name = "pro",
     .vocab_size = 129280,
     .hidden_size = 7168,
     .moe_intermediate_size = 3072,
     .num_hidden_layers = 61,
     .num_attention_heads = 128,
     .q_lora_rank = 1536,
     .o_groups = 16,
     .o_lora_rank = 1024,
     .n_routed_experts = 384,
     .routed_scaling_factor = 2.5,
     .first_ratios = 128,
     .index_n_heads = 64,
     .index_topk = 1024,
     .num_nextn_predict_layers = 1,
     .max_position_embeddings = 1'048'576},
    {.name = "mini",
     .vocab_size = 32768,
     .hidden_size = 2048,
     .moe_intermediate_size = 768,
     .num_hidden_layers = 12,
     .num_attention_heads = 16,
     .q_lora_rank = 1024,
     .o_groups = 4,
     .o_lora_rank = 512,
     .n_routed_experts = 96,
     .routed_scaling_factor = 1.5,
     .first_ratios = 0,
     .index_n_heads = 16,
     .index_topk = 512,
     .num_nextn_predict_layers = 0,
     .max_position_embeddings = 65'536},
};

Array compress_ratios(const Sizes& sizes) {
  Array ratios{sizes.first_ratios, sizes.first_ratios};
  for (int32_t l = 2; l < sizes.num_hidden_layers; ++l) ratios.emplace_back(l % 2 == 0 ? 4 : 128);
  for (int32_t d = 0; d < sizes.num_nextn_predict_layers; ++d) ratios.emplace_back(0);
  return ratios;
}

Object rope_scaling() {
  return make_object({{"type", "yarn"},
                      {"factor", 16},
                      {"original_max_position_embeddings", 65536},
                      {"beta_fast", 32},
                      {"beta_slow", 1}});
}

}  // namespace

std::optional<Object> preset_config(std::string_view name) {
  const auto* sizes = std::find_if(
      std::begin(kPresets), std::end(kPresets), [&](const Sizes& s) { return s.name == name; });
  if (sizes == std::end(kPresets)) return std::nullopt;
  return make_object({{"architectures", Array{"DeepseekV4ForCausalLM"}},
                      {"model_type", "deepseek_v4"},
                      {"vocab_size", sizes->vocab_size},
                      {"hidden_size", sizes->hidden_size},
                      {"moe_intermediate_size", sizes->moe_intermediate_size},
                      {"num_hidden_layers", sizes->num_hidden_layers},
                      {"num_attention_heads", sizes->num_attention_heads},
                      {"num_key_value_heads", 1},
                      {"head_dim", 512},
                      {"qk_rope_head_dim", 64},
                      {"q_lora_rank", sizes->q_lora_rank},
                      {"o_groups", sizes->o_groups},
                      {"o_lora_rank", sizes->o_lora_rank},
                      {"n_routed_experts", sizes->n_routed_experts},
                      {"n_shared_experts", 1},
                      {"num_experts_per_tok", 6},
                      {"scoring_func", "sqrtsoftplus"},
                      {"topk_method", "noaux_tc"},
                      {"norm_topk_prob", true},
                      {"routed_scaling_factor", sizes->routed_scaling_factor},
                      {"num_hash_layers", 3},
                      {"compress_ratios", compress_ratios(*sizes)},
                      {"compress_rope_theta", 160000.0},
                      {"rope_theta", 10000.0},
                      {"rope_scaling", rope_scaling()},
                      {"sliding_window", 128},
                      {"index_n_heads", sizes->index_n_heads},
                      {"index_head_dim", 128},
                      {"index_topk", sizes->index_topk},
                      {"hc_mult", 4},
                      {"hc_sinkhorn_iters", 20},
                      {"hc_eps", 1e-06},
                      {"swiglu_limit", 10.0},
                      {"rms_norm_eps", 1e-06},
                      {"num_nextn_predict_layers", sizes->num_nextn_predict_layers},
                      {"max_position_embeddings", sizes->max_position_embeddings},
                      {"bos_token_id", 0},
                      {"eos_token_id", 1},
                      {"tie_word_embeddings", false},
                      {"attention_bias", false},
                      {"attention_dropout", 0.0},
                      {"hidden_act", "silu"},
                      {"torch_dtype", "bfloat16"}});
}

Result<Object> keep_layers(const Object& config, int32_t num_layers) {
  const Value* count = config.find("num_hidden_layers");
  const Value* ratios = config.find("compress_ratios");
  const std::optional<int64_t> available = count == nullptr ? std::nullopt : count->as_int64();
  if (!available || ratios == nullptr || !ratios->is_array() ||
      static_cast<int64_t>(ratios->as_array()->size()) < *available) {
    return unsupported(
        "config.json: the number of layers can only be changed where num_hidden_layers and "
        "compress_ratios state them");
  }
  if (num_layers < 1 || num_layers > *available) {
    return invalid_argument(
        fmt::format("{} layers asked for, expected 1 to {}", num_layers, *available));
  }
  Array kept;
  for (size_t l = 0; l < ratios->as_array()->size(); ++l) {
    const bool is_dropped =
        l >= static_cast<size_t>(num_layers) && l < static_cast<size_t>(*available);
    if (!is_dropped) kept.push_back((*ratios->as_array())[l]);
  }
  Object result = config;
  result.set("num_hidden_layers", num_layers);
  result.set("compress_ratios", std::move(kept));
  const Value* hash_layers = config.find("num_hash_layers");
  const std::optional<int64_t> num_hash_layers =
      hash_layers == nullptr ? std::nullopt : hash_layers->as_int64();
  // An absent key means 3.
  result.set("num_hash_layers", std::min<int64_t>(num_hash_layers.value_or(3), num_layers));
  return result;
}

}  // namespace nibble::tools
