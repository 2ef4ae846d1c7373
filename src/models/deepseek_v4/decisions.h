// Look-up and storage of the discrete decisions of models::Decisions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace nibble::models::deepseek_v4 {

using DecisionTable = std::vector<std::vector<std::vector<int32_t>>>;  // layer -> position -> ids

// Empty when nothing is stored for that position.
inline std::span<const int32_t> decision_at(const DecisionTable& table,
                                            int32_t layer,
                                            int32_t position) {
  const auto l = static_cast<size_t>(layer);
  const auto p = static_cast<size_t>(position);
  if (l >= table.size() || p >= table[l].size()) return {};
  return table[l][p];
}

inline void record_decision(DecisionTable& table,
                            int32_t layer,
                            int32_t position,
                            std::span<const int32_t> ids) {
  const auto l = static_cast<size_t>(layer);
  const auto p = static_cast<size_t>(position);
  if (table.size() <= l) table.resize(l + 1);
  if (table[l].size() <= p) table[l].resize(p + 1);
  table[l][p].assign(ids.begin(), ids.end());
}

}  // namespace nibble::models::deepseek_v4
