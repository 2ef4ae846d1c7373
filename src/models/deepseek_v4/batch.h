// The rows of a pass with the index lists that all layers share on the CPU.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "layers/linear.h"
#include "models/deepseek_v4/config.h"
#include "models/deepseek_v4/pass_rows.h"
#include "models/deepseek_v4/state.h"
#include "models/model.h"

namespace nibble::models::deepseek_v4 {

struct RowRange {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t size() const { return end - begin; }
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

struct Batch : PassRows {
  // Consecutive row ranges that hold at most kMaxAttentionChunk tokens of any sequence.
  std::vector<RowRange> attention_ranges;
  // (token, output group) rows of the grouped output projection.
  std::vector<int32_t> output_group_offsets;
  std::vector<int32_t> output_group_rows;
  EntryRows entries_4;
  EntryRows entries_128;

  const EntryRows& entries(int32_t compress_ratio) const {
    return compress_ratio == 4 ? entries_4 : entries_128;
  }
  layers::GroupedLinear::Rows output_groups() const {
    return {.group_offsets = output_group_offsets,
            .in_rows = output_group_rows,
            .out_rows = output_group_rows};
  }

  // As those of PassRows, with the lists above.
  void reserve(const Config& config, const StateOptions& options);
  void assign(const Config& config, const ForwardInput& input);
  void assign_mtp(const Config& config, const Batch& main, const SlotTable& slots);

 private:
  void make_ranges();
  void make_output_groups(const Config& config);
};

}  // namespace nibble::models::deepseek_v4
