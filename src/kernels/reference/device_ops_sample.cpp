// Sampling on a GPU: steps 4 to 9 of engine/sampler.h.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/random.h"
#include "kernels/reference/device_ops_launchers.h"
#include "kernels/reference/device_rows.h"

namespace nibble::kernels::reference {
namespace {

constexpr float kGreedyTemperature = 1e-5f;

// The tokens of one row that are still possible, and their probabilities up to a common divisor.
class Candidates final {
 public:
  Candidates(const std::vector<float>& logits, int32_t best, float temperature)
      : logits_(logits), best_(best), temperature_(temperature), ids_(logits.size()) {
    std::iota(ids_.begin(), ids_.end(), 0);
  }

  void keep_top_k(int32_t top_k) {
    const auto count = static_cast<size_t>(std::max(top_k, 0));
    if (count == 0 || count >= ids_.size()) return;
    sort();
    ids_.resize(count);
  }
  void keep_top_p(float top_p) {
    if (top_p >= 1.0f) return;
    const double target = double{top_p} * total();
    sort();
    double sum = 0;
    for (size_t i = 0; i < ids_.size(); ++i) {
      sum += weight(ids_[i]);
      if (sum < target) continue;
      ids_.resize(i + 1);
      return;
    }
  }
  void keep_min_p(float min_p) {
    if (min_p <= 0) return;
    std::erase_if(ids_, [&](int32_t id) { return weight(id) < double{min_p}; });
  }
  int32_t pick(double uniform) const {
    const double target = uniform * total();
    double sum = 0;
    int32_t last_possible = ids_.front();
    for (const int32_t id : ids_) {
      if (weight(id) <= 0) continue;
      sum += weight(id);
      if (sum > target) return id;
      last_possible = id;
    }
    return last_possible;
  }

 private:
  float logit(int32_t id) const { return logits_[static_cast<size_t>(id)]; }
  double weight(int32_t id) const {
    return double{std::exp((logit(id) - logit(best_)) / temperature_)};
  }
  double total() const {
    double sum = 0;
    for (const int32_t id : ids_) sum += weight(id);
    return sum;
  }
  // The most probable first, lower ids first among equals.
  void sort() {
    std::stable_sort(
        ids_.begin(), ids_.end(), [&](int32_t a, int32_t b) { return logit(a) > logit(b); });
  }

  const std::vector<float>& logits_;
  int32_t best_;
  float temperature_;
  std::vector<int32_t> ids_;
};

template <class T>
T setting(const T* values, int64_t t, T otherwise) {
  return values == nullptr ? otherwise : values[t];
}

int32_t sample_row(const DeviceSampleArgs& args, int64_t t) {
  const std::vector<float> logits = sum_row(args.logits, args.m, args.vocab, t);
  const auto largest = std::max_element(logits.begin(), logits.end());
  const auto best = static_cast<int32_t>(largest - logits.begin());
  const float temperature = setting(args.temperatures, t, 0.0f);
  if (temperature < kGreedyTemperature || *largest == -std::numeric_limits<float>::infinity()) {
    return best;
  }
  Candidates candidates(logits, best, temperature);
  candidates.keep_top_k(setting(args.top_k, t, 0));
  candidates.keep_top_p(setting(args.top_p, t, 1.0f));
  candidates.keep_min_p(setting(args.min_p, t, 0.0f));
  return candidates.pick(uniform_at(args.seeds[t], args.draws[t]));
}

int32_t outcome_of(const DeviceSampleArgs& args, int64_t t) {
  const std::vector<float> logits = sum_row(args.logits, args.m, args.vocab, t);
  const auto is_finite = [](float logit) { return std::isfinite(logit); };
  if (!std::all_of(logits.begin(), logits.end(), is_finite)) return DeviceSampleArgs::kNotFinite;
  const auto is_first = [&](float logit) { return logit == logits.front(); };
  const bool is_flat = logits.size() > 1 && std::all_of(logits.begin(), logits.end(), is_first);
  return is_flat ? DeviceSampleArgs::kAllEqual : args.ids[t];
}

}  // namespace

Result<void> device_sample(const DeviceSampleArgs& args, device::Stream&) {
  for (int64_t t = 0; t < args.m; ++t) {
    args.ids[t] = sample_row(args, t);
    if (args.outcomes != nullptr) args.outcomes[t] = outcome_of(args, t);
  }
  return {};
}

}  // namespace nibble::kernels::reference
