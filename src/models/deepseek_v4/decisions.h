// Look-up and storage of the discrete decisions of models::Decisions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace nibble::models::deepseek_v4 {

template <class T>
using DecisionTable = std::vector<std::vector<std::vector<T>>>;  // layer -> position -> choices

// Empty when nothing is stored for that position.
template <class T>
std::span<const T> decision_at(const DecisionTable<T>& table, int32_t layer, int32_t position) {
  const auto l = static_cast<size_t>(layer);
  const auto p = static_cast<size_t>(position);
  if (l >= table.size() || p >= table[l].size()) return {};
  return table[l][p];
}

template <class T>
std::vector<T>& decision_slot(DecisionTable<T>& table, int32_t layer, int32_t position) {
  const auto l = static_cast<size_t>(layer);
  const auto p = static_cast<size_t>(position);
  if (table.size() <= l) table.resize(l + 1);
  if (table[l].size() <= p) table[l].resize(p + 1);
  return table[l][p];
}

inline void record_decision(DecisionTable<int32_t>& table,
                            int32_t layer,
                            int32_t position,
                            std::span<const int32_t> ids) {
  decision_slot(table, layer, position).assign(ids.begin(), ids.end());
}

// The inputs of linears that are rounded to FP8 (spec 7.1).
enum class RoundedInput : uint8_t {
  kAttention,     // of wq_a and wkv
  kQueries,       // of wq_b and the indexer's
  kOutput,        // of wo_b
  kExperts,       // of the routed experts' w1 and w3
  kPairs,         // of the routed experts' w2: choice by choice
  kShared,        // of the shared expert's w1 and w3
  kActivated,     // of the shared expert's w2
  kMtpEmbedding,  // of e_proj
  kMtpStreams,    // of h_proj: stream by stream
};
inline constexpr int32_t kRoundedInputs = 9;

// One of them, of the tokens of a pass; layer num_hidden_layers is the MTP layer.
struct RoundingSite {
  int32_t layer = 0;
  RoundedInput input = RoundedInput::kAttention;
  std::span<const int32_t> positions;

  int32_t index() const { return layer * kRoundedInputs + static_cast<int32_t>(input); }
};

}  // namespace nibble::models::deepseek_v4
