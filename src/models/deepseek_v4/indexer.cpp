#include "models/deepseek_v4/indexer.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "models/deepseek_v4/decisions.h"

namespace nibble::models::deepseek_v4 {
namespace {

std::span<int32_t> selected_row(const Workspace& ws, int32_t row) {
  return {ws.selected.row<int32_t>(row), static_cast<size_t>(ws.selected.shape[1])};
}

int32_t num_candidates(const Batch& batch, int32_t row) {
  return (batch.positions[static_cast<size_t>(row)] + 1) / 4;
}

// Settles what needs no scores. candidate_counts becomes 0 for those rows, so that score and top-k
// skip them. Returns the largest count left.
int32_t settle_without_scores(Pass& pass, int32_t layer_index, const Batch& batch) {
  Workspace& ws = pass.workspace;
  int32_t most = 0;
  for (int32_t row = 0; row < batch.num_tokens(); ++row) {
    const auto r = static_cast<size_t>(row);
    const int32_t candidates = num_candidates(batch, row);
    const auto replayed =
        pass.replay == nullptr
            ? std::span<const int32_t>()
            : decision_at(pass.replay->selected_entries, layer_index, batch.positions[r]);
    ws.candidate_counts[r] = 0;
    ws.num_selected[r] = kAllEntries;
    if (!replayed.empty()) {
      std::copy(replayed.begin(), replayed.end(), selected_row(ws, row).begin());
      ws.num_selected[r] = static_cast<int32_t>(replayed.size());
    } else if (candidates > pass.config.index_topk) {
      ws.candidate_counts[r] = candidates;
      most = std::max(most, candidates);
    }
  }
  return most;
}

// Head weights times di^-0.5 * Hi^-0.5, in place.
void scale_head_weights(const Config& config, const TensorView& head_weights) {
  const auto scale =
      static_cast<float>(1.0 / std::sqrt(double{1} * config.index_head_dim * config.index_n_heads));
  for (int64_t t = 0; t < head_weights.num_rows(); ++t) {
    float* row = head_weights.row<float>(t);
    for (int32_t h = 0; h < config.index_n_heads; ++h) row[h] *= scale;
  }
}

Result<void> project_queries(Pass& pass,
                             const AttentionWeights& weights,
                             const Batch& batch,
                             const TensorView& qr,
                             const TensorView& index_q) {
  const int64_t tokens = batch.num_tokens();
  TRY(weights.index_wq_b.forward(qr, index_q, pass.stream));
  pass.round(index_q);
  TRY(pass.ops.rope_index.launch(
      kernels::RopeArgs{
          .x = index_q.reshaped({tokens, pass.config.index_n_heads, pass.config.index_head_dim}),
          .positions = batch.positions,
          .freqs = pass.frequencies.of(4)},
      pass.stream));
  pass.round(index_q);
  if (pass.numerics.is_simulated) simulate_index(index_q, pass.config.index_head_dim, pass.stream);
  return {};
}

// Scores and selects rows [begin, begin + count); selected then holds entry indices.
Result<void> score_rows(Pass& pass,
                        const LayerState& layer,
                        const Batch& batch,
                        const TensorView& index_q,
                        const TensorView& head_weights,
                        RowRange range) {
  Workspace& ws = pass.workspace;
  const auto begin = static_cast<size_t>(range.begin);
  const auto count = static_cast<size_t>(range.size());
  for (size_t r = begin; r < begin + count; ++r) {
    ws.paged_rows[r] = {.base = layer.index_entries.storage.data(),
                        .pages = batch.sequence_of(static_cast<int32_t>(r)).pages,
                        .entries_per_page = layer.entries_per_page(),
                        .count = ws.candidate_counts[r]};
  }
  const auto counts = std::span<const int32_t>(ws.candidate_counts).subspan(begin, count);
  const int32_t widest = std::max(*std::max_element(counts.begin(), counts.end()), 1);
  const TensorView scores =
      TensorView::contiguous(ws.index_scores.data, DType::kF32, {range.size(), widest});
  const TensorView q =
      index_q.rows(range.begin, range.size())
          .reshaped({range.size(), pass.config.index_n_heads, pass.config.index_head_dim});
  TRY(pass.ops.indexer_score.launch(
      kernels::IndexerScoreArgs{
          .q = q,
          .head_weights = head_weights.rows(range.begin, range.size()),
          .keys = std::span<const kernels::PagedRows>(ws.paged_rows).subspan(begin, count),
          .key_dtype = layer.index_entries.form.dtype,
          .scores = scores},
      pass.stream));
  return pass.ops.top_k.launch(
      kernels::TopKArgs{.scores = scores,
                        .counts = counts,
                        .k = pass.config.index_topk,
                        .indices = ws.selected.rows(range.begin, range.size()),
                        .num_selected = std::span(ws.score_selected).subspan(begin, count)},
      pass.stream);
}

// As many rows per launch as the score buffer holds.
Result<void> score_all(Pass& pass,
                       const LayerState& layer,
                       const Batch& batch,
                       const TensorView& index_q,
                       const TensorView& head_weights,
                       int32_t most_candidates) {
  Workspace& ws = pass.workspace;
  const int64_t capacity = ws.index_scores.shape.num_elements();
  const auto rows_per_launch =
      static_cast<int32_t>(std::clamp<int64_t>(capacity / most_candidates, 1, batch.num_tokens()));
  for (int32_t begin = 0; begin < batch.num_tokens(); begin += rows_per_launch) {
    const int32_t end = std::min(begin + rows_per_launch, batch.num_tokens());
    TRY(score_rows(pass, layer, batch, index_q, head_weights, {.begin = begin, .end = end}));
  }
  for (size_t r = 0; r < static_cast<size_t>(batch.num_tokens()); ++r) {
    if (ws.candidate_counts[r] > 0) ws.num_selected[r] = ws.score_selected[r];
  }
  return {};
}

void record_selection(Pass& pass, int32_t layer_index, const Batch& batch) {
  Workspace& ws = pass.workspace;
  std::vector<int32_t> all;
  for (int32_t row = 0; row < batch.num_tokens(); ++row) {
    const int32_t count = ws.num_selected[static_cast<size_t>(row)];
    const int32_t position = batch.positions[static_cast<size_t>(row)];
    std::span<const int32_t> entries;
    if (count == kAllEntries) {
      all.resize(static_cast<size_t>(num_candidates(batch, row)));
      std::iota(all.begin(), all.end(), 0);
      entries = all;
    } else {
      entries = selected_row(ws, row).first(static_cast<size_t>(count));
    }
    record_decision(pass.record->selected_entries, layer_index, position, entries);
  }
}

// Entry indices become rows of the entry pool.
void map_to_pool_rows(Pass& pass, const Batch& batch) {
  Workspace& ws = pass.workspace;
  for (int32_t row = 0; row < batch.num_tokens(); ++row) {
    const int32_t count = ws.num_selected[static_cast<size_t>(row)];
    if (count <= 0) continue;
    const auto sequence = static_cast<size_t>(batch.sequence_of_row[static_cast<size_t>(row)]);
    const std::span<const int32_t> pool_rows =
        batch.entries_4.first(sequence, num_candidates(batch, row));
    for (int32_t& entry : selected_row(ws, row).first(static_cast<size_t>(count))) {
      entry = pool_rows[static_cast<size_t>(entry)];
    }
  }
}

}  // namespace

Result<void> select_entries(Pass& pass,
                            const AttentionWeights& weights,
                            int32_t layer_index,
                            const Batch& batch,
                            const TensorView& qr,
                            const TensorView& projections) {
  const LayerState& layer = pass.state.layer(layer_index);
  const int32_t most_candidates = settle_without_scores(pass, layer_index, batch);
  if (most_candidates > 0) {
    const TensorView index_q = pass.workspace.index_q.rows(0, batch.num_tokens());
    const TensorView head_weights = projections.columns(
        projections.shape[1] - pass.config.index_n_heads, pass.config.index_n_heads);
    pass.round(head_weights);
    scale_head_weights(pass.config, head_weights);
    TRY(project_queries(pass, weights, batch, qr, index_q));
    TRY(score_all(pass, layer, batch, index_q, head_weights, most_candidates));
  }
  if (pass.record != nullptr) record_selection(pass, layer_index, batch);
  map_to_pool_rows(pass, batch);
  return {};
}

}  // namespace nibble::models::deepseek_v4
