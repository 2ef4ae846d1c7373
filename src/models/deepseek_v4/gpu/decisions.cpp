// Recording and replaying the discrete decisions of a step: between launches, on the host.
#include "models/deepseek_v4/decisions.h"

#include <algorithm>
#include <vector>

#include "models/deepseek_v4/gpu/pass.h"

namespace nibble::models::deepseek_v4::gpu {
namespace {

Result<std::vector<int32_t>> fetch(const Pass& pass, const int32_t* data, size_t count) {
  std::vector<int32_t> values(count);
  TRY(pass.device.copy_out(values.data(), data, static_cast<int64_t>(count * sizeof(int32_t))));
  TRY(pass.device.synchronize());
  return values;
}

Result<void> store(const Pass& pass, const std::vector<int32_t>& values, int32_t* data) {
  TRY(pass.device.copy_in(
      data, values.data(), static_cast<int64_t>(values.size() * sizeof(int32_t))));
  return pass.device.synchronize();
}

// Between entries of a sequence and rows of a pool with `per_page` entries a page.
class EntryMap final {
 public:
  EntryMap(std::span<const PageId> pages, int32_t per_page) : pages_(pages), per_page_(per_page) {}

  int32_t row_of(int32_t entry) const {
    return pages_[static_cast<size_t>(entry / per_page_)].value * per_page_ + entry % per_page_;
  }
  int32_t entry_of(int32_t row) const {
    const auto page = std::find_if(
        pages_.begin(), pages_.end(), [&](PageId id) { return id.value == row / per_page_; });
    CHECK(page != pages_.end()) << row;
    return static_cast<int32_t>(page - pages_.begin()) * per_page_ + row % per_page_;
  }

 private:
  std::span<const PageId> pages_;
  int32_t per_page_;
};

}  // namespace

Result<bool> settle_experts(const Pass& pass, int32_t layer, const Rows& rows, int32_t* ids) {
  const auto choices = static_cast<size_t>(pass.config.num_experts_per_tok);
  TRY_ASSIGN(std::vector<int32_t> chosen,
             fetch(pass, ids, static_cast<size_t>(rows.m()) * choices));
  bool is_replayed = false;
  for (size_t row = 0; row < rows.host->positions.size(); ++row) {
    const int32_t position = rows.host->positions[row];
    const auto own = std::span(chosen).subspan(row * choices, choices);
    if (pass.replay != nullptr) {
      const auto replayed = decision_at(pass.replay->expert_ids, layer, position);
      std::copy(replayed.begin(), replayed.end(), own.begin());
      is_replayed = is_replayed || !replayed.empty();
    }
    if (pass.record != nullptr) record_decision(pass.record->expert_ids, layer, position, own);
  }
  if (is_replayed) TRY(store(pass, chosen, ids));
  return is_replayed;
}

Result<const int32_t*> settle_selection(const Pass& pass, int32_t layer, const Rows& rows) {
  const auto top_k = static_cast<size_t>(pass.config.index_topk);
  const int32_t per_page = pass.state.layer(layer).entries_per_page();
  TRY_ASSIGN(std::vector<int32_t> selected,
             fetch(pass, pass.ws.selected, static_cast<size_t>(rows.m()) * top_k));
  std::vector<int32_t> counts(static_cast<size_t>(rows.m()), 0);
  for (size_t row = 0; row < rows.host->positions.size(); ++row) {
    const int32_t position = rows.host->positions[row];
    const EntryMap map(rows.host->sequence_of(static_cast<int32_t>(row)).pages, per_page);
    const auto own = std::span(selected).subspan(row * top_k, top_k);
    counts[row] = std::min((position + 1) / 4, pass.config.index_topk);
    if (pass.replay != nullptr) {
      const auto replayed = decision_at(pass.replay->selected_entries, layer, position);
      if (!replayed.empty()) counts[row] = static_cast<int32_t>(replayed.size());
      std::transform(replayed.begin(), replayed.end(), own.begin(), [&](int32_t entry) {
        return map.row_of(entry);
      });
    }
    if (pass.record == nullptr) continue;
    std::vector<int32_t> entries(static_cast<size_t>(counts[row]));
    std::transform(own.begin(), own.begin() + counts[row], entries.begin(), [&](int32_t pool_row) {
      return map.entry_of(pool_row);
    });
    record_decision(pass.record->selected_entries, layer, position, entries);
  }
  TRY(store(pass, selected, pass.ws.selected));
  TRY(store(pass, counts, pass.ws.imposed_counts));
  return static_cast<const int32_t*>(pass.ws.imposed_counts);
}

}  // namespace nibble::models::deepseek_v4::gpu
