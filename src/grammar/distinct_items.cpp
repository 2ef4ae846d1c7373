#include "grammar/distinct_items.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

namespace nibble::grammar {
namespace {

// Any value may follow any earlier one: edges grow with the square.
constexpr int32_t kMaxValues = 500;
constexpr int64_t kMaxNodes = 5'000;

struct Item {
  ExprId first;   // as the first of an array
  ExprId behind;  // behind another
};

// Nodes are the sets of values that stand already.
ExprId in_any_order(Rules& rules, std::span<const Item> items, int32_t min, int32_t max) {
  const auto num_sets = uint32_t{1} << items.size();
  const auto node = [](uint32_t set) {
    return set == 0 ? Expr::kGraphStart : static_cast<int32_t>(set) + 1;
  };
  std::vector<GraphEdge> edges;
  for (uint32_t set = 0; set < num_sets; ++set) {
    const int32_t count = std::popcount(set);
    if (count >= min && count <= max) edges.push_back({node(set), Expr::kGraphEnd, rules.empty()});
    if (count >= max) continue;
    for (size_t i = 0; i < items.size(); ++i) {
      const uint32_t with = set | uint32_t{1} << i;
      if (with == set) continue;
      edges.push_back({node(set), node(with), set == 0 ? items[i].first : items[i].behind});
    }
  }
  return rules.graph(static_cast<int32_t>(num_sets) + 1, std::move(edges));
}

// Nodes are the place in the list and the number of values that stand, `most` for that or more.
ExprId in_order(Rules& rules,
                std::span<const Item> items,
                int32_t min,
                std::optional<int32_t> max) {
  const int32_t most = max.value_or(std::max(min, 1));
  const auto num_items = static_cast<int32_t>(items.size());
  const auto node = [&](int32_t place, int32_t count) {
    return place == 0 ? Expr::kGraphStart : 2 + (place - 1) * (most + 1) + count;
  };
  std::vector<GraphEdge> edges;
  for (int32_t place = 0; place < num_items; ++place) {
    const Item& item = items[static_cast<size_t>(place)];
    for (int32_t count = 0; count <= (place == 0 ? 0 : most); ++count) {
      edges.push_back({node(place, count), node(place + 1, count), rules.empty()});
      if (max && count == most) continue;
      edges.push_back({node(place, count),
                       node(place + 1, std::min(count + 1, most)),
                       count == 0 ? item.first : item.behind});
    }
  }
  for (int32_t count = min; count <= most; ++count) {
    edges.push_back({node(num_items, count), Expr::kGraphEnd, rules.empty()});
  }
  return rules.graph(2 + num_items * (most + 1), std::move(edges));
}

}  // namespace

std::optional<ExprId> distinct_items(
    Rules& rules, std::span<const ExprId> values, ExprId separator, int32_t min, int32_t max) {
  const auto num_values = static_cast<int32_t>(values.size());
  if (min > std::min(num_values, max)) return rules.never();
  if (std::min(num_values, max) == 0) return rules.empty();
  std::vector<Item> items;
  for (const ExprId value : values) {
    items.push_back({.first = value, .behind = rules.shared(rules.sequence({separator, value}))});
  }
  if (values.size() <= kMaxValuesInAnyOrder) return in_any_order(rules, items, min, max);
  const std::optional<int32_t> bound = max < num_values ? std::optional(max) : std::nullopt;
  const int64_t num_counts = bound.value_or(std::max(min, 1)) + 1;
  if (num_values > kMaxValues || num_values * num_counts > kMaxNodes) return std::nullopt;
  return in_order(rules, items, min, bound);
}

}  // namespace nibble::grammar
