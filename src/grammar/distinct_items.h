// Arrays whose items are different ones of a few values.
#pragma once

#include <optional>
#include <span>

#include "grammar/expression.h"

namespace nibble::grammar {

// Up to so many values stand in any order; more stand in theirs.
inline constexpr size_t kMaxValuesInAnyOrder = 8;

// `values`, each at most once, with `separator` between them, `min` to `max` of them. nullopt: too
// many counts of too many values.
std::optional<ExprId> distinct_items(
    Rules& rules, std::span<const ExprId> values, ExprId separator, int32_t min, int32_t max);

}  // namespace nibble::grammar
