// The numbers of a DeepSeek-V4 model, as its config.json states them. Three dialects are read: the
// published one (num_hidden_layers, compress_ratios, rope_scaling), the original inference config
// (n_layers, rope_factor, ...) and the one that transformers writes (layer_types, mlp_layer_types,
// rope_parameters). Fields carry the published names. Weight formats are not taken from here: the
// tensors decide.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/config_reader.h"

namespace nibble::models::deepseek_v4 {

// YaRN of the layers with a compress ratio other than 0. The amplitude of cos and sin is always 1.
struct RopeScaling {
  double factor = 16;
  int64_t original_max_position_embeddings = 65536;
  double beta_fast = 32;
  double beta_slow = 1;

  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

// The speculative stages of the 0731 checkpoints.
struct DsparkConfig {
  int32_t dspark_block_size = 0;
  int32_t dspark_markov_rank = 0;
  int32_t dspark_noise_token_id = 0;
  std::vector<int32_t> dspark_target_layer_ids;
};

// Defaults are those of the released models; fields marked "required" have none.
struct Config {
  int32_t vocab_size = 129280;
  int32_t hidden_size = 0;        // required
  int32_t num_hidden_layers = 0;  // required; without MTP layers
  int32_t max_position_embeddings = 1048576;
  double rms_norm_eps = 1e-6;

  int32_t num_attention_heads = 0;  // required
  int32_t num_key_value_heads = 1;  // always 1: K = V, shared by all heads
  int32_t head_dim = 512;
  int32_t qk_rope_head_dim = 64;  // even; the last dimensions of a head and of an indexer head
  int32_t q_lora_rank = 1024;
  int32_t o_groups = 8;  // divides num_attention_heads
  int32_t o_lora_rank = 1024;
  int32_t sliding_window = 128;  // tokens, the current one included

  // 0 (window only), 4 (window and indexed summaries) or 128 (window and all summaries) per layer.
  // At least num_hidden_layers entries; those beyond belong to MTP layers and are 0.
  std::vector<int32_t> compress_ratios;  // required
  int32_t index_n_heads = 64;
  int32_t index_head_dim = 128;
  int32_t index_topk = 512;

  double rope_theta = 10000;                // layers with ratio 0, and MTP layers
  double compress_rope_theta = 160000;      // the other layers
  std::optional<RopeScaling> rope_scaling;  // absent: no YaRN anywhere

  int32_t hc_mult = 4;
  int32_t hc_sinkhorn_iters = 20;
  double hc_eps = 1e-6;

  int32_t n_routed_experts = 0;  // required
  int32_t n_shared_experts = 1;
  int32_t num_experts_per_tok = 6;
  int32_t moe_intermediate_size = 0;  // required
  int32_t num_hash_layers = 3;        // layers below this route by token id
  double routed_scaling_factor = 1.5;
  double swiglu_limit = 10;  // 0: no clamp

  // What the config says; how many MTP layers exist is decided by the tensors present.
  int32_t num_nextn_predict_layers = 1;
  std::optional<DsparkConfig> dspark;

  int32_t bos_token_id = 0;
  std::vector<int32_t> eos_token_ids = {1};  // the key eos_token_id holds one id or a list
  std::string expert_dtype;                  // informational; empty when absent

  // The ratio of a layer; 0 for MTP layers (index num_hidden_layers and beyond).
  int32_t compress_ratio(int32_t layer) const {
    return layer < num_hidden_layers ? compress_ratios[static_cast<size_t>(layer)] : 0;
  }
  bool is_hash_layer(int32_t layer) const { return layer < num_hash_layers; }
  int32_t qk_nope_head_dim() const { return head_dim - qk_rope_head_dim; }
};

// Reads and cross-checks a config. kInvalidArgument for values that are missing, out of range or
// contradict each other; kUnsupported for another architecture or a variant of this one that is not
// implemented.
Result<Config> parse_config(const checkpoint::ConfigReader& reader);

}  // namespace nibble::models::deepseek_v4
