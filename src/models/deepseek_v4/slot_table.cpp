#include "models/deepseek_v4/slot_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/checked_math.h"

namespace nibble::models::deepseek_v4 {

void SlotStatus::advance(int32_t new_length) {
  length = new_length;
  high_water = std::max(high_water, new_length);
}

Result<void> SlotTable::truncate(SlotId slot, int32_t length) {
  SlotStatus& current = status(slot);
  const int32_t oldest = std::max(current.restored, current.high_water - kMaxRollback);
  if (length > current.length || length < std::max(oldest, 0)) {
    return invalid_argument(
        fmt::format("slot {}: truncate to {} tokens, expected {} to {} (length {}, {} computed)",
                    slot.value,
                    length,
                    std::max(oldest, 0),
                    current.length,
                    current.length,
                    current.high_water));
  }
  current.length = length;
  current.mtp_end = std::min(current.mtp_end, std::max(length - 1, 0));
  current.mtp_begin = std::min(current.mtp_begin, current.mtp_end);
  return {};
}

Result<void> SlotTable::require_slot(SlotId slot) const {
  if (has(slot)) return {};
  return invalid_argument(
      fmt::format("slot {}, expected 0 to {}", slot.value, options_.num_slots - 1));
}

Result<void> SlotTable::require_page(PageId page, int64_t num_bytes, int64_t page_bytes) const {
  if (page.value < 0 || page.value >= options_.num_pages) {
    return invalid_argument(
        fmt::format("page {}, expected 0 to {}", page.value, options_.num_pages - 1));
  }
  if (num_bytes == page_bytes) return {};
  return invalid_argument(fmt::format("{} bytes for a page, expected {}", num_bytes, page_bytes));
}

Result<StateOptions> resolve_state_options(const StateOptions& requested,
                                           int32_t max_position_embeddings) {
  StateOptions options = requested;
  if (options.max_context == 0) options.max_context = max_position_embeddings;
  if (options.num_pages == 0) {
    options.num_pages = static_cast<int32_t>(ceil_div(options.max_context, kPageSize));
  }
  if (options.max_context > max_position_embeddings) {
    return invalid_argument(
        fmt::format("a context of {} tokens, but the model's limit is {} (config.json: "
                    "max_position_embeddings)",
                    options.max_context,
                    max_position_embeddings));
  }
  if (options.num_slots <= 0 || options.num_pages <= 0 || options.max_context <= 0 ||
      options.max_tokens_per_pass <= 0) {
    return invalid_argument(fmt::format(
        "state of {} slots, {} pages, {} tokens of context, {} tokens per pass; expected positive "
        "values",
        options.num_slots,
        options.num_pages,
        options.max_context,
        options.max_tokens_per_pass));
  }
  return options;
}

}  // namespace nibble::models::deepseek_v4
