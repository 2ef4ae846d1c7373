// Counter-based random numbers: the value depends on (seed, position) alone, so what one request
// draws does not depend on its neighbours, on chunks or on preemption.
#pragma once

#include <cstdint>

namespace nibble {

// The finaliser of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
// OOPSLA 2014): a bijection of 64-bit words in which every input bit reaches every output bit.
constexpr uint64_t mix64(uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9ULL;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

// Output number `position` of the SplitMix64 generator that starts at `state`.
constexpr uint64_t split_mix64(uint64_t state, uint64_t position) {
  constexpr uint64_t kGoldenGamma = 0x9E3779B97F4A7C15ULL;
  return mix64(state + (position + 1) * kGoldenGamma);
}

// A uniform number in [0, 1) with 53 random bits. The seed is mixed first, so that neighbouring
// seeds do not give shifted copies of one stream.
constexpr double uniform_at(uint64_t seed, uint64_t position) {
  return static_cast<double>(split_mix64(mix64(seed), position) >> 11) * 0x1.0p-53;
}

}  // namespace nibble
