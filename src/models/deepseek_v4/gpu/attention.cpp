// Attention of one layer (spec 3.4 to 3.6): latents and keys, compressors, the indexer's selection,
// the softmax, and the grouped output projection.
#include <algorithm>
#include <array>
#include <cmath>

#include "models/deepseek_v4/gpu/pass.h"

namespace nibble::models::deepseek_v4::gpu {
namespace {

using kernels::ActivationForm;
using kernels::DeviceSums;
using layers::FormSet;

kernels::DeviceCompression compression_of(const Pass& pass,
                                          const AttentionWeights& weights,
                                          const LayerState& layer,
                                          const Rows& rows,
                                          const DeviceSums& projections) {
  if (weights.compress_ratio == 0) return {};
  const int32_t width = pass.config.head_dim;
  const int32_t index_width = pass.config.index_head_dim;
  const bool has_index = weights.compress_ratio == 4;
  const int32_t channels = has_index ? 2 * width : width;
  kernels::DeviceCompression compression{
      .projections = projections,
      .row_width = static_cast<int32_t>(weights.compressor_projections.n()),
      .sequences = rows.lists.sequences,
      .ratio = weights.compress_ratio,
      .page_tokens = kPageSize,
      .num_parts = has_index ? 2 : 1,
      .ring = reinterpret_cast<float*>(layer.compressor.storage.data()),
      .ring_capacity = layer.compressor.capacity,
      .ring_width =
          static_cast<int32_t>(compressor_row_width(pass.config, weights.compress_ratio))};
  compression.parts[0] = {.value_column = 0,
                          .gate_column = channels,
                          .width = width,
                          .ape = weights.compressor.ape.data(),
                          .gamma = weights.compressor.norm.data(),
                          .entries = layer.entries.storage.data(),
                          .entry_dtype = layer.entries.form.dtype};
  if (has_index) {
    compression.parts[1] = {.value_column = 2 * channels,
                            .gate_column = 2 * channels + 2 * index_width,
                            .width = index_width,
                            .ape = weights.index_compressor.ape.data(),
                            .gamma = weights.index_compressor.norm.data(),
                            .entries = layer.index_entries.storage.data(),
                            .entry_dtype = layer.index_entries.form.dtype,
                            .is_index = true};
  }
  return compression;
}

// Latents, keys and entries. Where a sequence is long enough to overwrite the ring rows that its
// entries read, ring rows come after them.
Result<void> store_latents(const Pass& pass,
                           const AttentionWeights& weights,
                           const LayerState& layer,
                           const Rows& rows,
                           const DeviceSums& qr_kv,
                           const DeviceSums& projections) {
  FormSet forms;
  forms.add(weights.wq_b.form(rows.m()));
  if (weights.compress_ratio == 4) forms.add(weights.index_wq_b.form(rows.m()));
  kernels::DeviceLatentsArgs args{
      .qr_kv = qr_kv,
      .tokens = rows.lists.tokens,
      .q_rank = pass.config.q_lora_rank,
      .head_dim = pass.config.head_dim,
      .q_gamma = weights.q_norm.data(),
      .kv_gamma = weights.kv_norm.data(),
      .eps = pass.norm_eps(),
      .rotation = pass.frequencies.of(weights.compress_ratio),
      .q = forms.select(pass.ws.q_latent),
      .key_rows = pass.ws.key_rows,
      .window_pool = layer.window.storage.data(),
      .key_dtype = pass.numerics.kv_dtype,
      .compression = compression_of(pass, weights, layer, rows, projections),
      .is_dependent = true};
  args.compression.stores_rows = rows.is_direct;
  TRY(pass.ops.latents.launch(args, pass.stream()));
  if (rows.is_direct || args.compression.num_parts == 0) return {};
  args.qr_kv = {};
  args.compression.forms_entries = false;
  args.compression.stores_rows = true;
  return pass.ops.latents.launch(args, pass.stream());
}

// What becomes queries.
struct QuerySums {
  DeviceSums q;
  DeviceSums index;        // of layers with an indexer
  DeviceSums projections;  // where the weights of its heads lie
};

// Whether attention, and the indexer, take queries as their product left them.
bool attention_takes_sums(const Pass& pass, const Rows& rows) {
  return rows.m() <= pass.ops.attention.kernel->max_sum_rows;
}
bool indexer_takes_sums(const Pass& pass, const Rows& rows) {
  // Scores then make attention's, too, which for 5 to 8 tokens takes longer than a launch of both.
  constexpr int32_t kFewQueries = 8;
  const int64_t most =
      std::min<int64_t>(pass.ops.indexer_score.kernel->max_sum_rows, pass.ws.score_rows);
  return rows.m() <= most && (attention_takes_sums(pass, rows) || rows.m() > kFewQueries);
}
// The weights of the indexer's heads, in the last columns of the compressors' product.
kernels::DeviceHeadWeights index_weights(const Config& config,
                                         const AttentionWeights& weights,
                                         const DeviceSums& projections) {
  const double width = double{1} * config.index_head_dim * config.index_n_heads;
  return {.projections = projections,
          .row_width = static_cast<int32_t>(weights.compressor_projections.n()),
          .column = static_cast<int32_t>(compressor_row_width(config, 4)),
          .scale = static_cast<float>(1.0 / std::sqrt(width))};
}

// Queries for those who do not.
Result<void> make_queries(const Pass& pass,
                          const AttentionWeights& weights,
                          const Rows& rows,
                          const QuerySums& sums) {
  const Config& config = pass.config;
  const bool from_scores = weights.compress_ratio == 4 && indexer_takes_sums(pass, rows);
  const bool has_q = !attention_takes_sums(pass, rows) && !from_scores;
  const bool has_index = weights.compress_ratio == 4 && !from_scores;
  if (!has_q && !has_index) return {};
  kernels::DeviceQueriesArgs args{.tokens = rows.lists.tokens,
                                  .head_dim = config.head_dim,
                                  .eps = pass.norm_eps(),
                                  .rotation = pass.frequencies.of(weights.compress_ratio),
                                  .is_dependent = true};
  if (has_q) {
    args.q_sums = sums.q;
    args.heads = config.num_attention_heads;
    args.q = pass.ws.q;
  }
  if (has_index) {
    args.index_sums = sums.index;
    args.index_heads = config.index_n_heads;
    args.index_width = config.index_head_dim;
    args.weights = index_weights(config, weights, sums.projections);
    args.index_q = pass.ws.index_q;
    args.head_weights = pass.ws.head_weights;
  }
  return pass.ops.queries.launch(args, pass.stream());
}

// Whether the launch that scores `count` tokens also selects. Decisions are recorded and replayed
// for every token, those that keep all of their entries too.
bool scores_select(const Pass& pass, int32_t count) {
  const kernels::SelectLimits& selects = pass.ops.indexer_score.kernel->selects;
  return !pass.has_decisions() && count <= selects.rows && pass.ws.score_columns <= selects.columns;
}

// Scores of the entries of `count` tokens from `begin` on, into the score buffer; where the kernel
// can, also their selection.
Result<void> score_entries(const Pass& pass,
                           const AttentionWeights& weights,
                           const LayerState& layer,
                           const Rows& rows,
                           const QuerySums& sums,
                           int32_t begin,
                           int32_t count) {
  const Config& config = pass.config;
  const Workspace& ws = pass.ws;
  const int32_t max_pages = rows.lists.sequences.max_pages;
  kernels::DeviceIndexerScoreArgs args{
      .keys = {.pool = layer.index_entries.storage.data(),
               .pages = ws.token_pages + int64_t{begin} * max_pages,
               .counts = ws.counts_4 + begin,
               .max_pages = max_pages,
               .entries_per_page = layer.entries_per_page()},
      .scores = ws.scores,
      .columns = ws.score_columns,
      .m = count,
      .heads = config.index_n_heads,
      .width = config.index_head_dim,
      .key_dtype = layer.index_entries.form.dtype,
      .unscored_count = config.index_topk,
      .num_units = pass.num_units,
      .is_dependent = true};
  if (indexer_takes_sums(pass, rows)) {
    args.q_sums = sums.index;
    args.weights = index_weights(config, weights, sums.projections);
    args.positions = rows.lists.tokens.positions;
    args.rotation = pass.frequencies.of(weights.compress_ratio);
    if (!attention_takes_sums(pass, rows)) {
      args.beside = {.sums = sums.q,
                     .heads = config.num_attention_heads,
                     .head_dim = config.head_dim,
                     .eps = pass.norm_eps(),
                     .q = ws.q};
    }
  } else {
    const int64_t q_width = int64_t{config.index_n_heads} * config.index_head_dim;
    args.q = static_cast<const std::byte*>(ws.index_q) + begin * q_width * 2;
    args.head_weights = ws.head_weights + int64_t{begin} * config.index_n_heads;
  }
  if (scores_select(pass, count)) {
    args.selection = {.k = config.index_topk,
                      .indices = ws.selected + int64_t{begin} * config.index_topk,
                      .counters = ws.select_counters};
  }
  return pass.ops.indexer_score.launch(args, pass.stream());
}

// Pool rows of the selected entries, as many tokens per launch as the score buffer holds.
Result<void> select_entries(const Pass& pass,
                            const AttentionWeights& weights,
                            const LayerState& layer,
                            const Rows& rows,
                            const QuerySums& sums) {
  const Config& config = pass.config;
  const Workspace& ws = pass.ws;
  const int32_t max_pages = rows.lists.sequences.max_pages;
  for (int32_t begin = 0; begin < rows.m(); begin += ws.score_rows) {
    const int32_t count = std::min(ws.score_rows, rows.m() - begin);
    TRY(score_entries(pass, weights, layer, rows, sums, begin, count));
    if (scores_select(pass, count)) continue;
    TRY(pass.ops.top_k.launch(
        kernels::DeviceTopKArgs{.scores = ws.scores,
                                .counts = ws.counts_4 + begin,
                                .columns = ws.score_columns,
                                .m = count,
                                .k = config.index_topk,
                                .pages = ws.token_pages + int64_t{begin} * max_pages,
                                .max_pages = max_pages,
                                .entries_per_page = layer.entries_per_page(),
                                .indices = ws.selected + int64_t{begin} * config.index_topk,
                                .workspace = ws.top_k,
                                .skips_short_rows = !pass.has_decisions(),
                                .is_dependent = true},
        pass.stream()));
  }
  return {};
}

// The compressed entries that the rows see.
kernels::DeviceKeyRows visible_entries(const Pass& pass,
                                       const LayerState& layer,
                                       const int32_t* selected_counts) {
  const Workspace& ws = pass.ws;
  if (layer.compress_ratio == 4) {
    return {.pool = layer.entries.storage.data(),
            .rows = ws.selected,
            .counts = selected_counts,
            .max_rows = pass.config.index_topk,
            .ready_counts = pass.has_decisions() ? nullptr : ws.ready_4};
  }
  if (layer.compress_ratio == 128) {
    return {.pool = layer.entries.storage.data(),
            .rows = ws.rows_128,
            .counts = ws.counts_128,
            .max_rows = ws.max_rows_128,
            .ready_counts = ws.ready_128};
  }
  return {.pool = layer.window.storage.data(), .rows = ws.window_rows, .counts = ws.no_counts};
}

FormSet heads_forms(const AttentionWeights& weights, int32_t m) {
  FormSet forms;
  forms.add(weights.wo_a.form(m));
  return forms;
}

// The heads' outputs, rotated back, in the forms that the output projection reads.
Result<void> attend(const Pass& pass,
                    const AttentionWeights& weights,
                    const LayerState& layer,
                    const Rows& rows,
                    const DeviceSums& q_sums,
                    const kernels::DeviceKeyRows& entries) {
  const Config& config = pass.config;
  const kernels::DeviceRotation rotation = pass.frequencies.of(weights.compress_ratio);
  const FormSet forms = heads_forms(weights, rows.m());
  const kernels::ActivationForms heads = forms.select(pass.ws.heads);
  const bool gives_forms =
      pass.ops.attention.kernel->gives_forms && !forms.has(ActivationForm::kBf16Blocks);
  kernels::DeviceSparseAttentionArgs args{
      .eps = pass.norm_eps(),
      .window = {.pool = layer.window.storage.data(),
                 .rows = pass.ws.window_rows,
                 .counts = pass.ws.window_counts,
                 .max_rows = config.sliding_window,
                 .ready_counts = pass.ws.window_ready},
      .entries = entries,
      .kv_dtype = pass.numerics.kv_dtype,
      .sink = weights.sink.data(),
      .scale = static_cast<float>(1.0 / std::sqrt(double{1} * config.head_dim)),
      .positions = rows.lists.tokens.positions,
      .m = rows.m(),
      .heads = config.num_attention_heads,
      .head_dim = config.head_dim,
      .num_rotary = config.qk_rope_head_dim,
      .num_units = pass.num_units,
      .is_dependent = true};
  if (attention_takes_sums(pass, rows)) {
    args.q_sums = q_sums;
  } else {
    args.q = pass.ws.q;
  }
  if (gives_forms) {
    args.rotation = rotation;
    args.out = heads;
    return pass.ops.attention.launch(args, pass.stream());
  }
  args.out = {.bf16 = pass.ws.attended};
  TRY(pass.ops.attention.launch(args, pass.stream()));
  return pass.ops.attended.launch(kernels::DeviceAttendedArgs{.x = pass.ws.attended,
                                                              .tokens = rows.lists.tokens,
                                                              .heads = config.num_attention_heads,
                                                              .head_dim = config.head_dim,
                                                              .rotation = rotation,
                                                              .y = heads,
                                                              .is_dependent = true},
                                  pass.stream());
}

// New keys of long sequences, from scratch to the ring.
Result<void> settle_keys(const Pass& pass, const LayerState& layer, const Rows& rows) {
  if (rows.is_direct) return {};
  const RingPool& window = layer.window;
  const int64_t scratch = int64_t{pass.state.options().num_slots} * window.capacity;
  return pass.ops.copy_rows.launch(kernels::DeviceCopyRowsArgs{.in = window.row(scratch),
                                                               .out = window.storage.data(),
                                                               .to = rows.lists.ring_rows,
                                                               .count = rows.m(),
                                                               .row_bytes = window.row_bytes,
                                                               .is_dependent = true},
                                   pass.stream());
}

// Projects the heads group by group, then together (spec 3.4 Output).
Result<DeviceSums> project_output(const Pass& pass,
                                  const AttentionWeights& weights,
                                  int32_t layer,
                                  const Rows& rows) {
  const Workspace& ws = pass.ws;
  const int32_t m = rows.m();
  const RoundedRows rounded{.x = ws.z, .form = weights.wo_b.form(m), .width = weights.wo_a.n()};
  FormSet z_forms;
  z_forms.add(weights.wo_b.form(m));
  if (weights.wo_a.gives_blocks(m) && z_forms.has(ActivationForm::kFp8Blocks)) {
    TRY(weights.wo_a.launch_blocks(ws.heads, m, ws.z.fp8_blocks, pass.stream()));
  } else {
    TRY_ASSIGN(const DeviceSums z, weights.wo_a.launch(ws.heads, m, ws.z_sums, pass.stream()));
    TRY(pass.ops.quantize.launch(kernels::DeviceQuantizeArgs{.x_sums = z,
                                                             .m = m,
                                                             .k = weights.wo_a.n(),
                                                             .y = z_forms.select(ws.z),
                                                             .is_dependent = true},
                                 pass.stream()));
  }
  TRY(record_roundings(pass, layer, RoundedInput::kOutput, rows, rounded));
  return weights.wo_b.launch(ws.z, m, ws.y, pass.stream());
}

// Latents, and what the compressors take where there are any.
Result<std::array<DeviceSums, 2>> project_input(const Pass& pass,
                                                const AttentionWeights& weights,
                                                int32_t m) {
  const Workspace& ws = pass.ws;
  if (weights.compress_ratio == 0) {
    TRY_ASSIGN(const DeviceSums qr_kv, weights.wqa_wkv.launch(ws.x, m, ws.qr_kv, pass.stream()));
    return std::array{qr_kv, DeviceSums{}};
  }
  return weights.wqa_wkv.launch_pair(weights.compressor_projections,
                                     pass.ops.pair(),
                                     ws.x,
                                     m,
                                     {ws.qr_kv, ws.projections},
                                     pass.stream());
}

}  // namespace

layers::FormSet input_forms(const AttentionWeights& weights, int32_t m) {
  FormSet forms;
  forms.add(weights.wqa_wkv.form(m));
  if (weights.compress_ratio != 0) forms.add(weights.compressor_projections.form(m));
  return forms;
}

Result<DeviceSums> run_attention(const Pass& pass,
                                 const AttentionWeights& weights,
                                 int32_t layer_index,
                                 const Rows& rows) {
  const LayerState& layer = pass.state.layer(layer_index);
  const Workspace& ws = pass.ws;
  const int32_t m = rows.m();
  TRY(record_roundings(
      pass,
      layer_index,
      RoundedInput::kAttention,
      rows,
      {.x = ws.x, .form = weights.wqa_wkv.form(m), .width = pass.config.hidden_size}));
  TRY_ASSIGN(const auto inputs, project_input(pass, weights, m));
  const auto& [qr_kv, projections] = inputs;
  TRY(store_latents(pass, weights, layer, rows, qr_kv, projections));
  TRY(record_roundings(
      pass,
      layer_index,
      RoundedInput::kQueries,
      rows,
      {.x = ws.q_latent, .form = weights.wq_b.form(m), .width = pass.config.q_lora_rank}));
  QuerySums sums{.q = {}, .index = {}, .projections = projections};
  if (layer.compress_ratio == 4) {
    TRY_ASSIGN(const auto queries,
               weights.wq_b.launch_pair(weights.index_wq_b,
                                        pass.ops.pair(),
                                        ws.q_latent,
                                        m,
                                        {ws.q_sums, ws.index_sums},
                                        pass.stream()));
    sums.q = queries[0];
    sums.index = queries[1];
  } else {
    TRY_ASSIGN(sums.q, weights.wq_b.launch(ws.q_latent, m, ws.q_sums, pass.stream()));
  }
  TRY(make_queries(pass, weights, rows, sums));
  const int32_t* selected_counts = ws.selected_counts;
  if (layer.compress_ratio == 4) {
    TRY(select_entries(pass, weights, layer, rows, sums));
    if (pass.has_decisions()) {
      TRY_ASSIGN(selected_counts, settle_selection(pass, layer_index, rows));
    }
  }
  TRY(attend(pass, weights, layer, rows, sums.q, visible_entries(pass, layer, selected_counts)));
  TRY(settle_keys(pass, layer, rows));
  return project_output(pass, weights, layer_index, rows);
}

}  // namespace nibble::models::deepseek_v4::gpu
