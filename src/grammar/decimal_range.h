// Numbers between bounds, written as decimals without an exponent: exact on the digits, without
// floating point.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "grammar/expression.h"

namespace nibble::grammar {

// sign * integer.fraction; zero is not negative.
struct Decimal {
  bool is_negative = false;
  std::string integer;   // digits without leading zeros; "0"
  std::string fraction;  // digits without trailing zeros; often empty

  // Of a JSON number, exponents included. kInvalidArgument beyond kMaxIntegerDigits or
  // kMaxFractionDigits.
  static Result<Decimal> parse(std::string_view number);
};

inline constexpr size_t kMaxIntegerDigits = 18;
inline constexpr size_t kMaxFractionDigits = 15;

struct DecimalBound {
  Decimal value;
  bool is_exclusive = false;
};

// Numbers have at most kMaxIntegerDigits and `max_fraction_digits` digits. -0 is not among them.
struct DecimalRange {
  std::optional<DecimalBound> lower;
  std::optional<DecimalBound> upper;
  size_t max_fraction_digits = 0;  // 0: integers
};
ExprId decimal_in_range(Rules& rules, const DecimalRange& range);

// The tighter of two lower (or upper) bounds.
std::optional<DecimalBound> tighter_lower(std::optional<DecimalBound> a,
                                          std::optional<DecimalBound> b);
std::optional<DecimalBound> tighter_upper(std::optional<DecimalBound> a,
                                          std::optional<DecimalBound> b);

}  // namespace nibble::grammar
