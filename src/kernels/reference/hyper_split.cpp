#include "kernels/reference/hyper_split.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace nibble::kernels::reference {
namespace {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// A square matrix of mixing coefficients: row = source stream, column = destination.
class Comb {
 public:
  Comb(size_t size, std::vector<double> values) : size_(size), values_(std::move(values)) {}

  double& at(size_t i, size_t j) { return values_[i * size_ + j]; }
  std::vector<double> take_values() { return std::move(values_); }

  void softmax_rows(double eps) {
    for (size_t i = 0; i < size_; ++i) {
      double max = at(i, 0);
      for (size_t j = 1; j < size_; ++j) max = std::max(max, at(i, j));
      double sum = 0;
      for (size_t j = 0; j < size_; ++j) {
        at(i, j) = std::exp(at(i, j) - max);
        sum += at(i, j);
      }
      for (size_t j = 0; j < size_; ++j) at(i, j) = at(i, j) / sum + eps;
    }
  }
  void normalise_rows(double eps) {
    for (size_t i = 0; i < size_; ++i) {
      double sum = eps;
      for (size_t j = 0; j < size_; ++j) sum += at(i, j);
      for (size_t j = 0; j < size_; ++j) at(i, j) /= sum;
    }
  }
  void normalise_columns(double eps) {
    for (size_t j = 0; j < size_; ++j) {
      double sum = eps;
      for (size_t i = 0; i < size_; ++i) sum += at(i, j);
      for (size_t i = 0; i < size_; ++i) at(i, j) /= sum;
    }
  }

 private:
  size_t size_;
  std::vector<double> values_;
};

// The comb part of the split: softmax of the rows, then Sinkhorn; columns are normalised last.
Comb sinkhorn(size_t size, std::vector<double> logits, int32_t iterations, double eps) {
  Comb comb(size, std::move(logits));
  comb.softmax_rows(eps);
  comb.normalise_columns(eps);
  for (int32_t i = 1; i < iterations; ++i) {
    comb.normalise_rows(eps);
    comb.normalise_columns(eps);
  }
  return comb;
}

}  // namespace

HyperSplit split_mix(const std::vector<double>& mix,
                     const float* base,
                     const float* scale,
                     int32_t hc_mult,
                     int32_t sinkhorn_iters,
                     double eps) {
  const auto mult = static_cast<size_t>(hc_mult);
  const auto logit = [&](size_t j, int32_t part) { return mix[j] * scale[part] + base[j]; };
  HyperSplit split;
  for (size_t m = 0; m < mult; ++m) split.pre.push_back(sigmoid(logit(m, 0)) + eps);
  if (mix.size() == mult) return split;
  for (size_t m = 0; m < mult; ++m) split.post.push_back(2.0 * sigmoid(logit(mult + m, 1)));
  std::vector<double> comb_logits;
  for (size_t j = 2 * mult; j < mix.size(); ++j) comb_logits.push_back(logit(j, 2));
  split.comb = sinkhorn(mult, std::move(comb_logits), sinkhorn_iters, eps).take_values();
  return split;
}

void read_streams(const float* state, const std::vector<double>& pre, int64_t d, float* x) {
  for (int64_t i = 0; i < d; ++i) {
    double sum = 0;
    for (size_t m = 0; m < pre.size(); ++m) {
      sum += pre[m] * state[static_cast<int64_t>(m) * d + i];
    }
    x[i] = static_cast<float>(sum);
  }
}

}  // namespace nibble::kernels::reference
