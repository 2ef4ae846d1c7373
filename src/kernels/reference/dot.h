// Dot products of the scalar reference.
#pragma once

#include <cstdint>
#include <iterator>
#include <numeric>

namespace nibble::kernels::reference {

// a . b over n values, in double. One sum of all would wait for each addition: there are as many as
// hide it.
inline double dot(const float* a, const float* b, int64_t n) {
  constexpr int64_t kSums = 8;
  double sums[kSums] = {};
  int64_t j = 0;
  for (; j + kSums <= n; j += kSums) {
    for (int64_t i = 0; i < kSums; ++i) sums[i] += static_cast<double>(a[j + i]) * b[j + i];
  }
  for (; j < n; ++j) sums[j % kSums] += static_cast<double>(a[j]) * b[j];
  return std::accumulate(std::begin(sums), std::end(sums), 0.0);
}

}  // namespace nibble::kernels::reference
