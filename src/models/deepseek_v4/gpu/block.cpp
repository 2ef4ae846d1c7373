// The residual streams around attention and experts, the head, and the lists of a step.
#include <algorithm>
#include <vector>

#include "models/deepseek_v4/gpu/pass.h"
#include "models/deepseek_v4/pass.h"

namespace nibble::models::deepseek_v4::gpu {
namespace {

using kernels::DeviceSums;

// What is added to the streams: sums, and a row per choice of an expert.
struct HalfLayerOutput {
  DeviceSums y;
  const float* pairs = nullptr;
};

// The read of the streams `streams`, whose dots are `partials`.
kernels::DeviceStreamMixArgs mix_args(const Pass& pass,
                                      const StreamRead& read,
                                      const float* streams,
                                      const float* partials) {
  const bool is_head = read.num_mix == pass.config.hc_mult;
  return {.streams = streams,
          .partials = partials,
          .parts = mixer_parts(pass.config),
          .num_mix = read.num_mix,
          .base = read.hc->base.data(),
          .scale = read.hc->scale.data(),
          .hidden = pass.config.hidden_size,
          .hc_mult = pass.config.hc_mult,
          .sinkhorn_iters = pass.config.hc_sinkhorn_iters,
          .hc_eps = static_cast<float>(pass.config.hc_eps),
          .norm_eps = pass.norm_eps(),
          .gamma = read.norm->data(),
          .rows = read.rows,
          .m = read.count,
          .x = read.x,
          .post = is_head ? nullptr : pass.ws.post,
          .comb = is_head ? nullptr : pass.ws.comb,
          .is_dependent = true};
}

// Adds `output`, if any, to the streams and reads them for `next`.
Result<void> turn_streams(const Pass& pass,
                          const HalfLayerOutput& output,
                          const Rows& rows,
                          const StreamRead& next) {
  const bool has_output = output.y.data != nullptr;
  const kernels::DeviceStreamUpdateArgs update{
      .y = output.y,
      .pairs = output.pairs,
      .choices = output.pairs == nullptr ? 0 : pass.config.num_experts_per_tok,
      .post = has_output ? pass.ws.post : nullptr,
      .comb = has_output ? pass.ws.comb : nullptr,
      .streams = rows.streams,
      .hidden = pass.config.hidden_size,
      .hc_mult = pass.config.hc_mult,
      .m = rows.m(),
      .fn = next.hc->fn.data(),
      .num_mix = next.num_mix,
      .parts = mixer_parts(pass.config),
      .partials = pass.ws.partials,
      .is_dependent = true};
  if (next.norm == nullptr) return pass.ops.stream_update.launch(update, pass.stream());
  const auto mix = mix_args(pass, next, rows.streams, pass.ws.partials);
  if (const kernels::Route* const turn = pass.ops.turn(rows.m())) {
    return turn->launch(
        kernels::DeviceStreamTurnArgs{.update = update, .mix = mix, .is_dependent = true},
        pass.stream());
  }
  TRY(pass.ops.stream_update.launch(update, pass.stream()));
  return pass.ops.stream_mix.launch(mix, pass.stream());
}

// The read of a half layer.
StreamRead half_layer_read(const Pass& pass,
                           const HyperConnectionWeights& hc,
                           const Parameter& norm,
                           const layers::FormSet& forms,
                           int32_t m) {
  return {.hc = &hc,
          .num_mix = pass.half_layer_mix(),
          .norm = &norm,
          .count = m,
          .x = forms.select(pass.ws.x)};
}

}  // namespace

Result<Frequencies> Frequencies::make(const Config& config, device::Device& device) {
  const RopeFrequencies host = make_rope_frequencies(config);
  const auto num_bytes = [](const std::vector<float>& values) {
    return static_cast<int64_t>(values.size() * sizeof(float));
  };
  Frequencies frequencies;
  frequencies.num_rotary = config.qk_rope_head_dim;
  TRY_ASSIGN(frequencies.window_only,
             upload(device, host.window_only.data(), num_bytes(host.window_only)));
  TRY_ASSIGN(frequencies.compressed,
             upload(device, host.compressed.data(), num_bytes(host.compressed)));
  return frequencies;
}

kernels::DeviceRotation Frequencies::of(int32_t compress_ratio) const {
  const device::Buffer& freqs = compress_ratio == 0 ? window_only : compressed;
  return {.freqs = reinterpret_cast<const float*>(freqs.data()), .num_rotary = num_rotary};
}

Result<void> plan_rows(const Pass& pass, const Rows& rows) {
  const bool has_pages = rows.lists.sequences.pages != nullptr;
  return pass.ops.plan.launch(
      kernels::DevicePlanArgs{.tokens = rows.lists.tokens,
                              .sequences = rows.lists.sequences,
                              .num_slots = pass.state.options().num_slots,
                              .window = pass.config.sliding_window,
                              .ring_capacity = pass.state.window_capacity(),
                              .direct_tokens = kDirectTokens,
                              .page_tokens = kPageSize,
                              .top_k = pass.config.index_topk,
                              .key_rows = pass.ws.key_rows,
                              .window_rows = pass.ws.window_rows,
                              .window_counts = pass.ws.window_counts,
                              .window_ready = pass.ws.window_ready,
                              .token_pages = has_pages ? pass.ws.token_pages : nullptr,
                              .counts_4 = pass.ws.counts_4,
                              .selected_counts = pass.ws.selected_counts,
                              .selected = has_pages ? pass.ws.selected : nullptr,
                              .ready_4 = pass.ws.ready_4,
                              .counts_128 = pass.ws.counts_128,
                              .ready_128 = pass.ws.ready_128,
                              .rows_128 = has_pages ? pass.ws.rows_128 : nullptr,
                              .max_rows_128 = has_pages ? pass.ws.max_rows_128 : 0},
      pass.stream());
}

StreamRead attention_read(const Pass& pass, const BlockWeights& weights, int32_t m) {
  return half_layer_read(
      pass, weights.attention_hc, weights.attention_norm, input_forms(weights.attention, m), m);
}

StreamRead head_dots(const Pass& pass, const HeadWeights& weights) {
  return {.hc = &weights.hc, .num_mix = pass.config.hc_mult};
}

StreamRead head_read(const Pass& pass,
                     const HeadWeights& weights,
                     const int32_t* logits_rows,
                     int32_t count) {
  StreamRead read = head_dots(pass, weights);
  layers::FormSet forms;
  forms.add(pass.weights.lm_head.form(count));
  read.norm = &weights.norm;
  read.rows = logits_rows;
  read.count = count;
  read.x = forms.select(pass.ws.hidden);
  return read;
}

Result<void> begin_streams(const Pass& pass, const Rows& rows, const BlockWeights& first) {
  return turn_streams(pass, {}, rows, attention_read(pass, first, rows.m()));
}

Result<void> run_block(const Pass& pass,
                       const BlockWeights& weights,
                       int32_t layer,
                       const Rows& rows,
                       const StreamRead& next) {
  const int32_t m = rows.m();
  TRY_ASSIGN(const DeviceSums attended, run_attention(pass, weights.attention, layer, rows));
  TRY(turn_streams(
      pass,
      {.y = attended},
      rows,
      half_layer_read(pass, weights.ffn_hc, weights.ffn_norm, input_forms(weights.moe, m), m)));
  TRY_ASSIGN(const DeviceSums shared, run_experts(pass, weights.moe, layer, rows));
  return turn_streams(pass, {.y = shared, .pairs = pass.ws.pairs}, rows, next);
}

Result<const float*> run_head(const Pass& pass,
                              const HeadWeights& weights,
                              const float* streams,
                              const int32_t* logits_rows,
                              int32_t first,
                              int32_t count) {
  const Config& config = pass.config;
  const int64_t skipped = logits_rows == nullptr ? first : 0;
  const int64_t partials_width = int64_t{mixer_parts(config)} * (config.hc_mult + 1);
  const StreamRead read =
      head_read(pass, weights, logits_rows == nullptr ? nullptr : logits_rows + first, count);
  TRY(pass.ops.stream_mix.launch(mix_args(pass,
                                          read,
                                          streams + skipped * config.hc_mult * config.hidden_size,
                                          pass.ws.partials + skipped * partials_width),
                                 pass.stream()));
  return project_head(pass, count);
}

Result<const float*> project_head(const Pass& pass, int32_t count) {
  const layers::DeviceLinear& lm_head = pass.weights.lm_head;
  layers::FormSet forms;
  forms.add(lm_head.form(count));
  const kernels::ActivationForms x = forms.select(pass.ws.hidden);
  TRY_ASSIGN(const DeviceSums sums, lm_head.launch(x, count, pass.ws.logit_sums, pass.stream()));
  if (sums.splits == 1) return sums.data;
  TRY(pass.ops.quantize.launch(kernels::DeviceQuantizeArgs{.x_sums = sums,
                                                           .m = count,
                                                           .k = lm_head.n(),
                                                           .y = {.f32 = pass.ws.logits},
                                                           .is_dependent = true},
                               pass.stream()));
  return static_cast<const float*>(pass.ws.logits);
}

Result<void> run_layers(const Pass& pass, const Rows& rows, const StreamRead& head) {
  TRY(plan_rows(pass, rows));
  // The lists are read before the kernels ahead of a reader have ended: nothing may overlap the
  // plan.
  const DeviceTable& table = pass.weights.embed;
  TRY(pass.ops.embed.launch(kernels::DeviceEmbedArgs{.table = table.storage.data(),
                                                     .table_dtype = table.dtype,
                                                     .hidden = pass.config.hidden_size,
                                                     .tokens = rows.lists.tokens,
                                                     .copies = pass.config.hc_mult,
                                                     .out = rows.streams,
                                                     .is_dependent = false},
                            pass.stream()));
  const std::vector<BlockWeights>& layers = pass.weights.layers;
  TRY(begin_streams(pass, rows, layers.front()));
  for (size_t l = 0; l < layers.size(); ++l) {
    const bool is_last = l + 1 == layers.size();
    TRY(run_block(pass,
                  layers[l],
                  static_cast<int32_t>(l),
                  rows,
                  is_last ? head : attention_read(pass, layers[l + 1], rows.m())));
  }
  return {};
}

Result<void> run_decode_step(const Pass& pass, const StepLists& lists, int32_t bucket) {
  const Rows rows{.lists = lists.main, .streams = pass.ws.streams};
  TRY(run_layers(pass, rows, head_read(pass, pass.weights.head, lists.logits_rows, bucket)));
  TRY(project_head(pass, bucket));
  if (pass.weights.mtp) TRY(store_streams(pass, lists, rows));
  return {};
}

Result<void> take_chosen(const Pass& pass, const SampleLists& lists, int32_t rows) {
  return pass.ops.copy_rows.launch(
      kernels::DeviceCopyRowsArgs{.in = reinterpret_cast<const std::byte*>(pass.ws.sampled),
                                  .out = reinterpret_cast<std::byte*>(lists.ids),
                                  .from = lists.from_rows,
                                  .count = rows,
                                  .row_bytes = sizeof(int32_t)},
      pass.stream());
}

Result<void> choose_tokens(const Pass& pass,
                           const SampleLists& lists,
                           const float* logits,
                           int32_t rows) {
  return pass.ops.sample.launch(kernels::DeviceSampleArgs{.logits = {.data = logits},
                                                          .m = rows,
                                                          .vocab = pass.config.vocab_size,
                                                          .temperatures = lists.temperatures,
                                                          .top_k = lists.top_k,
                                                          .top_p = lists.top_p,
                                                          .min_p = lists.min_p,
                                                          .seeds = lists.seeds,
                                                          .draws = lists.draws,
                                                          .ids = pass.ws.sampled,
                                                          .outcomes = pass.ws.outcomes,
                                                          .workspace = pass.ws.sample},
                                pass.stream());
}

}  // namespace nibble::models::deepseek_v4::gpu
