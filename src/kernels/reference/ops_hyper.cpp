// Hyper-connections (specification 3.3): read, write and the head's read.
#include <cmath>
#include <vector>

#include "kernels/reference/dot.h"
#include "kernels/reference/hyper_split.h"
#include "kernels/reference/ops_launchers.h"

namespace nibble::kernels::reference {
namespace {

// mix[j] = (flat . fn[j, :]) / sqrt(mean(flat^2) + eps) for each of `num_rows` rows of fn.
std::vector<double> mixing(
    const float* flat, int64_t width, const float* fn, int64_t num_rows, float eps) {
  const double squares = dot(flat, flat, width);
  const double inverse_rms = 1.0 / std::sqrt(squares / static_cast<double>(width) + eps);

  std::vector<double> mix(static_cast<size_t>(num_rows));
  for (int64_t j = 0; j < num_rows; ++j) {
    mix[static_cast<size_t>(j)] = dot(fn + j * width, flat, width) * inverse_rms;
  }
  return mix;
}

void store(const std::vector<double>& values, float* out) {
  for (size_t i = 0; i < values.size(); ++i) out[i] = static_cast<float>(values[i]);
}

}  // namespace

Result<void> hyper_pre(const HyperPreArgs& args, device::Stream&) {
  const int32_t mult = args.hc_mult;
  const int64_t width = args.state.shape[1];
  for (int64_t t = 0; t < args.state.num_rows(); ++t) {
    const float* state = args.state.row<float>(t);
    const auto mix = mixing(state, width, args.fn, int64_t{2 + mult} * mult, args.norm_eps);
    const HyperSplit split =
        split_mix(mix, args.base, args.scale, mult, args.sinkhorn_iters, args.hc_eps);
    read_streams(state, split.pre, width / mult, args.x.row<float>(t));
    store(split.post, args.post.row<float>(t));
    store(split.comb, args.comb.row<float>(t));
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
    const auto mix = mixing(state, width, args.fn, mult, args.norm_eps);
    const HyperSplit split = split_mix(mix, args.base, args.scale, mult, 0, args.hc_eps);
    read_streams(state, split.pre, width / mult, args.x.row<float>(t));
  }
  return {};
}

}  // namespace nibble::kernels::reference
