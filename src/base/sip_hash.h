// SipHash-2-4 with 128 bits (Aumasson and Bernstein, 2012): a keyed hash whose values nobody can
// predict or steer without the key. Names of cached prefixes and tags of files that only this
// installation may have written.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace nibble {

struct Hash128 {
  uint64_t low = 0;
  uint64_t high = 0;
  friend constexpr auto operator<=>(const Hash128&, const Hash128&) = default;
};

struct SipKey {
  uint64_t k0 = 0;
  uint64_t k1 = 0;
};

// From the system's generator.
SipKey random_sip_key();

Hash128 sip_hash(const SipKey& key, std::span<const std::byte> bytes);

// 32 hexadecimal digits.
std::array<char, 32> to_hex(const Hash128& hash);

}  // namespace nibble

template <>
struct std::hash<nibble::Hash128> {
  size_t operator()(const nibble::Hash128& value) const noexcept {
    return static_cast<size_t>(value.low);
  }
};
