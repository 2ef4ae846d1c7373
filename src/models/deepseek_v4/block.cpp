// The decoder block and the head: what both the main layers and the MTP layer are made of.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "models/deepseek_v4/pass.h"

namespace nibble::models::deepseek_v4 {
namespace {

// x = norm(HC_PRE(streams)); post and comb are kept for the write.
Result<void> read_streams(Pass& pass,
                          const HyperConnectionWeights& hc,
                          const Parameter& norm,
                          const TensorView& streams,
                          const TensorView& x) {
  const Config& config = pass.config;
  const int64_t tokens = streams.num_rows();
  TRY(pass.ops.hyper_pre.launch(kernels::HyperPreArgs{.state = streams,
                                                      .fn = hc.fn.data(),
                                                      .base = hc.base.data(),
                                                      .scale = hc.scale.data(),
                                                      .hc_mult = config.hc_mult,
                                                      .sinkhorn_iters = config.hc_sinkhorn_iters,
                                                      .hc_eps = static_cast<float>(config.hc_eps),
                                                      .norm_eps = pass.norm_eps(),
                                                      .x = x,
                                                      .post = pass.workspace.post.rows(0, tokens),
                                                      .comb = pass.workspace.comb.rows(0, tokens)},
                                pass.stream));
  pass.round(x);
  TRY(pass.ops.norm_hidden.launch(
      kernels::RmsNormArgs{.x = x, .gamma = norm.data(), .eps = pass.norm_eps(), .y = x},
      pass.stream));
  pass.round(x);
  return {};
}

Result<void> write_streams(Pass& pass, const TensorView& y, const TensorView& streams) {
  const int64_t tokens = streams.num_rows();
  TRY(pass.ops.hyper_post.launch(kernels::HyperPostArgs{.y = y,
                                                        .post = pass.workspace.post.rows(0, tokens),
                                                        .comb = pass.workspace.comb.rows(0, tokens),
                                                        .hc_mult = pass.config.hc_mult,
                                                        .state = streams},
                                 pass.stream));
  pass.round(streams);
  return {};
}

// Q-R1 (spec "quantization" 4.2): names the layer and part whose output is the first that is not
// finite.
Result<void> require_finite(const Pass& pass,
                            const TensorView& y,
                            int32_t layer,
                            std::string_view part) {
  if (!pass.check_finite) return {};
  const int32_t num_layers = pass.config.num_hidden_layers;
  const std::string name = layer < num_layers ? fmt::format("layers.{}", layer) : "mtp.0";
  for (int64_t row = 0; row < y.num_rows(); ++row) {
    const float* const values = y.row<float>(row);
    const float* const end = values + y.shape[1];
    const float* const bad =
        std::find_if_not(values, end, [](float value) { return std::isfinite(value); });
    if (bad == end) continue;
    Error error = data_loss(
        fmt::format("{}.{}: output element {} of token {} of the pass is {}, the first that is not "
                    "finite; compare this layer's tensors with `nibble check`",
                    name,
                    part,
                    bad - values,
                    row,
                    *bad));
    error.reason = "Q-R1";
    return error;
  }
  return {};
}

}  // namespace

Result<void> run_block(Pass& pass,
                       const BlockWeights& weights,
                       int32_t layer,
                       const Batch& batch,
                       const TensorView& streams) {
  const TensorView x = pass.workspace.x.rows(0, batch.num_tokens());
  const TensorView y = pass.workspace.y.rows(0, batch.num_tokens());
  TRY(read_streams(pass, weights.attention_hc, weights.attention_norm, streams, x));
  TRY(run_attention(pass, weights.attention, layer, batch, x, y));
  TRY(require_finite(pass, y, layer, "attn"));
  TRY(write_streams(pass, y, streams));
  TRY(read_streams(pass, weights.ffn_hc, weights.ffn_norm, streams, x));
  TRY(run_experts(pass, weights.moe, layer, batch, x, y));
  TRY(require_finite(pass, y, layer, "ffn"));
  return write_streams(pass, y, streams);
}

Result<void> run_head(Pass& pass,
                      const HeadWeights& weights,
                      const TensorView& streams,
                      const TensorView& hidden,
                      const TensorView& logits) {
  const Config& config = pass.config;
  TRY(pass.ops.hyper_head.launch(kernels::HyperHeadArgs{.state = streams,
                                                        .fn = weights.hc.fn.data(),
                                                        .base = weights.hc.base.data(),
                                                        .scale = weights.hc.scale.data(),
                                                        .hc_mult = config.hc_mult,
                                                        .hc_eps = static_cast<float>(config.hc_eps),
                                                        .norm_eps = pass.norm_eps(),
                                                        .x = hidden},
                                 pass.stream));
  pass.round(hidden);
  TRY(pass.ops.norm_hidden.launch(
      kernels::RmsNormArgs{
          .x = hidden, .gamma = weights.norm.data(), .eps = pass.norm_eps(), .y = hidden},
      pass.stream));
  pass.round(hidden);
  return pass.weights.lm_head.forward(hidden, logits, pass.stream);
}

}  // namespace nibble::models::deepseek_v4
