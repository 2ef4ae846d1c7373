// Layers without weights, for plans. Shapes and activations are those of weight_loader-inl.h.
#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/deepseek_v4/gpu/weights.h"

namespace nibble::models::deepseek_v4::gpu {
namespace {

using kernels::Activation;
using layers::DeviceExperts;
using layers::DeviceLinear;
using layers::LayerShape;

// A weight whose rows are those of several matrices.
struct Stack {
  std::vector<std::string_view> modules;
  int64_t n = 0;  // rows together
  int64_t k = 0;
  int32_t groups = 1;
};

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
    const Stack head{.modules = {"head"}, .n = config_.vocab_size, .k = config_.hidden_size};
    TRY_ASSIGN(weights.lm_head, linear("", head, numerics_.head_activation));
    if (!has_mtp) return weights;
    const std::string prefix = "mtp.0.";
    const int64_t d = config_.hidden_size;
    MtpWeights& mtp = weights.mtp.emplace();
    TRY_ASSIGN(mtp.e_proj, linear(prefix, {.modules = {"e_proj"}, .n = d, .k = d}));
    TRY_ASSIGN(mtp.h_proj, linear(prefix, {.modules = {"h_proj"}, .n = d, .k = d}));
    TRY_ASSIGN(mtp.block, block(prefix, config_.num_hidden_layers));
    return weights;
  }

 private:
  // Matrices of different formats are stacked as f32, where none has scales.
  Result<LayerShape> shape_of(const std::string& prefix, const Stack& stack) const {
    LayerShape shape{.n = stack.n, .k = stack.k, .groups = stack.groups};
    bool is_first = true;
    for (const std::string_view module : stack.modules) {
      const std::string name = fmt::format("{}{}", prefix, module);
      const std::optional<quant::Format> format = format_of_(name);
      if (!format) return unsupported(fmt::format("{}: no format that kernels know", name));
      const bool is_mixed = !is_first && *format != shape.format;
      shape.format = is_mixed ? quant::Format::kF32 : *format;
      is_first = false;
    }
    return shape;
  }
  Result<DeviceLinear> linear(const std::string& prefix,
                              const Stack& stack,
                              Activation activation) const {
    TRY_ASSIGN(const LayerShape shape, shape_of(prefix, stack));
    return DeviceLinear::plan(shape, gpu_activation(shape.format, activation), device_, routing_);
  }
  Result<DeviceLinear> linear(const std::string& prefix, const Stack& stack) const {
    return linear(prefix, stack, numerics_.activation);
  }
  Result<DeviceExperts> experts(const std::string& prefix, const Stack& stack) const {
    TRY_ASSIGN(const LayerShape shape, shape_of(prefix + "experts.0.", stack));
    const Activation activation = gpu_activation(shape.format, numerics_.activation);
    return DeviceExperts::plan(shape, activation, device_, routing_);
  }

  Result<void> plan_compressors(const std::string& prefix, AttentionWeights& weights) const {
    const int64_t width = config_.head_dim;
    const int64_t index_width = config_.index_head_dim;
    const int64_t hidden = config_.hidden_size;
    if (weights.compress_ratio != 4) {
      const Stack stack{
          .modules = {"compressor.wkv", "compressor.wgate"}, .n = 2 * width, .k = hidden};
      TRY_ASSIGN(weights.compressor_projections, linear(prefix, stack, Activation::kF32));
      return {};
    }
    const Stack stack{.modules = {"compressor.wkv",
                                  "compressor.wgate",
                                  "indexer.compressor.wkv",
                                  "indexer.compressor.wgate",
                                  "indexer.weights_proj"},
                      .n = 4 * width + 4 * index_width + config_.index_n_heads,
                      .k = hidden};
    TRY_ASSIGN(weights.compressor_projections, linear(prefix, stack, Activation::kF32));
    TRY_ASSIGN(weights.index_wq_b,
               linear(prefix,
                      {.modules = {"indexer.wq_b"},
                       .n = config_.index_n_heads * index_width,
                       .k = config_.q_lora_rank}));
    return {};
  }

  Result<AttentionWeights> attention(const std::string& prefix, int32_t layer) const {
    const int64_t rank = config_.q_lora_rank;
    const int64_t heads_width = int64_t{config_.num_attention_heads} * config_.head_dim;
    const int64_t groups_rank = int64_t{config_.o_groups} * config_.o_lora_rank;
    const int64_t hidden = config_.hidden_size;
    AttentionWeights weights;
    weights.compress_ratio = config_.compress_ratio(layer);
    TRY_ASSIGN(
        weights.wqa_wkv,
        linear(prefix, {.modules = {"wq_a", "wkv"}, .n = rank + config_.head_dim, .k = hidden}));
    TRY_ASSIGN(weights.wq_b, linear(prefix, {.modules = {"wq_b"}, .n = heads_width, .k = rank}));
    TRY_ASSIGN(weights.wo_a,
               linear(prefix,
                      {.modules = {"wo_a"},
                       .n = groups_rank,
                       .k = heads_width / config_.o_groups,
                       .groups = config_.o_groups}));
    TRY_ASSIGN(weights.wo_b, linear(prefix, {.modules = {"wo_b"}, .n = hidden, .k = groups_rank}));
    if (weights.compress_ratio != 0) TRY(plan_compressors(prefix, weights));
    return weights;
  }

  Result<MoeWeights> moe(const std::string& prefix) const {
    const int64_t hidden = config_.hidden_size;
    const int64_t width = config_.moe_intermediate_size;
    const int64_t shared = width * config_.n_shared_experts;
    MoeWeights weights;
    TRY_ASSIGN(weights.gate,
               linear(prefix,
                      {.modules = {"gate"}, .n = config_.n_routed_experts, .k = hidden},
                      Activation::kF32));
    TRY_ASSIGN(weights.w13,
               experts(prefix, {.modules = {"w1", "w3"}, .n = 2 * width, .k = hidden}));
    TRY_ASSIGN(weights.w2, experts(prefix, {.modules = {"w2"}, .n = hidden, .k = width}));
    TRY_ASSIGN(
        weights.shared_w13,
        linear(
            prefix,
            {.modules = {"shared_experts.w1", "shared_experts.w3"}, .n = 2 * shared, .k = hidden}));
    TRY_ASSIGN(weights.shared_w2,
               linear(prefix, {.modules = {"shared_experts.w2"}, .n = hidden, .k = shared}));
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
