// The multi-token prediction layer (spec 5.1): from the stream state at position i and the token at
// i + 1 to streams whose head gives logits of token i + 2.
#include "models/deepseek_v4/gpu/pass.h"

namespace nibble::models::deepseek_v4::gpu {
namespace {

int64_t stream_bytes(const Pass& pass) {
  return int64_t{pass.config.hc_mult} * pass.config.hidden_size * int64_t{sizeof(float)};
}

Result<void> copy_streams(const Pass& pass,
                          const void* in,
                          const int32_t* from,
                          int32_t count,
                          void* out,
                          const int32_t* to,
                          bool is_dependent = true) {
  return pass.ops.copy_rows.launch(
      kernels::DeviceCopyRowsArgs{.in = static_cast<const std::byte*>(in),
                                  .out = static_cast<std::byte*>(out),
                                  .from = from,
                                  .to = to,
                                  .count = count,
                                  .row_bytes = stream_bytes(pass),
                                  .is_dependent = is_dependent},
      pass.stream());
}

Result<void> norm(const Pass& pass,
                  const float* x,
                  int32_t m,
                  const Parameter& gamma,
                  const kernels::ActivationForms& y) {
  return pass.ops.rms_norm.launch(kernels::DeviceRmsNormArgs{.x = x,
                                                             .m = m,
                                                             .k = pass.config.hidden_size,
                                                             .gamma = gamma.data(),
                                                             .eps = pass.norm_eps(),
                                                             .y = y,
                                                             .is_dependent = true},
                                  pass.stream());
}

// streams = e_proj(norm(embed(token))) + h_proj(norm(stream)), stream by stream.
Result<void> join(const Pass& pass, const Rows& rows) {
  const MtpWeights& weights = *pass.weights.mtp;
  const Workspace& ws = pass.ws;
  const int32_t m = rows.m();
  const int32_t stream_rows = m * pass.config.hc_mult;
  layers::FormSet h_forms, e_forms;
  h_forms.add(weights.h_proj.form(stream_rows));
  e_forms.add(weights.e_proj.form(m));
  TRY(norm(pass, rows.streams, stream_rows, weights.hnorm, h_forms.select(ws.mtp_normed)));
  const int32_t layer = pass.config.num_hidden_layers;
  const int64_t width = pass.config.hidden_size;
  TRY(record_roundings(pass,
                       layer,
                       RoundedInput::kMtpStreams,
                       rows,
                       {.x = ws.mtp_normed,
                        .form = weights.h_proj.form(stream_rows),
                        .width = width,
                        .per_token = pass.config.hc_mult}));
  TRY_ASSIGN(const kernels::DeviceSums projected,
             weights.h_proj.launch(ws.mtp_normed, stream_rows, ws.mtp_h_sums, pass.stream()));
  TRY(pass.ops.embed.launch(kernels::DeviceEmbedArgs{.table = pass.weights.embed.storage.data(),
                                                     .table_dtype = pass.weights.embed.dtype,
                                                     .hidden = pass.config.hidden_size,
                                                     .tokens = rows.lists.tokens,
                                                     .out = ws.mtp_embedded,
                                                     .is_dependent = true},
                            pass.stream()));
  TRY(norm(pass, ws.mtp_embedded, m, weights.enorm, e_forms.select(ws.x)));
  TRY(record_roundings(pass,
                       layer,
                       RoundedInput::kMtpEmbedding,
                       rows,
                       {.x = ws.x, .form = weights.e_proj.form(m), .width = width}));
  TRY_ASSIGN(const kernels::DeviceSums embedded,
             weights.e_proj.launch(ws.x, m, ws.mtp_e_sums, pass.stream()));
  return pass.ops.join_mtp.launch(kernels::DeviceJoinMtpArgs{.embedded = embedded,
                                                             .projected = projected,
                                                             .m = m,
                                                             .hidden = pass.config.hidden_size,
                                                             .hc_mult = pass.config.hc_mult,
                                                             .streams = rows.streams,
                                                             .is_dependent = true},
                                  pass.stream());
}

}  // namespace

Result<void> run_mtp(const Pass& pass, const StepLists& lists, const Rows& main, const Rows& mtp) {
  const MtpWeights& weights = *pass.weights.mtp;
  TRY(plan_rows(pass, mtp));
  // Nothing may overlap the plan, as in the main model.
  TRY(copy_streams(pass,
                   main.streams,
                   lists.mtp_from_rows,
                   mtp.m(),
                   mtp.streams,
                   nullptr,
                   /*is_dependent=*/false));
  TRY(copy_streams(pass,
                   pass.state.streams().storage.data(),
                   lists.mtp_from_ring,
                   mtp.m(),
                   mtp.streams,
                   nullptr));
  TRY(join(pass, mtp));
  TRY(begin_streams(pass, mtp, weights.block));
  return run_block(
      pass, weights.block, pass.config.num_hidden_layers, mtp, head_dots(pass, weights.head));
}

Result<void> store_streams(const Pass& pass, const StepLists& lists, const Rows& main) {
  return copy_streams(pass,
                      main.streams,
                      nullptr,
                      main.m(),
                      pass.state.streams().storage.data(),
                      lists.stream_rows);
}

}  // namespace nibble::models::deepseek_v4::gpu
