// The token rows of one pass and where they belong: sequences, positions, and the index lists that
// all layers share. The vectors keep their capacity from pass to pass, so that a steady state
// allocates nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "layers/linear.h"
#include "models/deepseek_v4/config.h"
#include "models/deepseek_v4/state.h"
#include "models/model.h"

namespace nibble::models::deepseek_v4 {

struct RowRange {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t size() const { return end - begin; }
};

// A sequence's share of the pass: rows [row_begin, row_begin + num_tokens) hold positions from
// position_begin on.
struct SequenceSpan {
  SlotId slot;
  int32_t row_begin = 0;
  int32_t num_tokens = 0;
  int32_t position_begin = 0;
  int32_t window_begin = 0;  // the oldest position whose key may be read
  std::span<const PageId> pages;

  int32_t position_end() const { return position_begin + num_tokens; }
  int32_t row_of(int32_t position) const { return row_begin + position - position_begin; }
};

// Rows in the entry pools, entry by entry, of every sequence; all layers of one ratio share them.
struct EntryRows {
  std::vector<int32_t> rows;
  std::vector<int32_t> begin;  // per sequence: its first element in `rows`

  // The first `count` entries of sequence `s`.
  std::span<const int32_t> first(size_t s, int32_t count) const {
    return std::span(rows).subspan(static_cast<size_t>(begin[s]), static_cast<size_t>(count));
  }
};

struct Batch {
  std::vector<int32_t> token_ids;
  std::vector<int32_t> positions;
  std::vector<int32_t> sequence_of_row;
  std::vector<SequenceSpan> sequences;
  // Consecutive row ranges that hold at most kMaxAttentionChunk tokens of any sequence.
  std::vector<RowRange> attention_ranges;
  // (token, output group) rows of the grouped output projection.
  std::vector<int32_t> output_group_offsets;
  std::vector<int32_t> output_group_rows;
  EntryRows entries_4;
  EntryRows entries_128;

  int32_t num_tokens() const { return static_cast<int32_t>(token_ids.size()); }
  const SequenceSpan& sequence_of(int32_t row) const {
    return sequences[static_cast<size_t>(sequence_of_row[static_cast<size_t>(row)])];
  }
  const EntryRows& entries(int32_t compress_ratio) const {
    return compress_ratio == 4 ? entries_4 : entries_128;
  }
  layers::GroupedLinear::Rows output_groups() const {
    return {.group_offsets = output_group_offsets,
            .in_rows = output_group_rows,
            .out_rows = output_group_rows};
  }

  // Capacity for passes of `max_tokens`.
  void reserve(const Config& config, const StateOptions& options);
  // The main model's rows; `input` is valid.
  void assign(const Config& config, const ForwardInput& input);
  // The MTP layer's rows: those of `main` at position 1 and later, moved one position back. Row i
  // then stands for position p of the stream state and keeps the token at p + 1.
  void assign_mtp(const Config& config, const Batch& main, const DecodingState& state);

 private:
  void clear();
  void add_sequence(const SequenceSpan& sequence, std::span<const int32_t> ids);
  void finish(const Config& config);
};

// kInvalidArgument for anything in `input` that does not fit the state, the config or itself.
Result<void> validate(const ForwardInput& input, const Config& config, const DecodingState& state);

}  // namespace nibble::models::deepseek_v4
