// Rotary frequencies (spec 8), computed in double and rounded once.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "models/deepseek_v4/pass.h"

namespace nibble::models::deepseek_v4 {
namespace {

double plain_frequency(double base, int32_t i, int32_t dim) {
  return std::pow(base, -2.0 * i / dim);
}

// How much of pair i's frequency is interpolated: 0 keeps it, 1 divides it by the factor.
class YarnRamp final {
 public:
  YarnRamp(const RopeScaling& scaling, double base, int32_t dim) {
    const auto pair_with_rotations = [&](double rotations) {
      return dim *
             std::log(static_cast<double>(scaling.original_max_position_embeddings) /
                      (2 * std::numbers::pi * rotations)) /
             (2 * std::log(base));
    };
    low_ = std::max(std::floor(pair_with_rotations(scaling.beta_fast)), 0.0);
    high_ = std::min(std::ceil(pair_with_rotations(scaling.beta_slow)), dim - 1.0);
    if (low_ == high_) high_ += 0.001;
  }
  double at(int32_t i) const { return std::clamp((i - low_) / (high_ - low_), 0.0, 1.0); }

 private:
  double low_ = 0;
  double high_ = 0;
};

std::vector<float> plain_frequencies(double base, int32_t dim) {
  std::vector<float> frequencies;
  frequencies.reserve(static_cast<size_t>(dim / 2));
  for (int32_t i = 0; i < dim / 2; ++i)
    frequencies.push_back(static_cast<float>(plain_frequency(base, i, dim)));
  return frequencies;
}

std::vector<float> yarn_frequencies(const RopeScaling& scaling, double base, int32_t dim) {
  const YarnRamp ramp(scaling, base, dim);
  std::vector<float> frequencies;
  frequencies.reserve(static_cast<size_t>(dim / 2));
  for (int32_t i = 0; i < dim / 2; ++i) {
    const double plain = plain_frequency(base, i, dim);
    const double interpolated = ramp.at(i);
    frequencies.push_back(
        static_cast<float>(plain / scaling.factor * interpolated + plain * (1 - interpolated)));
  }
  return frequencies;
}

}  // namespace

RopeFrequencies make_rope_frequencies(const Config& config) {
  const int32_t dim = config.qk_rope_head_dim;
  return {
      .window_only = plain_frequencies(config.rope_theta, dim),
      .compressed = config.rope_scaling
                        ? yarn_frequencies(*config.rope_scaling, config.compress_rope_theta, dim)
                        : plain_frequencies(config.compress_rope_theta, dim)};
}

}  // namespace nibble::models::deepseek_v4
