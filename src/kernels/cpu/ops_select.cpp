// The scalar part of expert choice.
#include <limits>

#include "kernels/cpu/ops_launch.h"

namespace nibble::kernels::cpu {

void choose_experts(const float* scores, const float* bias, int64_t n, int64_t k, int32_t* ids) {
  const auto rank = [scores, bias](int64_t id) {
    const float value = scores[id] + (bias == nullptr ? 0.0f : bias[id]);
    return value == value ? value : -std::numeric_limits<float>::infinity();
  };
  // ids[0 .. count) is sorted, best first. A later id moves only past strictly lower ranks.
  int64_t count = 0;
  for (int64_t id = 0; id < n; ++id) {
    const float value = rank(id);
    if (count == k && !(value > rank(ids[k - 1]))) continue;
    int64_t place = count < k ? count++ : k - 1;
    for (; place > 0 && value > rank(ids[place - 1]); --place) ids[place] = ids[place - 1];
    ids[place] = static_cast<int32_t>(id);
  }
}

void weigh_experts(
    const float* scores, const int32_t* ids, int64_t k, float scaling_factor, float* weights) {
  float sum = 1e-20f;  // keeps 0 / 0 away when every chosen score underflows
  for (int64_t j = 0; j < k; ++j) sum += scores[ids[j]];
  for (int64_t j = 0; j < k; ++j) weights[j] = scores[ids[j]] / sum * scaling_factor;
}

}  // namespace nibble::kernels::cpu
