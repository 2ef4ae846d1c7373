// Decimals that are multiples of another: remainders along the digits, exact.
#pragma once

#include "base/result.h"
#include "grammar/decimal_range.h"
#include "grammar/expression.h"

namespace nibble::grammar {

// Divisors are c * 10^e with an integer c of at most this; so many remainders are told apart.
inline constexpr int32_t kMaxDivisor = 512;

// Texts "-?digits(.digits)?" of multiples of `divisor`, with at most as many fraction digits as it
// has; leading zeros are left to whoever intersects it with a range. kInvalidArgument: the divisor
// is not above 0, or beyond the limit.
Result<ExprId> multiples_of(Rules& rules, const Decimal& divisor);

}  // namespace nibble::grammar
