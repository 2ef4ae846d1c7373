#include "models/deepseek_v4/pass_rows.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/checked_math.h"
#include "models/deepseek_v4/decisions.h"

namespace nibble::models::deepseek_v4 {

void PassRows::reserve(const StateOptions& options) {
  const auto tokens = static_cast<size_t>(options.max_tokens_per_pass);
  token_ids.reserve(tokens);
  positions.reserve(tokens);
  sequence_of_row.reserve(tokens);
  sequences.reserve(static_cast<size_t>(options.num_slots));
}

void PassRows::clear() {
  token_ids.clear();
  positions.clear();
  sequence_of_row.clear();
  sequences.clear();
}

void PassRows::add_sequence(const SequenceSpan& sequence, std::span<const int32_t> ids) {
  const auto index = static_cast<int32_t>(sequences.size());
  token_ids.insert(token_ids.end(), ids.begin(), ids.end());
  for (int32_t i = 0; i < sequence.num_tokens; ++i) {
    positions.push_back(sequence.position_begin + i);
    sequence_of_row.push_back(index);
  }
  sequences.push_back(sequence);
}

void PassRows::assign(const ForwardInput& input) {
  clear();
  for (size_t s = 0; s < input.slots.size(); ++s) {
    const int32_t begin = input.cu_seqlens[s];
    const int32_t count = input.cu_seqlens[s + 1] - begin;
    add_sequence({.slot = input.slots[s],
                  .row_begin = begin,
                  .num_tokens = count,
                  .position_begin = input.positions[static_cast<size_t>(begin)],
                  .pages = input.block_tables[s]},
                 input.token_ids.subspan(static_cast<size_t>(begin), static_cast<size_t>(count)));
  }
}

void PassRows::assign_mtp(const PassRows& main, const SlotTable& slots) {
  clear();
  for (const SequenceSpan& source : main.sequences) {
    const int32_t skipped = source.position_begin == 0 ? 1 : 0;
    const int32_t count = source.num_tokens - skipped;
    const int32_t first_row = source.row_begin + skipped;
    if (count == 0) continue;
    const SlotStatus& status = slots.status(source.slot);
    const int32_t position_begin = source.position_begin + skipped - 1;
    add_sequence(
        {.slot = source.slot,
         .row_begin = num_tokens(),
         .num_tokens = count,
         .position_begin = position_begin,
         .window_begin = status.mtp_end == position_begin ? status.mtp_begin : position_begin,
         .pages = source.pages},
        std::span(main.token_ids)
            .subspan(static_cast<size_t>(first_row), static_cast<size_t>(count)));
  }
}

namespace {

Result<void> validate_shape(const ForwardInput& input, const StateOptions& options) {
  const size_t tokens = input.token_ids.size();
  if (tokens == 0 || tokens > static_cast<size_t>(options.max_tokens_per_pass)) {
    return invalid_argument(
        fmt::format("pass of {} tokens, expected 1 to {}", tokens, options.max_tokens_per_pass));
  }
  if (input.positions.size() != tokens) {
    return invalid_argument(
        fmt::format("{} positions for {} tokens", input.positions.size(), tokens));
  }
  const size_t sequences = input.slots.size();
  if (sequences == 0 || input.cu_seqlens.size() != sequences + 1 ||
      input.block_tables.size() != sequences) {
    return invalid_argument(
        fmt::format("{} slots, {} cu_seqlens, {} block tables; expected n, n + 1, n with n > 0",
                    sequences,
                    input.cu_seqlens.size(),
                    input.block_tables.size()));
  }
  if (input.cu_seqlens.front() != 0 || input.cu_seqlens.back() != static_cast<int32_t>(tokens)) {
    return invalid_argument(fmt::format("cu_seqlens from {} to {}, expected 0 to {}",
                                        input.cu_seqlens.front(),
                                        input.cu_seqlens.back(),
                                        tokens));
  }
  for (size_t s = 0; s < sequences; ++s) {
    if (input.cu_seqlens[s] >= input.cu_seqlens[s + 1]) {
      return invalid_argument(fmt::format("sequence {} has no tokens in this pass", s));
    }
  }
  return {};
}

Result<void> validate_ids(const ForwardInput& input, const Config& config) {
  for (const int32_t id : input.token_ids) {
    if (id < 0 || id >= config.vocab_size) {
      return invalid_argument(
          fmt::format("token id {}, expected 0 to {}", id, config.vocab_size - 1));
    }
  }
  int32_t previous = -1;
  for (const int32_t row : input.logits_rows) {
    if (row <= previous || row >= static_cast<int32_t>(input.token_ids.size())) {
      return invalid_argument(
          fmt::format("logits row {} after {}, expected ascending rows below {}",
                      row,
                      previous,
                      input.token_ids.size()));
    }
    previous = row;
  }
  return {};
}

Result<void> validate_sequence(const ForwardInput& input, size_t s, const SlotTable& slots) {
  const SlotId slot = input.slots[s];
  const StateOptions& options = slots.options();
  if (!slots.has(slot)) {
    return invalid_argument(
        fmt::format("slot {}, expected 0 to {}", slot.value, options.num_slots - 1));
  }
  if (std::count(input.slots.begin(), input.slots.end(), slot) != 1) {
    return invalid_argument(fmt::format("slot {} appears twice in one pass", slot.value));
  }
  const int32_t length = slots.status(slot).length;
  const int32_t begin = input.cu_seqlens[s];
  const int32_t end = input.cu_seqlens[s + 1];
  for (int32_t row = begin; row < end; ++row) {
    const int32_t position = input.positions[static_cast<size_t>(row)];
    if (position != length + row - begin) {
      return invalid_argument(fmt::format("slot {}: position {}, expected {} (length {})",
                                          slot.value,
                                          position,
                                          length + row - begin,
                                          length));
    }
  }
  const int32_t position_end = length + end - begin;
  if (position_end > options.max_context) {
    return invalid_argument(fmt::format("slot {}: {} tokens, larger than max_context {}",
                                        slot.value,
                                        position_end,
                                        options.max_context));
  }
  const auto num_pages = static_cast<size_t>(ceil_div(position_end, kPageSize));
  if (input.block_tables[s].size() < num_pages) {
    return invalid_argument(
        fmt::format("slot {}: block table of {} pages, expected {} for {} tokens",
                    slot.value,
                    input.block_tables[s].size(),
                    num_pages,
                    position_end));
  }
  for (const PageId page : input.block_tables[s].first(num_pages)) {
    if (page.value < 0 || page.value >= options.num_pages) {
      return invalid_argument(fmt::format(
          "slot {}: page {}, expected 0 to {}", slot.value, page.value, options.num_pages - 1));
    }
  }
  return {};
}

bool is_ascending_below(std::span<const int32_t> values, int32_t limit) {
  int32_t previous = -1;
  for (const int32_t value : values) {
    if (value <= previous || value >= limit) return false;
    previous = value;
  }
  return true;
}

bool are_distinct_below(std::span<const int32_t> values, int32_t limit) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] < 0 || values[i] >= limit) return false;
    if (std::find(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(i), values[i]) !=
        values.begin() + static_cast<std::ptrdiff_t>(i)) {
      return false;
    }
  }
  return true;
}

Result<void> validate_replay(const ForwardInput& input, const Config& config) {
  const Decisions& replay = *input.replay;
  const int32_t first =
      std::max(input.positions.front() - 1, 0);  // the MTP layer runs one position behind
  for (int32_t position = first; position <= input.positions.back(); ++position) {
    for (int32_t layer = 0; layer < static_cast<int32_t>(replay.expert_ids.size()); ++layer) {
      const auto ids = decision_at(replay.expert_ids, layer, position);
      if (ids.empty()) continue;
      if (static_cast<int32_t>(ids.size()) != config.num_experts_per_tok ||
          !are_distinct_below(ids, config.n_routed_experts)) {
        return invalid_argument(fmt::format(
            "replayed experts of layer {}, position {}: expected {} distinct ids below {}",
            layer,
            position,
            config.num_experts_per_tok,
            config.n_routed_experts));
      }
    }
    for (int32_t layer = 0; layer < static_cast<int32_t>(replay.selected_entries.size()); ++layer) {
      const auto entries = decision_at(replay.selected_entries, layer, position);
      if (static_cast<int32_t>(entries.size()) > config.index_topk ||
          !is_ascending_below(entries, (position + 1) / 4)) {
        return invalid_argument(
            fmt::format("replayed entries of layer {}, position {}: expected at most {} ascending "
                        "indices below {}",
                        layer,
                        position,
                        config.index_topk,
                        (position + 1) / 4));
      }
    }
  }
  return {};
}

}  // namespace

Result<void> validate(const ForwardInput& input, const Config& config, const SlotTable& slots) {
  if (input.tp_size != 1 || input.tp_rank != 0) {
    return unsupported(fmt::format(
        "tensor-parallel rank {} of {}, expected 0 of 1", input.tp_rank, input.tp_size));
  }
  TRY(validate_shape(input, slots.options()));
  TRY(validate_ids(input, config));
  for (size_t s = 0; s < input.slots.size(); ++s) TRY(validate_sequence(input, s, slots));
  if ((input.record != nullptr || input.replay != nullptr) && input.slots.size() != 1) {
    return invalid_argument(fmt::format(
        "decisions recorded or replayed with {} sequences, expected 1", input.slots.size()));
  }
  if (input.replay != nullptr) TRY(validate_replay(input, config));
  return {};
}

}  // namespace nibble::models::deepseek_v4
