// Texts that two expressions have in common: the product of their automata over bytes.
#pragma once

#include <cstdint>
#include <optional>

#include "grammar/expression.h"

namespace nibble::grammar {

// Pairs of states looked at, and edges made, for one intersection.
inline constexpr int64_t kMaxProductStates = 100'000;
inline constexpr int64_t kMaxProductEdges = 400'000;

// Of regular expressions, numbers and counted characters: their calls may recur only at their ends.
// never() when nothing is in common; nullopt when it takes more than the limits above. `work` grows
// by the states and edges that were looked at.
std::optional<ExprId> intersection(Rules& rules, ExprId a, ExprId b, int64_t& work);

}  // namespace nibble::grammar
