// RMS norm (specification 3.2) and rotary embedding (8).
#include <cmath>

#include "kernels/reference/dot.h"
#include "kernels/reference/ops_launchers.h"

namespace nibble::kernels::reference {

Result<void> rms_norm(const RmsNormArgs& args, device::Stream&) {
  const int64_t k = args.x.shape[1];
  for (int64_t t = 0; t < args.x.num_rows(); ++t) {
    const float* x = args.x.row<float>(t);
    float* y = args.y.row<float>(t);
    const double inverse_rms = 1.0 / std::sqrt(dot(x, x, k) / static_cast<double>(k) + args.eps);
    for (int64_t i = 0; i < k; ++i) {
      const float gamma = args.gamma == nullptr ? 1.0f : args.gamma[i];
      y[i] = static_cast<float>(x[i] * inverse_rms * gamma);
    }
  }
  return {};
}

Result<void> rope(const RopeArgs& args, device::Stream&) {
  const int64_t heads = args.x.shape[1];
  const int64_t d = args.x.shape[2];
  const auto num_freqs = static_cast<int64_t>(args.freqs.size());
  for (int64_t t = 0; t < args.x.num_rows(); ++t) {
    for (int64_t i = 0; i < num_freqs; ++i) {
      // The product is rounded to f32 before the sine, as the model's reference code does.
      const float angle = static_cast<float>(args.positions[static_cast<size_t>(t)]) *
                          args.freqs[static_cast<size_t>(i)];
      const double cos = std::cos(static_cast<double>(angle));
      const double sin = std::sin(static_cast<double>(angle)) * (args.inverse ? -1.0 : 1.0);
      for (int64_t h = 0; h < heads; ++h) {
        float* pair = args.x.row<float>(t) + (h + 1) * d - 2 * (num_freqs - i);
        const double x0 = pair[0];
        const double x1 = pair[1];
        pair[0] = static_cast<float>(x0 * cos - x1 * sin);
        pair[1] = static_cast<float>(x0 * sin + x1 * cos);
      }
    }
  }
  return {};
}

}  // namespace nibble::kernels::reference
