// The random numbers of a benchmark: one seed, one sequence, on every machine and standard library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace nibble::bench_client {

// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).
class Random final {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next();
  // In [0, 1), 53 random bits.
  double uniform();
  // In [low, high].
  int64_t between(int64_t low, int64_t high);
  double normal();  // mean 0, deviation 1
  // Gamma distribution with mean `shape` and scale 1; shape > 0. Marsaglia, Tsang: A Simple Method
  // for Generating Gamma Variables, 2000.
  double gamma(double shape);

  template <class T>
  const T& pick(const std::vector<T>& items) {
    return items[static_cast<size_t>(between(0, static_cast<int64_t>(items.size()) - 1))];
  }
  template <class T>
  void shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) {
      std::swap(items[i - 1], items[static_cast<size_t>(between(0, static_cast<int64_t>(i) - 1))]);
    }
  }

 private:
  uint64_t state_;
};

}  // namespace nibble::bench_client
