// Layers without weights, for plans.
#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

#include "models/deepseek_v4/gpu/weights.h"
#include "models/deepseek_v4/weight_shapes.h"

namespace nibble::models::deepseek_v4::gpu {
namespace {

using kernels::Activation;
using layers::DeviceExperts;
using layers::DeviceLinear;
using layers::LayerShape;

class WeightPlanner final {
 public:
  WeightPlanner(const Config& config,
                const Numerics& numerics,
                const FormatOf& format_of,
                const device::DeviceInfo& device,
                const kernels::RouteOptions& routing)
      : config_(config),
        numerics_(numerics),
        format_of_(format_of),
        device_(device),
        routing_(routing) {}

  Result<Weights> plan(bool has_mtp) const {
    Weights weights;
    for (int32_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
      TRY_ASSIGN(BlockWeights planned, block(fmt::format("layers.{}.", layer), layer));
      weights.layers.push_back(std::move(planned));
    }
    TRY_ASSIGN(weights.lm_head, linear("", head_shape(config_), numerics_.head_activation));
    if (!has_mtp) return weights;
    const std::string prefix = "mtp.0.";
    MtpWeights& mtp = weights.mtp.emplace();
    TRY_ASSIGN(mtp.e_proj, linear(prefix, mtp_shape(config_, "e_proj")));
    TRY_ASSIGN(mtp.h_proj, linear(prefix, mtp_shape(config_, "h_proj")));
    TRY_ASSIGN(mtp.block, block(prefix, config_.num_hidden_layers));
    return weights;
  }

 private:
  // Matrices of different formats are stacked as f32, where none has scales.
  Result<LayerShape> layer_of(const std::string& prefix, const WeightShape& weight) const {
    LayerShape layer{.n = weight.n(), .k = weight.k, .groups = weight.groups};
    bool is_first = true;
    for (const Projection& projection : weight.projections) {
      const std::string name = fmt::format("{}{}", prefix, projection.module);
      const std::optional<quant::Format> format = format_of_(name);
      if (!format) return unsupported(fmt::format("{}: no format that kernels know", name));
      const bool is_mixed = !is_first && *format != layer.format;
      layer.format = is_mixed ? quant::Format::kF32 : *format;
      is_first = false;
    }
    return layer;
  }
  Result<DeviceLinear> linear(const std::string& prefix,
                              const WeightShape& weight,
                              Activation activation) const {
    TRY_ASSIGN(const LayerShape layer, layer_of(prefix, weight));
    return DeviceLinear::plan(layer, gpu_activation(layer.format, activation), device_, routing_);
  }
  Result<DeviceLinear> linear(const std::string& prefix, const WeightShape& weight) const {
    return linear(prefix, weight, weight.is_exact ? Activation::kF32 : numerics_.activation);
  }
  Result<DeviceExperts> experts(const std::string& prefix, const WeightShape& weight) const {
    TRY_ASSIGN(const LayerShape layer, layer_of(prefix + "experts.0.", weight));
    const Activation activation = gpu_activation(layer.format, numerics_.activation);
    return DeviceExperts::plan(layer, config_.n_routed_experts, activation, device_, routing_);
  }

  Result<AttentionWeights> attention(const std::string& prefix, int32_t layer) const {
    AttentionWeights weights;
    weights.compress_ratio = config_.compress_ratio(layer);
    TRY_ASSIGN(weights.wqa_wkv, linear(prefix, latents_shape(config_)));
    TRY_ASSIGN(weights.wq_b, linear(prefix, queries_shape(config_)));
    TRY_ASSIGN(weights.wo_a, linear(prefix, output_groups_shape(config_)));
    TRY_ASSIGN(weights.wo_b, linear(prefix, output_shape(config_)));
    if (weights.compress_ratio == 0) return weights;
    TRY_ASSIGN(weights.compressor_projections,
               linear(prefix, compressors_shape(config_, weights.compress_ratio)));
    if (weights.compress_ratio == 4) {
      TRY_ASSIGN(weights.index_wq_b, linear(prefix, index_queries_shape(config_)));
    }
    return weights;
  }

  Result<MoeWeights> moe(const std::string& prefix) const {
    MoeWeights weights;
    TRY_ASSIGN(weights.gate, linear(prefix, gate_shape(config_)));
    TRY_ASSIGN(weights.w13, experts(prefix, expert_up_shape(config_)));
    TRY_ASSIGN(weights.w2, experts(prefix, expert_down_shape(config_)));
    TRY_ASSIGN(weights.shared_w13, linear(prefix, shared_up_shape(config_)));
    TRY_ASSIGN(weights.shared_w2, linear(prefix, shared_down_shape(config_)));
    return weights;
  }

  Result<BlockWeights> block(const std::string& prefix, int32_t layer) const {
    BlockWeights weights;
    TRY_ASSIGN(weights.attention, attention(prefix + "attn.", layer));
    TRY_ASSIGN(weights.moe, moe(prefix + "ffn."));
    return weights;
  }

  const Config& config_;
  const Numerics& numerics_;
  const FormatOf& format_of_;
  const device::DeviceInfo& device_;
  const kernels::RouteOptions& routing_;
};

}  // namespace

Result<Weights> plan_weights(const Config& config,
                             const Numerics& numerics,
                             bool has_mtp,
                             const FormatOf& format_of,
                             const device::DeviceInfo& device,
                             const kernels::RouteOptions& routing) {
  return WeightPlanner(config, numerics, format_of, device, routing).plan(has_mtp);
}

}  // namespace nibble::models::deepseek_v4::gpu
