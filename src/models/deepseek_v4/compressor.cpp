#include "models/deepseek_v4/compressor.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "models/deepseek_v4/host_rows.h"

namespace nibble::models::deepseek_v4 {
namespace {

// One compressor of a layer: its columns in a projection row, its weights and where its entries go.
struct Compressor {
  const CompressorWeights* weights = nullptr;
  const EntryPool* pool = nullptr;
  const kernels::Route* compress = nullptr;
  const kernels::Route* norm = nullptr;
  const kernels::Route* rope = nullptr;
  int64_t width = 0;         // of an entry
  int64_t channels = 0;      // u and g have this many columns each
  int64_t value_column = 0;  // of u; g follows it
  bool is_index = false;

  int64_t gate_column() const { return value_column + channels; }
};

Compressor main_compressor(const Pass& pass,
                           const AttentionWeights& weights,
                           const LayerState& layer) {
  const int64_t width = pass.config.head_dim;
  return {.weights = &weights.compressor,
          .pool = &layer.entries,
          .compress = &pass.ops.compress_head,
          .norm = &pass.ops.norm_head,
          .rope = &pass.ops.rope_head,
          .width = width,
          .channels = layer.compress_ratio == 4 ? 2 * width : width};
}

Compressor index_compressor(const Pass& pass,
                            const AttentionWeights& weights,
                            const LayerState& layer) {
  const int64_t width = pass.config.index_head_dim;
  return {.weights = &weights.index_compressor,
          .pool = &layer.index_entries,
          .compress = &pass.ops.compress_index,
          .norm = &pass.ops.norm_index,
          .rope = &pass.ops.rope_index,
          .width = width,
          .channels = 2 * width,
          .value_column = int64_t{4} * pass.config.head_dim,
          .is_index = true};
}

// g += ape[p mod r] (spec 3.5), by absolute position.
void add_position_bias(const Pass& pass,
                       const Compressor& compressor,
                       int32_t ratio,
                       const Batch& batch,
                       const TensorView& projections) {
  for_each_row(projections.num_rows(), pass.stream, [&](int64_t t) {
    const int32_t phase = batch.positions[static_cast<size_t>(t)] % ratio;
    const float* bias = compressor.weights->ape.data() + phase * compressor.channels;
    float* gates = projections.row<float>(t) + compressor.gate_column();
    for (int64_t i = 0; i < compressor.channels; ++i) gates[i] += bias[i];
  });
}

// Projection rows of one sequence by position: this pass's tokens, and before them the ring.
struct RowSource {
  const SequenceSpan& sequence;
  const TensorView& projections;
  Ring ring;

  const float* at(int32_t position) const {
    if (position >= sequence.position_begin)
      return projections.row<float>(sequence.row_of(position));
    return reinterpret_cast<const float*>(ring.row(position));
  }
};

// Appends the slots of entry `c`. Ratio 4: the previous block's first halves (absent for entry 0),
// then this block's second halves. Ratio 128: the block's tokens.
void append_slots(const Compressor& compressor,
                  int32_t ratio,
                  int32_t c,
                  const RowSource& source,
                  Workspace& ws) {
  const auto append = [&](int32_t position, int64_t offset) {
    const float* row = position < 0 ? nullptr : source.at(position) + offset;
    ws.compress_values.push_back(row == nullptr ? nullptr : row + compressor.value_column);
    ws.compress_gates.push_back(row == nullptr ? nullptr : row + compressor.gate_column());
  };
  const int32_t begin = c * ratio;
  const bool overlaps = ratio == 4;
  if (overlaps) {
    for (int32_t i = 0; i < ratio; ++i) append(begin - ratio + i, 0);
  }
  for (int32_t i = 0; i < ratio; ++i) append(begin + i, overlaps ? compressor.width : 0);
}

// Lists the slots of every entry that the batch completes, sequence by sequence.
void list_new_entries(const Pass& pass,
                      const Compressor& compressor,
                      const LayerState& layer,
                      const Batch& batch,
                      const TensorView& projections) {
  Workspace& ws = pass.workspace;
  ws.compress_values.clear();
  ws.compress_gates.clear();
  ws.entry_positions.clear();
  const int32_t ratio = layer.compress_ratio;
  for (const SequenceSpan& sequence : batch.sequences) {
    const RowSource source{sequence, projections, pass.state.ring(sequence.slot, layer.compressor)};
    for (int32_t c = sequence.position_begin / ratio; c < sequence.position_end() / ratio; ++c) {
      append_slots(compressor, ratio, c, source, ws);
      ws.entry_positions.push_back(c * ratio);
    }
  }
}

void store_entries(const Compressor& compressor,
                   const LayerState& layer,
                   const Batch& batch,
                   const TensorView& entries) {
  const int32_t ratio = layer.compress_ratio;
  int64_t row = 0;
  for (size_t s = 0; s < batch.sequences.size(); ++s) {
    const SequenceSpan& sequence = batch.sequences[s];
    const int32_t end = sequence.position_end() / ratio;
    const std::span<const int32_t> pool_rows = batch.entries(ratio).first(s, end);
    for (int32_t c = sequence.position_begin / ratio; c < end; ++c, ++row) {
      compressor.pool->form.store(
          std::span(entries.row<float>(row), static_cast<size_t>(compressor.width)),
          compressor.pool->row(pool_rows[static_cast<size_t>(c)]));
    }
  }
}

Result<void> form_entries(Pass& pass,
                          const Compressor& compressor,
                          const LayerState& layer,
                          const Batch& batch,
                          const TensorView& projections) {
  Workspace& ws = pass.workspace;
  list_new_entries(pass, compressor, layer, batch, projections);
  const auto count = static_cast<int64_t>(ws.entry_positions.size());
  if (count == 0) return {};
  const int32_t slots = layer.compress_ratio == 4 ? 8 : 128;
  const TensorView entries =
      TensorView::contiguous(ws.new_entries.data, DType::kF32, {count, compressor.width});

  TRY(compressor.compress->launch(kernels::CompressArgs{.values = ws.compress_values,
                                                        .gates = ws.compress_gates,
                                                        .num_slots = slots,
                                                        .out = entries},
                                  pass.stream));
  pass.round(entries);
  TRY(compressor.norm->launch(kernels::RmsNormArgs{.x = entries,
                                                   .gamma = compressor.weights->norm.data(),
                                                   .eps = pass.norm_eps(),
                                                   .y = entries},
                              pass.stream));
  pass.round(entries);
  // An entry is rotated by the position of its block's first token.
  TRY(compressor.rope->launch(kernels::RopeArgs{.x = entries.reshaped({count, 1, compressor.width}),
                                                .positions = ws.entry_positions,
                                                .freqs = pass.frequencies.of(layer.compress_ratio)},
                              pass.stream));
  pass.round(entries);
  if (pass.numerics.is_simulated) {
    if (compressor.is_index) {
      simulate_index(entries, compressor.width, pass.stream);
    } else {
      simulate_kv(entries, pass.config.qk_nope_head_dim(), pass.stream);
    }
  }
  store_entries(compressor, layer, batch, entries);
  return {};
}

// The last rows of every sequence, as many as the ring holds.
void store_rows(const Pass& pass,
                const LayerState& layer,
                const Batch& batch,
                const TensorView& projections) {
  for (const SequenceSpan& sequence : batch.sequences) {
    const Ring ring = pass.state.ring(sequence.slot, layer.compressor);
    const int32_t end = sequence.position_end();
    for (int32_t p = std::max(sequence.position_begin, end - ring.capacity); p < end; ++p) {
      std::memcpy(ring.row(p),
                  projections.row<float>(sequence.row_of(p)),
                  static_cast<size_t>(ring.row_bytes));
    }
  }
}

}  // namespace

Result<void> run_compressors(Pass& pass,
                             const AttentionWeights& weights,
                             const LayerState& layer,
                             const Batch& batch,
                             const TensorView& projections) {
  const Compressor main = main_compressor(pass, weights, layer);
  add_position_bias(pass, main, layer.compress_ratio, batch, projections);
  TRY(form_entries(pass, main, layer, batch, projections));
  if (layer.compress_ratio == 4) {
    const Compressor index = index_compressor(pass, weights, layer);
    add_position_bias(pass, index, layer.compress_ratio, batch, projections);
    TRY(form_entries(pass, index, layer, batch, projections));
  }
  store_rows(pass, layer, batch, projections);
  return {};
}

}  // namespace nibble::models::deepseek_v4
