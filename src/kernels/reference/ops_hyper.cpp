// Hyper-connections (specification 3.3): read, write and the head's read.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/ops_launchers.h"

namespace nibble::kernels::reference {
namespace {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// mix[j] = (flat . fn[j, :]) / sqrt(mean(flat^2) + eps) for each of `num_rows` rows of fn.
std::vector<double> mixing(
    const float* flat, int64_t width, const float* fn, int64_t num_rows, float eps) {
  double squares = 0;
  for (int64_t i = 0; i < width; ++i) squares += static_cast<double>(flat[i]) * flat[i];
  const double inverse_rms = 1.0 / std::sqrt(squares / static_cast<double>(width) + eps);

  std::vector<double> mix(static_cast<size_t>(num_rows), 0.0);
  for (int64_t j = 0; j < num_rows; ++j) {
    double& sum = mix[static_cast<size_t>(j)];
    for (int64_t i = 0; i < width; ++i) sum += static_cast<double>(fn[j * width + i]) * flat[i];
    sum *= inverse_rms;
  }
  return mix;
}

// x[i] = sum_m pre[m] * state[m, i].
void read_streams(const float* state, const std::vector<double>& pre, int64_t d, float* x) {
  for (int64_t i = 0; i < d; ++i) {
    double sum = 0;
    for (size_t m = 0; m < pre.size(); ++m) {
      sum += pre[m] * state[static_cast<int64_t>(m) * d + i];
    }
    x[i] = static_cast<float>(sum);
  }
}

// A square matrix of mixing coefficients: row = source stream, column = destination.
class Comb {
 public:
  Comb(size_t size, std::vector<double> values) : size_(size), values_(std::move(values)) {}

  double& at(size_t i, size_t j) { return values_[i * size_ + j]; }

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

Result<void> hyper_pre(const HyperPreArgs& args, device::Stream&) {
  const int32_t mult = args.hc_mult;
  const int64_t width = args.state.shape[1];
  const double eps = args.hc_eps;
  for (int64_t t = 0; t < args.state.num_rows(); ++t) {
    const float* state = args.state.row<float>(t);
    const auto mix = mixing(state, width, args.fn, int64_t{2 + mult} * mult, args.norm_eps);
    const auto logit = [&](int32_t j, int32_t part) {
      return mix[static_cast<size_t>(j)] * args.scale[part] + args.base[j];
    };

    std::vector<double> pre(static_cast<size_t>(mult));
    for (int32_t m = 0; m < mult; ++m) {
      pre[static_cast<size_t>(m)] = sigmoid(logit(m, 0)) + eps;
    }
    read_streams(state, pre, width / mult, args.x.row<float>(t));

    for (int32_t m = 0; m < mult; ++m) {
      args.post.row<float>(t)[m] = static_cast<float>(2.0 * sigmoid(logit(mult + m, 1)));
    }

    std::vector<double> comb_logits;
    for (int32_t j = 2 * mult; j < (2 + mult) * mult; ++j) comb_logits.push_back(logit(j, 2));
    const auto size = static_cast<size_t>(mult);
    Comb comb = sinkhorn(size, std::move(comb_logits), args.sinkhorn_iters, eps);
    for (size_t i = 0; i < size; ++i) {
      for (size_t j = 0; j < size; ++j) {
        args.comb.row<float>(t)[i * size + j] = static_cast<float>(comb.at(i, j));
      }
    }
  }
  return {};
}

Result<void> hyper_post(const HyperPostArgs& args, device::Stream&) {
  const int32_t mult = args.hc_mult;
  const int64_t d = args.y.shape[1];
  std::vector<double> old(static_cast<size_t>(mult));
  for (int64_t t = 0; t < args.y.num_rows(); ++t) {
    const float* y = args.y.row<float>(t);
    const float* post = args.post.row<float>(t);
    const float* comb = args.comb.row<float>(t);
    float* state = args.state.row<float>(t);
    for (int64_t i = 0; i < d; ++i) {
      for (int32_t m = 0; m < mult; ++m) old[static_cast<size_t>(m)] = state[m * d + i];
      for (int32_t j = 0; j < mult; ++j) {
        double sum = static_cast<double>(post[j]) * y[i];
        for (int32_t m = 0; m < mult; ++m) {
          sum += comb[m * mult + j] * old[static_cast<size_t>(m)];
        }
        state[j * d + i] = static_cast<float>(sum);
      }
    }
  }
  return {};
}

Result<void> hyper_head(const HyperHeadArgs& args, device::Stream&) {
  const int32_t mult = args.hc_mult;
  const int64_t width = args.state.shape[1];
  for (int64_t t = 0; t < args.state.num_rows(); ++t) {
    const float* state = args.state.row<float>(t);
    auto pre = mixing(state, width, args.fn, mult, args.norm_eps);
    for (int32_t m = 0; m < mult; ++m) {
      double& value = pre[static_cast<size_t>(m)];
      value = sigmoid(value * args.scale[0] + args.base[m]) + args.hc_eps;
    }
    read_streams(state, pre, width / mult, args.x.row<float>(t));
  }
  return {};
}

}  // namespace nibble::kernels::reference
