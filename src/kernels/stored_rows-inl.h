// The stored rows of stacked sources in the order in which a package holds them.
#pragma once

#include <span>
#include <vector>

#include "kernels/packed_weight.h"
#include "kernels/panel64.h"

namespace nibble::kernels {

// StoredRow: an aggregate that begins with the weight and the row's index in it.
template <class StoredRow>
std::vector<StoredRow> stored_rows(std::span<const WeightRows> sources, PanelOrder order) {
  std::vector<StoredRow> natural;
  for (const WeightRows& source : sources) {
    for (int64_t row = source.row_begin; row < source.row_end; ++row) {
      natural.push_back({.weight = &source.weight, .row = row});
    }
  }
  const auto n = static_cast<int64_t>(natural.size());
  std::vector<StoredRow> rows;
  rows.reserve(natural.size());
  for (int64_t row = 0; row < n; ++row) {
    rows.push_back(natural[static_cast<size_t>(panel_source_row(order, n, row))]);
  }
  return rows;
}

}  // namespace nibble::kernels
