#include "models/deepseek_v4/inventory.h"

#include <fmt/format.h>

#include <utility>

namespace nibble::models::deepseek_v4 {
namespace {

constexpr int32_t kNumDsparkStages = 3;

class Inventory final {
 public:
  explicit Inventory(const Config& config) : c_(config) {}

  std::vector<ExpectedModule> list(DraftKind draft) {
    add("embed", {c_.vocab_size, c_.hidden_size});
    for (int32_t l = 0; l < c_.num_hidden_layers; ++l) {
      block(fmt::format("layers.{}.", l), c_.compress_ratio(l), c_.is_hash_layer(l));
    }
    add("norm", {c_.hidden_size});
    add("head", {c_.vocab_size, c_.hidden_size});
    head_mixer("");
    if (draft == DraftKind::kMtp) mtp();
    if (draft == DraftKind::kDspark) dspark();
    return std::move(modules_);
  }

 private:
  void add(std::string name, Shape shape) {
    modules_.push_back({.name = std::move(name), .shape = shape});
  }

  void head_mixer(const std::string& p) {
    add(p + "hc_head_fn", {c_.hc_mult, int64_t{c_.hc_mult} * c_.hidden_size});
    add(p + "hc_head_base", {c_.hc_mult});
    add(p + "hc_head_scale", {1});
  }

  void mixer(const std::string& p) {
    const int64_t rows = 2 * int64_t{c_.hc_mult} + int64_t{c_.hc_mult} * c_.hc_mult;
    add(p + "fn", {rows, int64_t{c_.hc_mult} * c_.hidden_size});
    add(p + "base", {rows});
    add(p + "scale", {3});
  }

  void block(const std::string& p, int32_t ratio, bool is_hash) {
    add(p + "attn_norm", {c_.hidden_size});
    add(p + "ffn_norm", {c_.hidden_size});
    mixer(p + "hc_attn_");
    mixer(p + "hc_ffn_");
    attention(p + "attn.", ratio);
    experts(p + "ffn.", is_hash);
  }

  void attention(const std::string& p, int32_t ratio) {
    const int64_t heads = int64_t{c_.num_attention_heads} * c_.head_dim;
    const int64_t groups = int64_t{c_.o_groups} * c_.o_lora_rank;
    add(p + "attn_sink", {c_.num_attention_heads});
    add(p + "wq_a", {c_.q_lora_rank, c_.hidden_size});
    add(p + "q_norm", {c_.q_lora_rank});
    add(p + "wq_b", {heads, c_.q_lora_rank});
    add(p + "wkv", {c_.head_dim, c_.hidden_size});
    add(p + "kv_norm", {c_.head_dim});
    add(p + "wo_a", {groups, heads / c_.o_groups});
    add(p + "wo_b", {c_.hidden_size, groups});
    if (ratio == 0) return;
    compressor(p + "compressor.", ratio, c_.head_dim);
    if (ratio != 4) return;
    add(p + "indexer.wq_b", {int64_t{c_.index_n_heads} * c_.index_head_dim, c_.q_lora_rank});
    add(p + "indexer.weights_proj", {c_.index_n_heads, c_.hidden_size});
    compressor(p + "indexer.compressor.", ratio, c_.index_head_dim);
  }

  void compressor(const std::string& p, int64_t ratio, int64_t width) {
    const int64_t channels = ratio == 4 ? 2 * width : width;
    add(p + "ape", {ratio, channels});
    add(p + "wkv", {channels, c_.hidden_size});
    add(p + "wgate", {channels, c_.hidden_size});
    add(p + "norm", {width});
  }

  void experts(const std::string& p, bool is_hash) {
    add(p + "gate", {c_.n_routed_experts, c_.hidden_size});
    if (is_hash) {
      add(p + "gate.tid2eid", {c_.vocab_size, c_.num_experts_per_tok});
    } else {
      add(p + "gate.bias", {c_.n_routed_experts});
    }
    for (int32_t e = 0; e < c_.n_routed_experts; ++e) {
      expert(fmt::format("{}experts.{}.", p, e), c_.moe_intermediate_size);
    }
    expert(p + "shared_experts.", int64_t{c_.moe_intermediate_size} * c_.n_shared_experts);
  }

  void expert(const std::string& p, int64_t intermediate) {
    add(p + "w1", {intermediate, c_.hidden_size});
    add(p + "w3", {intermediate, c_.hidden_size});
    add(p + "w2", {c_.hidden_size, intermediate});
  }

  void mtp() {
    const std::string p = "mtp.0.";
    block(p, 0, false);
    add(p + "e_proj", {c_.hidden_size, c_.hidden_size});
    add(p + "h_proj", {c_.hidden_size, c_.hidden_size});
    add(p + "enorm", {c_.hidden_size});
    add(p + "hnorm", {c_.hidden_size});
    add(p + "norm", {c_.hidden_size});
    head_mixer(p);
  }

  void dspark() {
    for (int32_t stage = 0; stage < kNumDsparkStages; ++stage) {
      block(fmt::format("mtp.{}.", stage), 0, false);
    }
    const int64_t rank = c_.dspark ? c_.dspark->dspark_markov_rank : 256;
    const int64_t taps = kNumDsparkStages;
    add("mtp.0.main_proj", {c_.hidden_size, taps * c_.hidden_size});
    add("mtp.0.main_norm", {c_.hidden_size});
    add("mtp.2.norm", {c_.hidden_size});
    head_mixer("mtp.2.");
    add("mtp.2.markov_head.markov_w1", {c_.vocab_size, rank});
    add("mtp.2.markov_head.markov_w2", {c_.vocab_size, rank});
    add("mtp.2.confidence_head.proj", {1, c_.hidden_size + rank});
  }

  const Config& c_;
  std::vector<ExpectedModule> modules_;
};

}  // namespace

std::vector<ExpectedModule> expected_modules(const Config& config, DraftKind draft) {
  return Inventory(config).list(draft);
}

}  // namespace nibble::models::deepseek_v4
