#include "models/deepseek_v4/batch.h"

#include <algorithm>

#include "base/checked_math.h"

namespace nibble::models::deepseek_v4 {
namespace {

void add_entry_rows(EntryRows& entries, const SequenceSpan& sequence, int32_t compress_ratio) {
  const int32_t per_page = kPageSize / compress_ratio;
  const int32_t count = sequence.position_end() / compress_ratio;
  entries.begin.push_back(static_cast<int32_t>(entries.rows.size()));
  for (int32_t first = 0; first < count; first += per_page) {
    const int32_t page_row = sequence.pages[static_cast<size_t>(first / per_page)].value * per_page;
    const int32_t end = std::min(per_page, count - first);
    for (int32_t i = 0; i < end; ++i) entries.rows.push_back(page_row + i);
  }
}

}  // namespace

void Batch::reserve(const Config& config, const StateOptions& options) {
  const auto tokens = static_cast<size_t>(options.max_tokens_per_pass);
  const auto slots = static_cast<size_t>(options.num_slots);
  PassRows::reserve(options);
  attention_ranges.reserve(tokens / kMaxAttentionChunk + slots + 1);
  output_group_offsets.reserve(static_cast<size_t>(config.o_groups) + 1);
  output_group_rows.reserve(tokens * static_cast<size_t>(config.o_groups));
  entries_4.rows.reserve(slots * static_cast<size_t>(options.max_context / 4));
  entries_4.begin.reserve(slots);
  entries_128.rows.reserve(slots * static_cast<size_t>(options.max_context / 128));
  entries_128.begin.reserve(slots);
}

void Batch::make_ranges() {
  attention_ranges.clear();
  for (const SequenceSpan& sequence : sequences) {
    for (int32_t begin = 0; begin < sequence.num_tokens; begin += kMaxAttentionChunk) {
      const int32_t end = std::min(begin + kMaxAttentionChunk, sequence.num_tokens);
      const RowRange range{.begin = sequence.row_begin + begin, .end = sequence.row_begin + end};
      // A sequence's first range may share a launch with the sequences before it.
      if (begin == 0 && !attention_ranges.empty()) {
        attention_ranges.back().end = range.end;
      } else {
        attention_ranges.push_back(range);
      }
    }
  }
}

void Batch::make_output_groups(const Config& config) {
  output_group_offsets.clear();
  output_group_rows.clear();
  const int32_t tokens = num_tokens();
  for (int32_t group = 0; group < config.o_groups; ++group) {
    output_group_offsets.push_back(group * tokens);
    for (int32_t t = 0; t < tokens; ++t) output_group_rows.push_back(t * config.o_groups + group);
  }
  output_group_offsets.push_back(config.o_groups * tokens);
}

void Batch::assign(const Config& config, const ForwardInput& input) {
  PassRows::assign(input);
  for (EntryRows* entries : {&entries_4, &entries_128}) {
    entries->rows.clear();
    entries->begin.clear();
  }
  for (const SequenceSpan& sequence : sequences) {
    add_entry_rows(entries_4, sequence, 4);
    add_entry_rows(entries_128, sequence, 128);
  }
  make_ranges();
  make_output_groups(config);
}

void Batch::assign_mtp(const Config& config, const Batch& main, const SlotTable& slots) {
  PassRows::assign_mtp(main, slots);
  make_ranges();
  make_output_groups(config);
}

}  // namespace nibble::models::deepseek_v4
