// Arithmetic on sizes that come from outside: overflow is reported, never wrapped.
#pragma once

#include <cstdint>
#include <optional>

namespace nibble {

// Product or sum of two non-negative sizes; nullopt when either is negative or the result does not
// fit int64_t.
inline std::optional<int64_t> checked_mul(int64_t a, int64_t b) {
  int64_t result = 0;
  if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

inline std::optional<int64_t> checked_add(int64_t a, int64_t b) {
  int64_t result = 0;
  if (a < 0 || b < 0 || __builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t multiple) { return ceil_div(a, multiple) * multiple; }

}  // namespace nibble
