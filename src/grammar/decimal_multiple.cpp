#include "grammar/decimal_multiple.h"

#include <fmt/format.h>

#include <charconv>
#include <string>
#include <utility>
#include <vector>

namespace nibble::grammar {
namespace {

// The divisor is `digits` * 10^(num_zeros - num_fraction); one of the two is 0.
struct ScaledDivisor {
  int32_t digits = 0;
  int32_t num_zeros = 0;
  int32_t num_fraction = 0;
};

Result<ScaledDivisor> scaled(const Decimal& divisor) {
  std::string digits = divisor.integer + divisor.fraction;
  digits.erase(0, digits.find_first_not_of('0'));
  if (divisor.is_negative || digits.empty()) {
    return invalid_argument("expected a number above 0");
  }
  ScaledDivisor result = {.num_fraction = static_cast<int32_t>(divisor.fraction.size())};
  for (; digits.ends_with('0'); digits.pop_back()) ++result.num_zeros;
  constexpr size_t kMaxDigits = 9;
  if (digits.size() <= kMaxDigits) {
    std::from_chars(digits.data(), digits.data() + digits.size(), result.digits);
  }
  if (result.digits == 0 || result.digits > kMaxDivisor) {
    return invalid_argument(fmt::format("expected at most {} times a power of ten", kMaxDivisor));
  }
  return result;
}

// Nodes: for each place behind the point the remainders of the digits so far, then trailing zeros.
class MultipleGraph final {
 public:
  MultipleGraph(Rules& rules, ScaledDivisor divisor) : rules_(rules), divisor_(divisor) {}

  ExprId make() {
    const ExprId minus = rules_.bytes("-");
    add(Expr::kGraphStart, node(0, 0), rules_.empty());
    add(Expr::kGraphStart, node(0, 0), minus);
    for (int32_t place = 0; place <= divisor_.num_fraction; ++place) add_place(place);
    add_zeros();
    return rules_.graph(first_zero() + divisor_.num_zeros + 1, std::move(edges_));
  }

 private:
  // Integer digits are place 0; the point itself leads to place 1, whose nodes have read no digit
  // yet, so digits behind it stand one further.
  int32_t node(int32_t place, int32_t remainder) const {
    return 2 + place * divisor_.digits + remainder;
  }
  int32_t num_places() const { return divisor_.num_fraction == 0 ? 1 : divisor_.num_fraction + 2; }
  int32_t first_zero() const { return node(num_places(), 0); }

  void add(int32_t from, int32_t to, ExprId label) { edges_.push_back({from, to, label}); }

  void add_digits(int32_t from_place, int32_t to_place) {
    for (int32_t digit = 0; digit < 10; ++digit) {
      const auto byte = static_cast<uint8_t>('0' + digit);
      const ExprId label = rules_.byte_range(byte, byte);
      for (int32_t r = 0; r < divisor_.digits; ++r) {
        add(node(from_place, r), node(to_place, (10 * r + digit) % divisor_.digits), label);
      }
    }
  }

  // `place` fraction digits are read.
  void add_place(int32_t place) {
    if (place == 0) {
      add_digits(0, 0);
      if (divisor_.num_fraction > 0) add_point();
    } else {
      add_digits(place, place + 1);
    }
    if (divisor_.num_zeros > 0) return;
    const int32_t at = place == 0 ? 0 : place + 1;
    for (int32_t r = 0; r < divisor_.digits; ++r) {
      if (is_multiple(r, divisor_.num_fraction - place)) {
        add(node(at, r), Expr::kGraphEnd, rules_.empty());
      }
    }
  }

  void add_point() {
    const ExprId point = rules_.bytes(".");
    for (int32_t r = 0; r < divisor_.digits; ++r) add(node(0, r), node(1, r), point);
  }

  // With `num_missing` zeros behind it.
  bool is_multiple(int32_t remainder, int32_t num_missing) const {
    for (int32_t i = 0; i < num_missing; ++i) remainder = remainder * 10 % divisor_.digits;
    return remainder == 0;
  }

  // Or 0 itself.
  void add_zeros() {
    if (divisor_.num_zeros == 0) return;
    const ExprId zero = rules_.bytes("0");
    add(Expr::kGraphStart, Expr::kGraphEnd, zero);
    add(node(0, 0), first_zero(), rules_.empty());
    for (int32_t i = 0; i < divisor_.num_zeros; ++i) {
      add(first_zero() + i, first_zero() + i + 1, zero);
    }
    add(first_zero() + divisor_.num_zeros, Expr::kGraphEnd, rules_.empty());
  }

  Rules& rules_;
  const ScaledDivisor divisor_;
  std::vector<GraphEdge> edges_;
};

}  // namespace

Result<ExprId> multiples_of(Rules& rules, const Decimal& divisor) {
  TRY_ASSIGN(const ScaledDivisor parts, scaled(divisor));
  return MultipleGraph(rules, parts).make();
}

}  // namespace nibble::grammar
