#include "tools/synth/inventory.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace nibble::tools {
namespace {

using models::deepseek_v4::Config;

class Inventory final {
 public:
  explicit Inventory(const Config& config) : config_(config) {}

  std::vector<InventoryEntry> take() {
    matrix("embed", config_.vocab_size, 0.05f);
    for (int32_t l = 0; l < config_.num_hidden_layers; ++l) block(fmt::format("layers.{}.", l), l);
    if (config_.num_nextn_predict_layers > 0 && !config_.dspark) draft();
    head("");
    matrix("head", config_.vocab_size, fan_in(hidden()));
    return std::move(entries_);
  }

 private:
  int64_t hidden() const { return config_.hidden_size; }
  // Keeps the variance of activations.
  static float fan_in(int64_t k) { return 1.0f / std::sqrt(static_cast<float>(k)); }

  void tensor(std::string name, DType dtype, Shape shape, float mean, float deviation) {
    entries_.push_back({.role = WeightRole::kOther,
                        .name = std::move(name),
                        .dtype = dtype,
                        .shape = shape,
                        .mean = mean,
                        .deviation = deviation});
  }
  void norm(const std::string& module, int64_t width) {
    tensor(module + ".weight", DType::kBf16, {width}, 1.0f, 0.1f);
  }
  // A BF16 matrix over the hidden size.
  void matrix(const std::string& module, int64_t n, float deviation) {
    tensor(module + ".weight", DType::kBf16, {n, hidden()}, 0, deviation);
  }
  // A weight that formats quantise.
  void weight(std::string module, int64_t n, int64_t k) {
    const WeightRole role = weight_role(module);
    CHECK(role != WeightRole::kOther) << module;
    entries_.push_back({.role = role, .name = std::move(module), .shape = {n, k}});
  }

  void hyper_connection(const std::string& prefix, int64_t rows, int64_t scales) {
    const int64_t k = config_.hc_mult * hidden();
    tensor(prefix + "fn", DType::kF32, {rows, k}, 0, fan_in(k));
    tensor(prefix + "base", DType::kF32, {rows}, 0, 0.3f);
    tensor(prefix + "scale", DType::kF32, {scales}, 0.5f, 0.1f);
  }

  void compressor(const std::string& prefix, int64_t ratio, int64_t channels, int64_t width) {
    tensor(prefix + "ape", DType::kF32, {ratio, channels}, 0, 0.3f);
    matrix(prefix + "wkv", channels, fan_in(hidden()));
    matrix(prefix + "wgate", channels, fan_in(hidden()));
    norm(prefix + "norm", width);
  }

  void attention(const std::string& prefix, int32_t layer) {
    const int64_t d = config_.head_dim;
    const int64_t heads = config_.num_attention_heads;
    const int64_t o_rank = int64_t{config_.o_groups} * config_.o_lora_rank;
    tensor(prefix + "attn_sink", DType::kF32, {heads}, 0, 1.0f);
    weight(prefix + "wq_a", config_.q_lora_rank, hidden());
    norm(prefix + "q_norm", config_.q_lora_rank);
    weight(prefix + "wq_b", heads * d, config_.q_lora_rank);
    weight(prefix + "wkv", d, hidden());
    norm(prefix + "kv_norm", d);
    weight(prefix + "wo_a", o_rank, heads / config_.o_groups * d);
    weight(prefix + "wo_b", hidden(), o_rank);
    const int64_t ratio = config_.compress_ratio(layer);
    if (ratio == 0) return;
    // Ratio 4 overlaps its blocks, and so has two sets of channels.
    compressor(prefix + "compressor.", ratio, ratio == 4 ? 2 * d : d, d);
    if (ratio != 4) return;
    const int64_t index_d = config_.index_head_dim;
    weight(prefix + "indexer.wq_b", config_.index_n_heads * index_d, config_.q_lora_rank);
    matrix(prefix + "indexer.weights_proj", config_.index_n_heads, fan_in(hidden()));
    compressor(prefix + "indexer.compressor.", ratio, 2 * index_d, index_d);
  }

  void moe(const std::string& prefix, int32_t layer) {
    matrix(prefix + "gate", config_.n_routed_experts, fan_in(hidden()));
    if (config_.is_hash_layer(layer)) {
      const Shape shape{config_.vocab_size, config_.num_experts_per_tok};
      tensor(prefix + "gate.tid2eid", DType::kI64, shape, 0, 0);
    } else {
      tensor(prefix + "gate.bias", DType::kF32, {config_.n_routed_experts}, 0, 0.1f);
    }
    for (int32_t e = 0; e < config_.n_routed_experts; ++e) {
      expert(fmt::format("{}experts.{}.", prefix, e), config_.moe_intermediate_size);
    }
    expert(prefix + "shared_experts.",
           int64_t{config_.moe_intermediate_size} * config_.n_shared_experts);
  }
  void expert(const std::string& prefix, int64_t intermediate) {
    weight(prefix + "w1", intermediate, hidden());
    weight(prefix + "w3", intermediate, hidden());
    weight(prefix + "w2", hidden(), intermediate);
  }

  void block(const std::string& prefix, int32_t layer) {
    const int64_t streams = config_.hc_mult;
    const int64_t rows = 2 * streams + streams * streams;
    hyper_connection(prefix + "hc_attn_", rows, 3);
    norm(prefix + "attn_norm", hidden());
    attention(prefix + "attn.", layer);
    hyper_connection(prefix + "hc_ffn_", rows, 3);
    norm(prefix + "ffn_norm", hidden());
    moe(prefix + "ffn.", layer);
  }

  void head(const std::string& prefix) {
    hyper_connection(prefix + "hc_head_", config_.hc_mult, 1);
    norm(prefix + "norm", hidden());
  }

  void draft() {
    const std::string prefix = "mtp.0.";
    norm(prefix + "enorm", hidden());
    norm(prefix + "hnorm", hidden());
    weight(prefix + "e_proj", hidden(), hidden());
    weight(prefix + "h_proj", hidden(), hidden());
    block(prefix, config_.num_hidden_layers);
    head(prefix);
  }

  const Config& config_;
  std::vector<InventoryEntry> entries_;
};

}  // namespace

std::vector<InventoryEntry> model_inventory(const Config& config) {
  return Inventory(config).take();
}

}  // namespace nibble::tools
