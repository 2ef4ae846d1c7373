#include "grammar/decimal_range.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

namespace nibble::grammar {
namespace {

// Which bounds the digits so far are equal to; the others hold already.
struct Tight {
  bool lower = false;
  bool upper = false;
};

// Numbers from `lower` to `upper`, both not negative.
class MagnitudeRange final {
 public:
  MagnitudeRange(Rules& rules, DecimalBound lower, DecimalBound upper, size_t max_fraction_digits)
      : rules_(rules),
        lower_(std::move(lower)),
        upper_(std::move(upper)),
        num_fraction_(max_fraction_digits) {}

  ExprId make() const {
    std::vector<ExprId> options;
    const size_t shortest = lower_.value.integer.size();
    const size_t longest = upper_.value.integer.size();
    options.push_back(integer_digits(0, shortest, {.lower = true, .upper = shortest == longest}));
    if (longest > shortest) options.push_back(integer_digits(0, longest, {.upper = true}));
    if (longest > shortest + 1) {
      // Lengths in between are within the bounds.
      const ExprId more = rules_.repeat(
          digit(0, 9), static_cast<int32_t>(shortest), static_cast<int32_t>(longest) - 2);
      options.push_back(rules_.sequence({digit(1, 9), more, behind_integer({})}));
    }
    return rules_.choice(options);
  }

 private:
  static int32_t digit_at(const std::string& digits, size_t position) {
    return position < digits.size() ? digits[position] - '0' : 0;
  }

  ExprId digit(int32_t first, int32_t last) const {
    if (first > last) return rules_.never();
    return rules_.byte_range(static_cast<uint8_t>('0' + first), static_cast<uint8_t>('0' + last));
  }

  // One digit from `first` to `last`, each end followed by what keeps its bound in sight.
  template <class Rest>
  ExprId split(int32_t first, int32_t last, Tight tight, Rest rest) const {
    if (first > last) return rules_.never();
    if (first == last) return rules_.sequence({digit(first, last), rest(tight)});
    std::vector<ExprId> options;
    if (tight.lower) {
      options.push_back(rules_.sequence({digit(first, first), rest({.lower = true})}));
    }
    if (tight.upper) {
      options.push_back(rules_.sequence({digit(last, last), rest({.upper = true})}));
    }
    const ExprId between = digit(first + (tight.lower ? 1 : 0), last - (tight.upper ? 1 : 0));
    options.push_back(rules_.sequence({between, rest(Tight{})}));
    return rules_.choice(options);
  }

  ExprId integer_digits(size_t position, size_t length, Tight tight) const {
    if (position == length) return behind_integer(tight);
    const int32_t smallest = position == 0 && length > 1 ? 1 : 0;
    if (!tight.lower && !tight.upper) {
      const auto left = static_cast<int32_t>(length - position) - 1;
      return rules_.sequence(
          {digit(smallest, 9), rules_.repeat(digit(0, 9), left, left), behind_integer({})});
    }
    const int32_t first = tight.lower ? digit_at(lower_.value.integer, position) : smallest;
    const int32_t last = tight.upper ? digit_at(upper_.value.integer, position) : 9;
    return split(
        first, last, tight, [&](Tight next) { return integer_digits(position + 1, length, next); });
  }

  ExprId behind_integer(Tight tight) const {
    std::vector<ExprId> options;
    if (can_stop(0, tight)) options.push_back(rules_.empty());
    if (num_fraction_ > 0) {
      options.push_back(rules_.sequence({rules_.bytes("."), fraction_digits(0, tight)}));
    }
    return rules_.choice(options);
  }

  // The number may end when `position` fraction digits are written.
  bool can_stop(size_t position, Tight tight) const {
    const bool equals_lower = position >= lower_.value.fraction.size();
    const bool equals_upper = position >= upper_.value.fraction.size();
    const bool above = !tight.lower || (equals_lower && !lower_.is_exclusive);
    const bool below = !tight.upper || !equals_upper || !upper_.is_exclusive;
    return above && below;
  }

  // At least one more digit.
  ExprId fraction_digits(size_t position, Tight tight) const {
    if (position == num_fraction_) return rules_.never();
    if (position >= lower_.value.fraction.size() && !lower_.is_exclusive) tight.lower = false;
    if (!tight.lower && !tight.upper) {
      return rules_.repeat(digit(0, 9), 1, static_cast<int32_t>(num_fraction_ - position));
    }
    const int32_t first = tight.lower ? digit_at(lower_.value.fraction, position) : 0;
    const int32_t last = tight.upper ? digit_at(upper_.value.fraction, position) : 9;
    return split(first, last, tight, [&](Tight next) {
      const ExprId more = fraction_digits(position + 1, next);
      return can_stop(position + 1, next) ? rules_.optional(more) : more;
    });
  }

  Rules& rules_;
  DecimalBound lower_;
  DecimalBound upper_;
  size_t num_fraction_;
};

Decimal zero() { return {.is_negative = false, .integer = "0", .fraction = {}}; }

// Above everything that is written.
DecimalBound beyond() {
  Decimal value = zero();
  value.integer = "1" + std::string(kMaxIntegerDigits, '0');
  return {.value = std::move(value), .is_exclusive = true};
}

bool is_zero(const Decimal& value) { return value.integer == "0" && value.fraction.empty(); }

DecimalBound magnitude(DecimalBound bound) {
  bound.value.is_negative = false;
  return bound;
}

// Less than 0, 0 or more than 0, as a is below, equal to or above b.
int compare(const Decimal& a, const Decimal& b) {
  if (a.is_negative != b.is_negative) return a.is_negative ? -1 : 1;
  const int sign = a.is_negative ? -1 : 1;
  if (a.integer.size() != b.integer.size()) {
    return a.integer.size() < b.integer.size() ? -sign : sign;
  }
  if (const int order = a.integer.compare(b.integer); order != 0) return sign * order;
  return sign * a.fraction.compare(b.fraction);
}

std::optional<DecimalBound> tighter(std::optional<DecimalBound> a,
                                    std::optional<DecimalBound> b,
                                    int sign) {
  if (!a || !b) return a ? std::move(a) : std::move(b);
  const int order = sign * compare(a->value, b->value);
  if (order == 0) return a->is_exclusive ? std::move(a) : std::move(b);
  return order > 0 ? std::move(a) : std::move(b);
}

}  // namespace

Result<Decimal> Decimal::parse(std::string_view number) {
  const std::string_view whole = number;
  const auto fault = [&](std::string_view text) {
    return invalid_argument(fmt::format("{} {}", whole, text));
  };
  Decimal value;
  value.is_negative = number.starts_with('-');
  number.remove_prefix(value.is_negative ? 1 : 0);
  int32_t exponent = 0;
  if (const size_t at = number.find_first_of("eE"); at != std::string_view::npos) {
    std::string_view digits = number.substr(at + 1);
    if (digits.starts_with('+')) digits.remove_prefix(1);
    const char* const end = digits.data() + digits.size();
    const auto [parsed_to, error] = std::from_chars(digits.data(), end, exponent);
    constexpr int32_t kMaxExponent = 400;
    if (error != std::errc() || parsed_to != end || std::abs(exponent) > kMaxExponent) {
      return fault("has an exponent that is not supported");
    }
    number = number.substr(0, at);
  }
  const size_t point = std::min(number.find('.'), number.size());
  std::string digits(number.substr(0, point));
  digits += number.substr(std::min(point + 1, number.size()));
  // The point stands behind this many digits; pad so that there are digits on both sides.
  int64_t num_integer = static_cast<int64_t>(point) + exponent;
  if (num_integer < 1) {
    digits.insert(0, static_cast<size_t>(1 - num_integer), '0');
    num_integer = 1;
  }
  if (num_integer > static_cast<int64_t>(digits.size())) {
    digits.append(static_cast<size_t>(num_integer) - digits.size(), '0');
  }
  value.integer = digits.substr(0, static_cast<size_t>(num_integer));
  value.fraction = digits.substr(static_cast<size_t>(num_integer));
  value.integer.erase(0, std::min(value.integer.find_first_not_of('0'), value.integer.size() - 1));
  value.fraction.erase(value.fraction.find_last_not_of('0') + 1);
  if (value.integer.size() > kMaxIntegerDigits) return fault("is beyond 10^18");
  if (value.fraction.size() > kMaxFractionDigits) return fault("has more than 15 decimal places");
  if (is_zero(value)) value.is_negative = false;
  return value;
}

ExprId decimal_in_range(Rules& rules, const DecimalRange& range) {
  std::vector<ExprId> options;
  const std::optional<DecimalBound>& lower = range.lower;
  const std::optional<DecimalBound>& upper = range.upper;
  if (!upper || !upper->value.is_negative) {
    const bool is_bounded = lower && !lower->value.is_negative;
    options.push_back(MagnitudeRange(rules,
                                     is_bounded ? *lower : DecimalBound{.value = zero()},
                                     upper.value_or(beyond()),
                                     range.max_fraction_digits)
                          .make());
  }
  if (!lower || lower->value.is_negative) {
    const bool is_bounded = upper && upper->value.is_negative;
    const DecimalBound least =
        is_bounded ? magnitude(*upper) : DecimalBound{.value = zero(), .is_exclusive = true};
    const DecimalBound most = lower ? magnitude(*lower) : beyond();
    const ExprId digits = MagnitudeRange(rules, least, most, range.max_fraction_digits).make();
    options.push_back(rules.sequence({rules.bytes("-"), digits}));
  }
  return rules.choice(options);
}

std::optional<DecimalBound> tighter_lower(std::optional<DecimalBound> a,
                                          std::optional<DecimalBound> b) {
  return tighter(std::move(a), std::move(b), 1);
}

std::optional<DecimalBound> tighter_upper(std::optional<DecimalBound> a,
                                          std::optional<DecimalBound> b) {
  return tighter(std::move(a), std::move(b), -1);
}

}  // namespace nibble::grammar
