// Recording and replaying the discrete decisions of a step: between launches, on the host.
#include "models/deepseek_v4/decisions.h"

#include <algorithm>
#include <span>
#include <vector>

#include "kernels/reference/forms.h"
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

// Codes and scales of `rounded` in host memory, of m rows.
struct HostForms {
  std::vector<std::byte> codes;
  std::vector<float> scales;
  kernels::ActivationForms forms;

  static Result<HostForms> fetch(const Pass& pass, const RoundedRows& rounded, int64_t m) {
    HostForms host;
    const bool is_blocks = rounded.form == kernels::ActivationForm::kFp8Blocks;
    const int64_t codes =
        is_blocks ? kernels::fp8_blocks_bytes(m, rounded.width) : m * rounded.width;
    host.codes.resize(static_cast<size_t>(codes));
    TRY(pass.device.copy_out(
        host.codes.data(), is_blocks ? rounded.x.fp8_blocks : rounded.x.fp8, codes));
    if (is_blocks) {
      host.forms.fp8_blocks = host.codes.data();
    } else {
      host.scales.resize(static_cast<size_t>(m * (rounded.width / 128)));
      TRY(pass.device.copy_out(host.scales.data(),
                               rounded.x.fp8_scales,
                               static_cast<int64_t>(host.scales.size() * sizeof(float))));
      host.forms.fp8 = host.codes.data();
      host.forms.fp8_scales = host.scales.data();
    }
    TRY(pass.device.synchronize());
    return host;
  }
};

}  // namespace

Result<void> record_roundings(const Pass& pass,
                              int32_t layer,
                              RoundedInput input,
                              const Rows& rows,
                              const RoundedRows& rounded) {
  const bool is_fp8 = rounded.form == kernels::ActivationForm::kFp8Rows ||
                      rounded.form == kernels::ActivationForm::kFp8Blocks;
  if (!pass.records_roundings() || !is_fp8) return {};
  const int64_t m = int64_t{rows.m()} * rounded.per_token;
  TRY_ASSIGN(const HostForms host, HostForms::fetch(pass, rounded, m));
  const auto width = static_cast<size_t>(rounded.width);
  for (size_t token = 0; token < rows.host->positions.size(); ++token) {
    const RoundingSite site{.layer = layer, .input = input};
    std::vector<float>& values =
        decision_slot(pass.record->roundings, site.index(), rows.host->positions[token]);
    values.resize(static_cast<size_t>(rounded.per_token) * width);
    for (int32_t i = 0; i < rounded.per_token; ++i) {
      const int64_t row = static_cast<int64_t>(token) * rounded.per_token + i;
      kernels::reference::read_form(
          host.forms,
          rounded.form,
          m,
          rounded.width,
          row,
          0,
          std::span(values).subspan(static_cast<size_t>(i) * width, width));
    }
  }
  return {};
}

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
