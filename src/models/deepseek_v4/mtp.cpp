// The multi-token prediction layer (spec 5.1): from the stream state at position i and the token at
// i + 1 to logits of token i + 2.
#include <algorithm>
#include <cstring>

#include "models/deepseek_v4/pass.h"

namespace nibble::models::deepseek_v4 {
namespace {

size_t row_bytes(const TensorView& rows) {
  return static_cast<size_t>(rows.shape[1]) * sizeof(float);
}

// Stream states of the batch's positions: from this pass, or for a sequence's first row from the
// pass before.
void gather_streams(const Pass& pass,
                    const Batch& main,
                    const TensorView& streams,
                    const Batch& batch,
                    const TensorView& out) {
  size_t source_index = 0;
  for (const SequenceSpan& sequence : batch.sequences) {
    while (main.sequences[source_index].slot != sequence.slot) ++source_index;
    const SequenceSpan& source = main.sequences[source_index];
    const Ring ring = pass.state.ring(sequence.slot, pass.state.streams());
    for (int32_t i = 0; i < sequence.num_tokens; ++i) {
      const int32_t position = sequence.position_begin + i;
      const void* row = position < source.position_begin
                            ? static_cast<const void*>(ring.row(position))
                            : streams.row<const float>(source.row_of(position));
      std::memcpy(out.row<float>(sequence.row_begin + i), row, row_bytes(out));
    }
  }
}

// streams[t, m, :] = embedded[t, :] + projected[t, m, :]
void add_embedding(const TensorView& embedded,
                   const TensorView& projected,
                   const TensorView& streams) {
  const int64_t hidden = embedded.shape[1];
  const int64_t mult = streams.shape[1] / hidden;
  for (int64_t t = 0; t < streams.num_rows(); ++t) {
    const float* e = embedded.row<float>(t);
    for (int64_t m = 0; m < mult; ++m) {
      const float* h = projected.row<float>(t * mult + m);
      float* out = streams.row<float>(t) + m * hidden;
      for (int64_t i = 0; i < hidden; ++i) out[i] = e[i] + h[i];
    }
  }
}

// e_proj(norm(embed(token))) into `out`; `scratch` holds the normalised embedding.
Result<void> embed_next(Pass& pass,
                        const Batch& batch,
                        const TensorView& scratch,
                        const TensorView& out) {
  const MtpWeights& weights = *pass.weights.mtp;
  TRY(pass.ops.embed.launch(
      kernels::EmbedArgs{.table = pass.weights.embed.view, .ids = batch.token_ids, .out = scratch},
      pass.stream));
  TRY(pass.ops.norm_hidden.launch(
      kernels::RmsNormArgs{
          .x = scratch, .gamma = weights.enorm.data(), .eps = pass.norm_eps(), .y = scratch},
      pass.stream));
  pass.round(scratch);
  pass.quantize_input(
      weights.e_proj,
      scratch,
      {pass.config.num_hidden_layers, RoundedInput::kMtpEmbedding, batch.positions});
  TRY(weights.e_proj.forward(scratch, out, pass.stream));
  pass.round(out);
  return {};
}

// h_proj(norm(stream)) of every stream; `streams` is overwritten.
Result<void> project_streams(Pass& pass,
                             const Batch& batch,
                             const TensorView& streams,
                             const TensorView& projected) {
  const MtpWeights& weights = *pass.weights.mtp;
  const TensorView rows = streams.reshaped(projected.shape);
  TRY(pass.ops.norm_hidden.launch(
      kernels::RmsNormArgs{
          .x = rows, .gamma = weights.hnorm.data(), .eps = pass.norm_eps(), .y = rows},
      pass.stream));
  pass.round(rows);
  pass.quantize_input(weights.h_proj,
                      rows,
                      {pass.config.num_hidden_layers, RoundedInput::kMtpStreams, batch.positions});
  TRY(weights.h_proj.forward(rows, projected, pass.stream));
  pass.round(projected);
  return {};
}

void advance(Pass& pass, const Batch& batch) {
  for (const SequenceSpan& sequence : batch.sequences) {
    SlotStatus& status = pass.state.status(sequence.slot);
    status.mtp_begin = sequence.window_begin;
    status.mtp_end = sequence.position_end();
  }
}

}  // namespace

void store_streams(Pass& pass, const Batch& batch, const TensorView& streams) {
  for (const SequenceSpan& sequence : batch.sequences) {
    const Ring ring = pass.state.ring(sequence.slot, pass.state.streams());
    const int32_t end = sequence.position_end();
    for (int32_t p = std::max(sequence.position_begin, end - ring.capacity); p < end; ++p) {
      std::memcpy(ring.row(p), streams.row<float>(sequence.row_of(p)), row_bytes(streams));
    }
  }
}

Result<void> run_mtp(Pass& pass,
                     const Batch& main,
                     const TensorView& streams,
                     const Batch& batch,
                     const TensorView& logits) {
  Workspace& ws = pass.workspace;
  const int64_t rows = batch.num_tokens();
  const TensorView mtp_streams = ws.mtp_streams.rows(0, rows);
  const TensorView hidden = ws.mtp_hidden.rows(0, rows);
  const TensorView embedded = ws.y.rows(0, rows);
  const TensorView projected = ws.mtp_projected.rows(0, rows * pass.config.hc_mult);

  gather_streams(pass, main, streams, batch, mtp_streams);
  TRY(project_streams(pass, batch, mtp_streams, projected));
  TRY(embed_next(pass, batch, hidden, embedded));
  add_embedding(embedded, projected, mtp_streams);
  pass.round(mtp_streams);
  TRY(run_block(pass, pass.weights.mtp->block, pass.config.num_hidden_layers, batch, mtp_streams));
  TRY(run_head(pass, pass.weights.mtp->head, mtp_streams, hidden, logits));
  advance(pass, batch);
  return {};
}

}  // namespace nibble::models::deepseek_v4
