// How far the sequence of every slot is, wherever its rows are kept. Owner: the executor thread.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "models/model.h"

namespace nibble::models::deepseek_v4 {

inline constexpr int32_t kPageSize = 256;
inline constexpr int32_t kMaxRollback = 8;

struct SlotStatus {
  int32_t length = 0;      // tokens of the sequence
  int32_t high_water = 0;  // positions written so far, rejected drafts included
  int32_t restored = 0;    // length of the snapshot that the slot started from
  // Positions whose MTP keys are in the ring. Passes without compute_mtp leave a gap, after which
  // it starts anew.
  int32_t mtp_begin = 0;
  int32_t mtp_end = 0;

  void advance(int32_t new_length);
};

class SlotTable final {
 public:
  SlotTable() = default;
  // `options` has no zeros left.
  explicit SlotTable(const StateOptions& options)
      : options_(options), statuses_(static_cast<size_t>(options.num_slots)) {}

  const StateOptions& options() const { return options_; }
  bool has(SlotId slot) const { return slot.value >= 0 && slot.value < options_.num_slots; }
  SlotStatus& status(SlotId slot) { return statuses_[static_cast<size_t>(slot.value)]; }
  const SlotStatus& status(SlotId slot) const { return statuses_[static_cast<size_t>(slot.value)]; }

  // models::Model::truncate().
  Result<void> truncate(SlotId slot, int32_t length);

  // kInvalidArgument unless there is such a slot or page, or a page's entries have that size.
  Result<void> require_slot(SlotId slot) const;
  Result<void> require_page(PageId page, int64_t num_bytes, int64_t page_bytes) const;

 private:
  StateOptions options_;
  std::vector<SlotStatus> statuses_;
};

// `requested` with what it leaves open filled in. kInvalidArgument for values that are not positive
// or beyond the model's context.
Result<StateOptions> resolve_state_options(const StateOptions& requested,
                                           int32_t max_position_embeddings);

}  // namespace nibble::models::deepseek_v4
