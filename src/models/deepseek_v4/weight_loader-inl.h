// Which tensors of a checkpoint form which weights, the same for every backend.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/log.h"
#include "base/utf8.h"
#include "models/deepseek_v4/weight_shapes.h"
#include "models/deepseek_v4/weights.h"

namespace nibble::models::deepseek_v4 {

using kernels::Activation;
using kernels::WeightRows;

// "layers.12." -> "layers.*.", "mtp.0." -> "mtp.*.": one line per module class in plans and logs.
inline std::string class_prefix(std::string_view prefix) {
  return fmt::format("{}.*.", prefix.substr(0, prefix.find('.')));
}

// Walks the tensors of a checkpoint and has `Maker` turn them into a backend's layers.
//   Maker::Kit: the types. Functions: linear(name, sources, activation), output_groups(name, rows,
//   groups, activation), experts(name, sources, activation, is_gate_up), parameter(host buffer),
//   table(stored view), ids(host vector), and for_each_route(layer, visit(n, route)).
template <class Maker>
class WeightLoader final {
 public:
  using Kit = typename Maker::Kit;
  using Linear = typename Kit::Linear;
  using OutputGroups = typename Kit::OutputGroups;
  using Experts = typename Kit::Experts;

  WeightLoader(const checkpoint::Checkpoint& checkpoint,
               WeightMap& map,
               const Config& config,
               const Numerics& numerics,
               Maker& maker,
               const LoadOptions& options)
      : checkpoint_(checkpoint),
        map_(map),
        config_(config),
        numerics_(numerics),
        maker_(maker),
        options_(options) {}

  Result<WeightsOf<Kit>> load();

 private:
  int64_t hidden() const { return config_.hidden_size; }

  Result<Parameter> parameter(const std::string& name, const Shape& shape);
  Result<Linear> linear(const std::string& prefix, const WeightShape& shape, Activation activation);
  Result<Linear> linear(const std::string& prefix, const WeightShape& shape) {
    return linear(prefix, shape, shape.is_exact ? Activation::kF32 : numerics_.activation);
  }
  Result<HyperConnectionWeights> hyper_connection(const std::string& prefix,
                                                  int64_t rows,
                                                  int64_t scales);
  Result<HeadWeights> head(const std::string& prefix);
  Result<void> compressors(const std::string& prefix, AttentionWeightsOf<Kit>& weights);
  Result<AttentionWeightsOf<Kit>> attention(const std::string& prefix, int32_t layer);
  Result<OutputGroups> output_groups(const std::string& prefix);
  Result<Experts> experts(const std::string& prefix, const WeightShape& shape);
  Result<MoeWeightsOf<Kit>> moe(const std::string& prefix, int32_t layer);
  Result<void> expert_choice(const std::string& prefix, int32_t layer, MoeWeightsOf<Kit>& weights);
  Result<BlockWeightsOf<Kit>> block(const std::string& prefix, int32_t layer);
  Result<MtpWeightsOf<Kit>> mtp();
  Result<void> load_mtp();

  // A layer that was made: its bytes, its kernels, progress.
  template <class Layer>
  void note_layer(const std::string& module, int64_t k, const Layer& layer);
  void note_route(const std::string& module, int64_t n, int64_t k, const kernels::Route& route);
  Result<void> check_quantized_input(const std::string& module, bool is_quantized, int64_t k) const;
  void report_progress() const;
  void report_unclaimed() const;

  const checkpoint::Checkpoint& checkpoint_;
  WeightMap& map_;
  const Config& config_;
  const Numerics& numerics_;
  Maker& maker_;
  const LoadOptions& options_;
  WeightsOf<Kit> weights_;
};

template <class Maker>
template <class Layer>
void WeightLoader<Maker>::note_layer(const std::string& module, int64_t k, const Layer& layer) {
  weights_.num_bytes += layer.num_bytes();
  Maker::for_each_route(
      layer, [&](int64_t n, const kernels::Route& route) { note_route(module, n, k, route); });
  report_progress();
}

template <class Maker>
void WeightLoader<Maker>::note_route(const std::string& module,
                                     int64_t n,
                                     int64_t k,
                                     const kernels::Route& route) {
  const auto same = [&](const RoutedModule& known) {
    return known.module == module && known.n == n && known.k == k &&
           known.route.kernel == route.kernel;
  };
  if (std::any_of(weights_.modules.begin(), weights_.modules.end(), same)) return;
  weights_.modules.push_back({.module = module, .n = n, .k = k, .route = route});
}

template <class Maker>
void WeightLoader<Maker>::report_progress() const {
  if (options_.progress) options_.progress(map_.claimed_bytes(), checkpoint_.data_bytes());
}

template <class Maker>
Result<void> WeightLoader<Maker>::check_quantized_input(const std::string& module,
                                                        bool is_quantized,
                                                        int64_t k) const {
  if (!numerics_.is_simulated || !is_quantized || k % 128 == 0) return {};
  return unsupported(
      fmt::format("faithful precision: {} has k {}, which is no multiple of 128 as the FP8 "
                  "simulation of its input "
                  "needs. Use default or reference.",
                  module,
                  k));
}

template <class Maker>
Result<Parameter> WeightLoader<Maker>::parameter(const std::string& name, const Shape& shape) {
  TRY_ASSIGN(device::Buffer storage, map_.f32(name, shape));
  weights_.num_bytes += storage.num_bytes();
  weights_.fingerprint =
      hash_bytes({storage.data(), static_cast<size_t>(storage.num_bytes())}, weights_.fingerprint);
  return maker_.parameter(std::move(storage));
}

template <class Maker>
auto WeightLoader<Maker>::linear(const std::string& prefix,
                                 const WeightShape& shape,
                                 Activation activation) -> Result<Linear> {
  std::vector<WeightRows> sources;
  for (const Projection& projection : shape.projections) {
    TRY_ASSIGN(const WeightRows rows,
               map_.matrix(fmt::format("{}{}", prefix, projection.module), projection.n, shape.k));
    sources.push_back(rows);
  }
  TRY_ASSIGN(Linear linear,
             maker_.linear(fmt::format("{}{}", prefix, shape.name()), sources, activation));
  const std::string module =
      fmt::format("{}{}", prefix.empty() ? prefix : class_prefix(prefix), shape.name());
  if (activation != Activation::kF32) {
    TRY(check_quantized_input(module, linear.is_quantized(), shape.k));
  }
  note_layer(module, shape.k, linear);
  return linear;
}

template <class Maker>
Result<HyperConnectionWeights> WeightLoader<Maker>::hyper_connection(const std::string& prefix,
                                                                     int64_t rows,
                                                                     int64_t scales) {
  HyperConnectionWeights hc;
  TRY_ASSIGN(hc.fn, parameter(prefix + "fn", {rows, config_.hc_mult * hidden()}));
  TRY_ASSIGN(hc.base, parameter(prefix + "base", {rows}));
  TRY_ASSIGN(hc.scale, parameter(prefix + "scale", {scales}));
  return hc;
}

template <class Maker>
Result<HeadWeights> WeightLoader<Maker>::head(const std::string& prefix) {
  HeadWeights weights;
  TRY_ASSIGN(weights.hc, hyper_connection(prefix + "hc_head_", config_.hc_mult, 1));
  TRY_ASSIGN(weights.norm, parameter(prefix + "norm.weight", {hidden()}));
  return weights;
}

template <class Maker>
Result<void> WeightLoader<Maker>::compressors(const std::string& prefix,
                                              AttentionWeightsOf<Kit>& weights) {
  const int64_t ratio = weights.compress_ratio;
  const int64_t width = config_.head_dim;
  const int64_t index_width = config_.index_head_dim;
  const int64_t channels = ratio == 4 ? 2 * width : width;
  TRY_ASSIGN(weights.compressor.ape, parameter(prefix + "compressor.ape", {ratio, channels}));
  TRY_ASSIGN(weights.compressor.norm, parameter(prefix + "compressor.norm.weight", {width}));
  if (ratio == 4) {
    const std::string index = prefix + "indexer.compressor.";
    TRY_ASSIGN(weights.index_compressor.ape, parameter(index + "ape", {ratio, 2 * index_width}));
    TRY_ASSIGN(weights.index_compressor.norm, parameter(index + "norm.weight", {index_width}));
    TRY_ASSIGN(weights.index_wq_b, linear(prefix, index_queries_shape(config_)));
  }
  TRY_ASSIGN(weights.compressor_projections,
             linear(prefix, compressors_shape(config_, weights.compress_ratio)));
  return {};
}

template <class Maker>
auto WeightLoader<Maker>::output_groups(const std::string& prefix) -> Result<OutputGroups> {
  const WeightShape shape = output_groups_shape(config_);
  TRY_ASSIGN(const WeightRows all, map_.matrix(prefix + "wo_a", shape.n(), shape.k));
  TRY_ASSIGN(OutputGroups linear,
             maker_.output_groups(prefix + "wo_a", all, shape.groups, numerics_.activation));
  note_layer(class_prefix(prefix) + "wo_a", shape.k, linear);
  return linear;
}

template <class Maker>
auto WeightLoader<Maker>::attention(const std::string& prefix, int32_t layer)
    -> Result<AttentionWeightsOf<Kit>> {
  const int64_t d = config_.head_dim;
  AttentionWeightsOf<Kit> weights;
  weights.compress_ratio = config_.compress_ratio(layer);
  TRY_ASSIGN(weights.wqa_wkv, linear(prefix, latents_shape(config_)));
  TRY_ASSIGN(weights.q_norm, parameter(prefix + "q_norm.weight", {config_.q_lora_rank}));
  TRY_ASSIGN(weights.kv_norm, parameter(prefix + "kv_norm.weight", {d}));
  TRY_ASSIGN(weights.wq_b, linear(prefix, queries_shape(config_)));
  TRY_ASSIGN(weights.wo_a, output_groups(prefix));
  TRY_ASSIGN(weights.wo_b, linear(prefix, output_shape(config_)));
  TRY_ASSIGN(weights.sink, parameter(prefix + "attn_sink", {config_.num_attention_heads}));
  if (weights.compress_ratio != 0) TRY(compressors(prefix, weights));
  return weights;
}

// sources[e]: the projections of expert e, stacked.
template <class Maker>
auto WeightLoader<Maker>::experts(const std::string& prefix, const WeightShape& shape)
    -> Result<Experts> {
  std::vector<std::vector<WeightRows>> sources;
  for (int32_t e = 0; e < config_.n_routed_experts; ++e) {
    std::vector<WeightRows>& expert = sources.emplace_back();
    for (const Projection& projection : shape.projections) {
      TRY_ASSIGN(
          const WeightRows rows,
          map_.matrix(
              fmt::format("{}experts.{}.{}", prefix, e, projection.module), projection.n, shape.k));
      expert.push_back(rows);
    }
  }
  const std::string module = fmt::format("{}experts.{}", class_prefix(prefix), shape.name());
  const std::string name = fmt::format("{}experts.*.{}", prefix, shape.name());
  const bool is_gate_up = shape.projections.size() == 2;
  auto made = maker_.experts(name, sources, numerics_.activation, is_gate_up);
  if (!made.ok()) {
    Error error = std::move(made).error();
    error.message = fmt::format("{}: {}", name, error.message);
    return error;
  }
  Experts linear = std::move(made).value();
  TRY(check_quantized_input(module, linear.is_quantized(), shape.k));
  note_layer(module, shape.k, linear);
  return linear;
}

template <class Maker>
Result<void> WeightLoader<Maker>::expert_choice(const std::string& prefix,
                                                int32_t layer,
                                                MoeWeightsOf<Kit>& weights) {
  if (!config_.is_hash_layer(layer)) {
    TRY_ASSIGN(weights.bias, parameter(prefix + "gate.bias", {config_.n_routed_experts}));
    return {};
  }
  const int64_t k = config_.num_experts_per_tok;
  const std::string name = prefix + "gate.tid2eid";
  TRY_ASSIGN(std::vector<int32_t> experts,
             map_.integers(name, {config_.vocab_size, k}, config_.n_routed_experts));
  for (int64_t token = 0; token < config_.vocab_size; ++token) {
    const auto row =
        std::span(experts).subspan(static_cast<size_t>(token * k), static_cast<size_t>(k));
    for (size_t i = 0; i < row.size(); ++i) {
      if (std::find(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(i), row[i]) ==
          row.begin() + static_cast<std::ptrdiff_t>(i)) {
        continue;
      }
      return data_loss(fmt::format(
          "tensor {}: row {} names expert {} twice, expected {} distinct experts. The file "
          "is damaged.",
          name,
          token,
          row[i],
          k));
    }
  }
  weights_.num_bytes += static_cast<int64_t>(experts.size() * sizeof(int32_t));
  TRY_ASSIGN(weights.token_to_experts, maker_.ids(std::move(experts)));
  return {};
}

template <class Maker>
auto WeightLoader<Maker>::moe(const std::string& prefix, int32_t layer)
    -> Result<MoeWeightsOf<Kit>> {
  MoeWeightsOf<Kit> weights;
  TRY_ASSIGN(weights.gate, linear(prefix, gate_shape(config_)));
  TRY(expert_choice(prefix, layer, weights));
  TRY_ASSIGN(weights.w13, experts(prefix, expert_up_shape(config_)));
  TRY_ASSIGN(weights.w2, experts(prefix, expert_down_shape(config_)));
  TRY_ASSIGN(weights.shared_w13, linear(prefix, shared_up_shape(config_)));
  TRY_ASSIGN(weights.shared_w2, linear(prefix, shared_down_shape(config_)));
  return weights;
}

template <class Maker>
auto WeightLoader<Maker>::block(const std::string& prefix, int32_t layer)
    -> Result<BlockWeightsOf<Kit>> {
  const int64_t streams = config_.hc_mult;
  const int64_t rows = 2 * streams + streams * streams;
  BlockWeightsOf<Kit> weights;
  TRY_ASSIGN(weights.attention_hc, hyper_connection(prefix + "hc_attn_", rows, 3));
  TRY_ASSIGN(weights.attention_norm, parameter(prefix + "attn_norm.weight", {hidden()}));
  TRY_ASSIGN(weights.attention, attention(prefix + "attn.", layer));
  TRY_ASSIGN(weights.ffn_hc, hyper_connection(prefix + "hc_ffn_", rows, 3));
  TRY_ASSIGN(weights.ffn_norm, parameter(prefix + "ffn_norm.weight", {hidden()}));
  TRY_ASSIGN(weights.moe, moe(prefix + "ffn.", layer));
  checkpoint_.drop_resident();
  return weights;
}

template <class Maker>
auto WeightLoader<Maker>::mtp() -> Result<MtpWeightsOf<Kit>> {
  const std::string prefix = "mtp.0.";
  MtpWeightsOf<Kit> weights;
  TRY_ASSIGN(weights.enorm, parameter(prefix + "enorm.weight", {hidden()}));
  TRY_ASSIGN(weights.hnorm, parameter(prefix + "hnorm.weight", {hidden()}));
  TRY_ASSIGN(weights.e_proj, linear(prefix, mtp_shape(config_, "e_proj")));
  TRY_ASSIGN(weights.h_proj, linear(prefix, mtp_shape(config_, "h_proj")));
  TRY_ASSIGN(weights.block, block(prefix, config_.num_hidden_layers));
  TRY_ASSIGN(weights.head, head(prefix));
  return weights;
}

// The tensors decide whether there is an MTP layer (spec 1.4). The stages of the 0731 release share
// the prefix.
template <class Maker>
Result<void> WeightLoader<Maker>::load_mtp() {
  const bool is_dspark = map_.contains("mtp.0.main_proj.weight");
  if (is_dspark) log_info("mtp.*: DSpark stages found; they are not used");
  if (options_.load_mtp && !is_dspark && map_.contains("mtp.0.e_proj.weight")) {
    TRY_ASSIGN(weights_.mtp, mtp());
  } else {
    map_.ignore("mtp.");
  }
  return {};
}

template <class Maker>
void WeightLoader<Maker>::report_unclaimed() const {
  const std::vector<std::string> names = map_.unclaimed();
  constexpr size_t kShown = 8;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    log_warning("tensor {} is unknown and not used", escape_for_display(names[i]));
  }
  if (names.size() > kShown)
    log_warning("{} more tensors are unknown and not used", names.size() - kShown);
}

template <class Maker>
auto WeightLoader<Maker>::load() -> Result<WeightsOf<Kit>> {
  if (numerics_.is_simulated) TRY(check_simulated_sizes(config_));
  TRY_ASSIGN(const TensorView embed, map_.table("embed.weight", {config_.vocab_size, hidden()}));
  weights_.num_bytes += embed.num_bytes();
  TRY_ASSIGN(weights_.embed, maker_.table(embed));
  for (int32_t l = 0; l < config_.num_hidden_layers; ++l) {
    TRY_ASSIGN(BlockWeightsOf<Kit> layer, block(fmt::format("layers.{}.", l), l));
    weights_.layers.push_back(std::move(layer));
  }
  TRY_ASSIGN(weights_.head, head(""));
  TRY_ASSIGN(weights_.lm_head, linear("", head_shape(config_), numerics_.head_activation));
  TRY(load_mtp());
  checkpoint_.drop_resident();
  report_unclaimed();
  return std::move(weights_);
}

}  // namespace nibble::models::deepseek_v4
