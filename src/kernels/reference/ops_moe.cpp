// Expert choice, activation and combination (specification 4).
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/reference/ops_launchers.h"
#include "kernels/reference/ops_rank.h"

namespace nibble::kernels::reference {
namespace {

// sqrt(log(1 + exp(a))), without overflow for large a and without losing small values.
double sqrt_softplus(double a) {
  return std::sqrt(std::max(a, 0.0) + std::log1p(std::exp(-std::abs(a))));
}

// The best `k` of score + bias, best first; ties to the lower id.
void choose(const std::vector<float>& scores, const float* bias, int64_t k, int32_t* ids) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto value = [&](int32_t id) {
    return rank_of(scores[static_cast<size_t>(id)] + (bias == nullptr ? 0.0f : bias[id]));
  };
  std::stable_sort(
      order.begin(), order.end(), [&](int32_t a, int32_t b) { return value(a) > value(b); });
  std::copy_n(order.begin(), k, ids);
}

// Fills the ids of token t, unless they are given.
void fill_ids(const SelectExpertsArgs& args, int64_t t, const std::vector<float>& scores) {
  const int64_t k = args.ids.shape[1];
  int32_t* ids = args.ids.row<int32_t>(t);
  if (args.reuse_ids) return;
  if (args.token_to_experts != nullptr) {
    std::copy_n(args.token_to_experts + args.token_ids[static_cast<size_t>(t)] * k, k, ids);
    return;
  }
  choose(scores, args.bias, k, ids);
}

// Keeps 0 / 0 away when every chosen score underflows.
constexpr double kMinSum = 1e-20;

}  // namespace

Result<void> select_experts(const SelectExpertsArgs& args, device::Stream&) {
  const int64_t num_experts = args.logits.shape[1];
  const int64_t k = args.ids.shape[1];
  std::vector<float> scores(static_cast<size_t>(num_experts));
  for (int64_t t = 0; t < args.logits.num_rows(); ++t) {
    for (int64_t e = 0; e < num_experts; ++e) {
      scores[static_cast<size_t>(e)] =
          static_cast<float>(sqrt_softplus(args.logits.row<float>(t)[e]));
    }
    fill_ids(args, t, scores);

    const int32_t* ids = args.ids.row<int32_t>(t);
    double sum = kMinSum;
    for (int64_t j = 0; j < k; ++j) sum += scores[static_cast<size_t>(ids[j])];
    for (int64_t j = 0; j < k; ++j) {
      args.weights.row<float>(t)[j] = static_cast<float>(scores[static_cast<size_t>(ids[j])] / sum *
                                                         args.routed_scaling_factor);
    }
  }
  return {};
}

Result<void> swiglu(const SwigluArgs& args, device::Stream&) {
  const int64_t width = args.y.shape[1];
  const double limit =
      args.limit > 0 ? double{args.limit} : std::numeric_limits<double>::infinity();
  for (int64_t r = 0; r < args.y.num_rows(); ++r) {
    const float* x = args.x.row<float>(r);
    const double weight = args.row_weights == nullptr ? 1.0 : args.row_weights[r];
    for (int64_t i = 0; i < width; ++i) {
      const double gate = std::min(double{x[i]}, limit);
      const double up = std::clamp(double{x[width + i]}, -limit, limit);
      args.y.row<float>(r)[i] = static_cast<float>(gate / (1.0 + std::exp(-gate)) * up * weight);
    }
  }
  return {};
}

Result<void> combine_experts(const CombineExpertsArgs& args, device::Stream&) {
  const int64_t width = args.y.shape[1];
  for (int64_t t = 0; t < args.y.num_rows(); ++t) {
    for (int64_t i = 0; i < width; ++i) {
      double sum = args.shared.row<float>(t)[i];
      for (int64_t j = 0; j < args.experts_per_token; ++j) {
        sum += args.experts.row<float>(t * args.experts_per_token + j)[i];
      }
      args.y.row<float>(t)[i] = static_cast<float>(sum);
    }
  }
  return {};
}

}  // namespace nibble::kernels::reference
