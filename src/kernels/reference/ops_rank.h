// The order of scores in selections.
#pragma once

#include <cmath>
#include <limits>

namespace nibble::kernels::reference {

// NaN ranks with minus infinity, below every other score.
inline float rank_of(float score) {
  return std::isnan(score) ? -std::numeric_limits<float>::infinity() : score;
}

}  // namespace nibble::kernels::reference
