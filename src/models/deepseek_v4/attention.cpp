// Attention of one layer (spec 3.4): projections, keys into the window ring, the softmax over
// window and entries, and the grouped output projection.
#include <algorithm>
#include <cmath>
#include <span>

#include "models/deepseek_v4/compressor.h"
#include "models/deepseek_v4/host_rows.h"
#include "models/deepseek_v4/indexer.h"
#include "models/deepseek_v4/pass.h"

namespace nibble::models::deepseek_v4 {
namespace {

Result<void> rotate(
    Pass& pass, const TensorView& x, const Batch& batch, int32_t ratio, bool inverse) {
  TRY(pass.ops.rope_head.launch(kernels::RopeArgs{.x = x,
                                                  .positions = batch.positions,
                                                  .freqs = pass.frequencies.of(ratio),
                                                  .inverse = inverse},
                                pass.stream));
  pass.round(x);
  return {};
}

// qr and kv from x; both normalised, kv rotated.   qr_kv: [m, q_lora_rank + d]
Result<void> project_latents(Pass& pass,
                             const AttentionWeights& weights,
                             const Batch& batch,
                             const TensorView& x,
                             const TensorView& qr_kv) {
  const int64_t tokens = batch.num_tokens();
  const int64_t rank = pass.config.q_lora_rank;
  const int64_t d = pass.config.head_dim;
  TRY(weights.wqa_wkv.forward(x, qr_kv, pass.stream));
  pass.round(qr_kv);
  const TensorView qr = qr_kv.columns(0, rank);
  const TensorView kv = qr_kv.columns(rank, d);
  TRY(pass.ops.norm_q_lora.launch(
      kernels::RmsNormArgs{
          .x = qr, .gamma = weights.q_norm.data(), .eps = pass.norm_eps(), .y = qr},
      pass.stream));
  TRY(pass.ops.norm_head.launch(
      kernels::RmsNormArgs{
          .x = kv, .gamma = weights.kv_norm.data(), .eps = pass.norm_eps(), .y = kv},
      pass.stream));
  pass.round(qr_kv);
  TRY(rotate(pass, kv.reshaped({tokens, 1, d}), batch, weights.compress_ratio, false));
  if (pass.numerics.is_simulated) simulate_kv(kv, pass.config.qk_nope_head_dim(), pass.stream);
  return {};
}

// q: [m, H * d], every head normalised without weight, then rotated.
Result<void> project_queries(Pass& pass,
                             const AttentionWeights& weights,
                             const Batch& batch,
                             const TensorView& qr,
                             const TensorView& q) {
  const int64_t tokens = batch.num_tokens();
  const int64_t heads = pass.config.num_attention_heads;
  const int64_t d = pass.config.head_dim;
  TRY(weights.wq_b.forward(qr, q, pass.stream));
  pass.round(q);
  const TensorView rows = q.reshaped({tokens * heads, d});
  TRY(pass.ops.norm_head.launch(kernels::RmsNormArgs{.x = rows, .eps = pass.norm_eps(), .y = rows},
                                pass.stream));
  pass.round(q);
  return rotate(pass, q.reshaped({tokens, heads, d}), batch, weights.compress_ratio, false);
}

void store_window(const Pass& pass,
                  const LayerState& layer,
                  const Batch& batch,
                  const TensorView& kv,
                  RowRange range) {
  const auto width = static_cast<size_t>(pass.config.head_dim);
  for_each_row(range.size(), pass.stream, [&](int64_t i) {
    const int32_t row = range.begin + static_cast<int32_t>(i);
    const Ring ring = pass.state.ring(batch.sequence_of(row).slot, layer.window);
    pass.state.key_vectors().store(std::span(kv.row<float>(row), width),
                                   ring.row(batch.positions[static_cast<size_t>(row)]));
  });
}

// The compressed entries that a row sees, as rows of the layer's pool.
std::span<const int32_t> visible_entries(const Pass& pass,
                                         int32_t ratio,
                                         const Batch& batch,
                                         int32_t row) {
  if (ratio == 0) return {};
  const auto r = static_cast<size_t>(row);
  const int32_t selected = ratio == 4 ? pass.workspace.num_selected[r] : kAllEntries;
  if (selected != kAllEntries) {
    return {pass.workspace.selected.row<int32_t>(row), static_cast<size_t>(selected)};
  }
  const int32_t candidates = (batch.positions[r] + 1) / ratio;
  return batch.entries(ratio).first(static_cast<size_t>(batch.sequence_of_row[r]), candidates);
}

// Window rows of consecutive positions follow each other in window_rows, which repeats the ring
// once.
kernels::KeySet visible_keys(const Pass& pass,
                             const LayerState& layer,
                             const Batch& batch,
                             int32_t row) {
  const SequenceSpan& sequence = batch.sequence_of(row);
  const int32_t position = batch.positions[static_cast<size_t>(row)];
  const int32_t first = std::max(sequence.window_begin, position - pass.config.sliding_window + 1);
  const Ring ring = pass.state.ring(sequence.slot, layer.window);
  return {.window = ring.data,
          .window_rows = std::span<const int32_t>(pass.workspace.window_rows)
                             .subspan(static_cast<size_t>(ring.row_index(first)),
                                      static_cast<size_t>(position - first) + 1),
          .entries = layer.entries.storage.data(),
          .entry_rows = visible_entries(pass, layer.compress_ratio, batch, row)};
}

// Range by range: store the keys, then attend. A range is short enough that its keys leave the
// window of its first query in the ring.
Result<void> attend(Pass& pass,
                    const AttentionWeights& weights,
                    const LayerState& layer,
                    const Batch& batch,
                    const TensorView& kv,
                    const TensorView& q,
                    const TensorView& out) {
  const int64_t heads = pass.config.num_attention_heads;
  const int64_t d = pass.config.head_dim;
  for (const RowRange range : batch.attention_ranges) {
    store_window(pass, layer, batch, kv, range);
    for (int32_t row = range.begin; row < range.end; ++row) {
      pass.workspace.key_sets[static_cast<size_t>(row - range.begin)] =
          visible_keys(pass, layer, batch, row);
    }
    const Shape shape{range.size(), heads, d};
    TRY(pass.ops.attention.launch(
        kernels::SparseAttentionArgs{
            .q = q.rows(range.begin, range.size()).reshaped(shape),
            .keys = std::span<const kernels::KeySet>(pass.workspace.key_sets)
                        .first(static_cast<size_t>(range.size())),
            .kv_dtype = pass.state.key_vectors().dtype,
            .num_rotary = pass.config.qk_rope_head_dim,
            .sink = weights.sink.data(),
            .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d))),
            .out = out.rows(range.begin, range.size()).reshaped(shape)},
        pass.stream));
  }
  pass.round(out);
  return {};
}

// De-rotates the heads and projects them group by group, then together (spec 3.4 Output).
Result<void> project_output(Pass& pass,
                            const AttentionWeights& weights,
                            int32_t layer,
                            const Batch& batch,
                            const TensorView& attended,
                            const TensorView& y) {
  const Config& config = pass.config;
  const int64_t tokens = batch.num_tokens();
  const int64_t heads = config.num_attention_heads;
  TRY(rotate(pass,
             attended.reshaped({tokens, heads, config.head_dim}),
             batch,
             weights.compress_ratio,
             true));
  const TensorView z = pass.workspace.z.rows(0, tokens);
  const int64_t groups = config.o_groups;
  TRY(weights.wo_a.forward(attended.reshaped({tokens * groups, heads / groups * config.head_dim}),
                           batch.output_groups(),
                           z.reshaped({tokens * groups, config.o_lora_rank}),
                           pass.stream));
  pass.round(z);
  pass.quantize_input(weights.wo_b, z, {layer, RoundedInput::kOutput, batch.positions});
  TRY(weights.wo_b.forward(z, y, pass.stream));
  pass.round(y);
  return {};
}

}  // namespace

Result<void> run_attention(Pass& pass,
                           const AttentionWeights& weights,
                           int32_t layer_index,
                           const Batch& batch,
                           const TensorView& x,
                           const TensorView& y) {
  const LayerState& layer = pass.state.layer(layer_index);
  const int64_t tokens = batch.num_tokens();
  Workspace& ws = pass.workspace;
  const TensorView qr_kv = ws.qr_kv.rows(0, tokens);
  const TensorView qr = qr_kv.columns(0, pass.config.q_lora_rank);
  const TensorView kv = qr_kv.columns(pass.config.q_lora_rank, pass.config.head_dim);
  const TensorView q = ws.q.rows(0, tokens);
  const TensorView attended = ws.attended.rows(0, tokens);

  const RoundingSite x_site{layer_index, RoundedInput::kAttention, batch.positions};
  const RoundingSite qr_site{layer_index, RoundedInput::kQueries, batch.positions};
  TRY(project_latents(
      pass, weights, batch, pass.quantized_copy(weights.wqa_wkv, x, x_site), qr_kv));
  pass.quantize_input(weights.wq_b, qr, qr_site);
  if (layer.compress_ratio != 0) {
    const TensorView projections = TensorView::contiguous(
        ws.projections.data, DType::kF32, {tokens, weights.compressor_projections.n()});
    TRY(weights.compressor_projections.forward(x, projections, pass.stream));
    TRY(run_compressors(pass, weights, layer, batch, projections));
    if (layer.compress_ratio == 4)
      TRY(select_entries(pass, weights, layer_index, batch, qr, projections));
  }
  TRY(project_queries(pass, weights, batch, qr, q));
  TRY(attend(pass, weights, layer, batch, kv, q, attended));
  return project_output(pass, weights, layer_index, batch, attended, y);
}

}  // namespace nibble::models::deepseek_v4
