// The token rows of one pass and which sequence each belongs to. The vectors keep their capacity
// from pass to pass, so that a steady state allocates nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "models/deepseek_v4/config.h"
#include "models/deepseek_v4/slot_table.h"
#include "models/model.h"

namespace nibble::models::deepseek_v4 {

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

struct PassRows {
  std::vector<int32_t> token_ids;
  std::vector<int32_t> positions;
  std::vector<int32_t> sequence_of_row;
  std::vector<SequenceSpan> sequences;

  int32_t num_tokens() const { return static_cast<int32_t>(token_ids.size()); }
  const SequenceSpan& sequence_of(int32_t row) const {
    return sequences[static_cast<size_t>(sequence_of_row[static_cast<size_t>(row)])];
  }

  // Capacity for passes of `options`.
  void reserve(const StateOptions& options);
  // The main model's rows; `input` is valid.
  void assign(const ForwardInput& input);
  // The MTP layer's rows: those of `main` at position 1 and later, moved one position back. Row i
  // then stands for position p of the stream state and keeps the token at p + 1.
  void assign_mtp(const PassRows& main, const SlotTable& slots);

 private:
  void clear();
  void add_sequence(const SequenceSpan& sequence, std::span<const int32_t> ids);
};

// kInvalidArgument for anything in `input` that does not fit the state, the config or itself.
Result<void> validate(const ForwardInput& input, const Config& config, const SlotTable& slots);

}  // namespace nibble::models::deepseek_v4
