// What lies between the products of the experts in a GPU step (specification 4).
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/reference/device_ops_launchers.h"
#include "kernels/reference/device_rows.h"
#include "kernels/reference/forms.h"
#include "kernels/reference/ops_rank.h"
#include "quant/numeric.h"

namespace nibble::kernels::reference {
namespace {

// Keeps 0 / 0 away when every chosen score underflows.
constexpr double kMinSum = 1e-20;

// sqrt(log(1 + exp(a))), without overflow for large a and without losing small values.
double sqrt_softplus(double a) {
  return std::sqrt(std::max(a, 0.0) + std::log1p(std::exp(-std::abs(a))));
}

std::vector<float> scores_of(const DeviceSelectExpertsArgs& args, int64_t t) {
  std::vector<float> scores = sum_row(args.logits, args.tokens.m, args.num_experts, t);
  for (float& score : scores) score = static_cast<float>(sqrt_softplus(score));
  return scores;
}

// The best of score + bias, best first; ties to the lower id.
std::vector<int32_t> best_of(const DeviceSelectExpertsArgs& args,
                             const std::vector<float>& scores) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto value = [&](int32_t id) {
    const float bias = args.bias == nullptr ? 0.0f : args.bias[id];
    return rank_of(scores[static_cast<size_t>(id)] + bias);
  };
  std::stable_sort(
      order.begin(), order.end(), [&](int32_t a, int32_t b) { return value(a) > value(b); });
  order.resize(static_cast<size_t>(args.choices));
  return order;
}

std::vector<int32_t> ids_of(const DeviceSelectExpertsArgs& args,
                            int64_t t,
                            const std::vector<float>& scores) {
  const int32_t* given = nullptr;
  if (args.reuse_ids) {
    given = args.ids + t * args.choices;
  } else if (args.token_to_experts != nullptr) {
    given = args.token_to_experts + int64_t{args.tokens.ids[t]} * args.choices;
  } else {
    return best_of(args, scores);
  }
  return {given, given + args.choices};
}

void apply_swiglu(const DeviceSwiglu& args) {
  const double limit =
      args.limit > 0 ? double{args.limit} : std::numeric_limits<double>::infinity();
  const auto width = static_cast<size_t>(args.n);
  for (int64_t t = 0; t < args.m; ++t) {
    const std::vector<float> x = sum_row(args.x, args.m, 2 * args.n, t);
    std::vector<float> y(width);
    for (size_t i = 0; i < width; ++i) {
      const double gate = std::min(double{x[i]}, limit);
      const double up = std::clamp(double{x[width + i]}, -limit, limit);
      y[i] = static_cast<float>(gate / (1.0 + std::exp(-gate)) * up);
    }
    write_forms(args.y, args.m, t, y);
  }
}

}  // namespace

Result<void> device_select_experts(const DeviceSelectExpertsArgs& args, device::Stream& stream) {
  apply_swiglu(args.shared);
  for (int64_t t = 0; t < args.tokens.m; ++t) {
    int32_t* const out_ids = args.ids + t * args.choices;
    float* const weights = args.weights + t * args.choices;
    if (args.tokens.sequences[t] < 0) {
      std::fill_n(out_ids, args.choices, -1);
      std::fill_n(weights, args.choices, 0.0f);
      continue;
    }
    const std::vector<float> scores = scores_of(args, t);
    const std::vector<int32_t> ids = ids_of(args, t, scores);
    double sum = kMinSum;
    for (const int32_t id : ids) sum += scores[static_cast<size_t>(id)];
    for (size_t j = 0; j < ids.size(); ++j) {
      out_ids[j] = ids[j];
      weights[j] = static_cast<float>(scores[static_cast<size_t>(ids[j])] / sum *
                                      args.routed_scaling_factor);
    }
  }
  if (args.slots.count != nullptr) return device_make_slots(args.slots, stream);
  return {};
}

Result<void> device_quantize(const DeviceQuantizeArgs& args, device::Stream&) {
  for (int64_t t = 0; t < args.m; ++t) {
    std::vector<float> row;
    if (args.x_bf16 == nullptr) {
      row = sum_row(args.x_sums, args.m, args.k, t);
    } else {
      for (int64_t i = t * args.k; i < (t + 1) * args.k; ++i) {
        row.push_back(quant::bf16_to_f32(static_cast<const uint16_t*>(args.x_bf16)[i]));
      }
    }
    write_forms(args.y, args.m, t, row);
  }
  return {};
}

}  // namespace nibble::kernels::reference
