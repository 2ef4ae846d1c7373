#include "engine/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "base/random.h"

namespace nibble::engine {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
// Below this, dividing by the temperature would overflow, and the distribution is a point anyway.
constexpr float kGreedyTemperature = 1e-5F;
// First size of the nucleus search, and its growth: most nuclei of trained models are smaller.
constexpr size_t kNucleusStart = 64;
constexpr size_t kNucleusGrowth = 8;
// Passes over a row keep so many running results: with one, each element would wait for the last.
constexpr size_t kLanes = 16;

bool has_penalties(const SamplingParams& params) {
  return params.repetition_penalty != 1.0F || params.presence_penalty != 0.0F ||
         params.frequency_penalty != 0.0F;
}

template <class T>
T& at(std::span<T> values, int32_t token_id) {
  return values[static_cast<size_t>(token_id)];
}

void apply_penalties(const SamplingParams& params,
                     const TokenCounts& counts,
                     std::span<float> logits) {
  for (const auto& [token_id, num_generated] : counts.num_generated()) {
    float& logit = at(logits, token_id);
    logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    if (num_generated == 0) continue;
    logit -= params.frequency_penalty * static_cast<float>(num_generated);
    logit -= params.presence_penalty;
  }
}

void keep_allowed(std::span<const uint64_t> allowed, std::span<float> logits) {
  constexpr size_t kWordBits = 64;
  for (size_t word = 0; word < allowed.size(); ++word) {
    if (allowed[word] == ~uint64_t{0}) continue;
    const size_t begin = word * kWordBits;
    const size_t end = std::min(begin + kWordBits, logits.size());
    for (size_t id = begin; id < end; ++id) {
      if ((allowed[word] >> (id - begin) & 1) == 0) logits[id] = kMinusInfinity;
    }
  }
}

// Step 2. A constraint that allows nothing but forbidden tokens has its way.
void mask(const SamplerInput& input, std::span<float> logits) {
  keep_allowed(input.allowed, logits);
  const auto is_forbidden = [&](int32_t token_id) {
    const std::span<const int32_t> ids = input.forbidden_ids;
    return std::find(ids.begin(), ids.end(), token_id) != ids.end();
  };
  if (!input.allowed.empty() && !input.forbidden_ids.empty()) {
    bool has_other = false;
    for (size_t id = 0; id < logits.size() && !has_other; ++id) {
      has_other = logits[id] != kMinusInfinity && !is_forbidden(static_cast<int32_t>(id));
    }
    if (!has_other) return;
  }
  for (const int32_t token_id : input.forbidden_ids) at(logits, token_id) = kMinusInfinity;
}

// Steps 1 to 3. Gives the input itself when they change nothing.
std::span<const float> adjusted_logits(const SamplingParams& params,
                                       const SamplerInput& input,
                                       SamplerScratch& scratch) {
  const bool is_penalised = input.counts != nullptr && has_penalties(params);
  const bool is_masked = !input.forbidden_ids.empty() || !input.allowed.empty();
  if (params.logit_bias.empty() && !is_masked && !is_penalised) return input.logits;
  scratch.logits.assign(input.logits.begin(), input.logits.end());
  const std::span<float> logits = scratch.logits;
  for (const auto& [token_id, bias] : params.logit_bias) at(logits, token_id) += bias;
  if (is_masked) mask(input, logits);
  if (is_penalised) apply_penalties(params, *input.counts, logits);
  return logits;
}

// "More probable than": descending logit, lower id first. A strict total order of the vocabulary.
struct MoreProbable {
  std::span<const float> logits;

  bool operator()(int32_t a, int32_t b) const {
    const float x = at(logits, a);
    const float y = at(logits, b);
    return x != y ? x > y : a < b;
  }
};

// Probabilities up to a common divisor: 1 for the most probable token.
struct Weights {
  std::span<const float> logits;
  float max_logit = 0;
  float temperature = 1;

  double operator()(int32_t token_id) const {
    return static_cast<double>(std::exp((at(logits, token_id) - max_logit) / temperature));
  }
  double sum(std::span<const int32_t> token_ids) const {
    double total = 0;
    for (const int32_t token_id : token_ids) total += (*this)(token_id);
    return total;
  }
};

// Moves the `count` most probable tokens to the front, in order, and returns them.
std::span<int32_t> select_front(std::span<int32_t> token_ids,
                                size_t count,
                                const MoreProbable& more_probable) {
  const auto middle = token_ids.begin() + static_cast<std::ptrdiff_t>(count);
  if (count < token_ids.size()) {
    std::nth_element(token_ids.begin(), middle, token_ids.end(), more_probable);
  }
  std::sort(token_ids.begin(), middle, more_probable);
  return token_ids.first(count);
}

// Step 6.
std::span<int32_t> keep_top_k(int32_t top_k,
                              std::span<int32_t> token_ids,
                              const MoreProbable& more_probable) {
  const auto count = static_cast<size_t>(std::max(top_k, 0));
  if (count == 0 || count >= token_ids.size()) return token_ids;
  return select_front(token_ids, count, more_probable);
}

// Length of the shortest prefix whose weight reaches `target`; 0 when none does.
size_t prefix_reaching(double target, std::span<const int32_t> sorted, const Weights& weights) {
  double total = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    total += weights(sorted[i]);
    if (total >= target) return i + 1;
  }
  return 0;
}

// Step 7: looks for the nucleus among the 64, 512, 4096, ... most probable tokens.
std::span<int32_t> keep_top_p(float top_p,
                              std::span<int32_t> token_ids,
                              const MoreProbable& more_probable,
                              const Weights& weights) {
  if (top_p >= 1.0F) return token_ids;
  const double target = static_cast<double>(top_p) * weights.sum(token_ids);
  for (size_t count = kNucleusStart; count < token_ids.size(); count *= kNucleusGrowth) {
    const auto front = select_front(token_ids, count, more_probable);
    const size_t length = prefix_reaching(target, front, weights);
    if (length > 0) return front.first(length);
  }
  select_front(token_ids, token_ids.size(), more_probable);
  const size_t length = prefix_reaching(target, token_ids, weights);
  return length > 0 ? token_ids.first(length) : token_ids;  // rounding can hide the last share
}

// Step 8.
std::span<int32_t> keep_min_p(float min_p, std::span<int32_t> token_ids, const Weights& weights) {
  if (min_p <= 0.0F) return token_ids;
  const auto end = std::remove_if(token_ids.begin(), token_ids.end(), [&](int32_t token_id) {
    return weights(token_id) < static_cast<double>(min_p);
  });
  return token_ids.first(static_cast<size_t>(end - token_ids.begin()));
}

// Step 9: inverts the cumulative weights in the order given.
int32_t pick(std::span<const int32_t> token_ids, const Weights& weights, double uniform) {
  const double target = uniform * weights.sum(token_ids);
  double total = 0;
  int32_t last_possible = token_ids.front();
  for (const int32_t token_id : token_ids) {
    const double weight = weights(token_id);
    if (weight <= 0) continue;
    total += weight;
    if (total > target) return token_id;
    last_possible = token_id;
  }
  return last_possible;
}

// Of the first of the largest; 0 when all are -infinity.
size_t index_of_max(std::span<const float> values) {
  std::array<float, kLanes> lanes;
  lanes.fill(kMinusInfinity);
  const size_t num_whole = values.size() / kLanes * kLanes;
  for (size_t i = 0; i < num_whole; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) lanes[j] = std::max(lanes[j], values[i + j]);
  }
  float max = *std::max_element(lanes.begin(), lanes.end());
  for (const float value : values.subspan(num_whole)) max = std::max(max, value);
  const auto first = std::find(values.begin(), values.end(), max);
  return first == values.end() ? 0 : static_cast<size_t>(first - values.begin());
}

// log(sum(exp(logits))), with the sum taken in double, in id order.
double log_sum_exp(std::span<const float> logits) {
  const float max_logit = logits[index_of_max(logits)];
  double total = 0;
  for (const float logit : logits) total += static_cast<double>(std::exp(logit - max_logit));
  return static_cast<double>(max_logit) + std::log(total);
}

// The `count` most probable tokens, in order: one pass with a short sorted list, since `count` is
// at most 20.
std::vector<int32_t> most_probable(std::span<const float> logits, int32_t count) {
  const MoreProbable more_probable{logits};
  std::vector<int32_t> best;
  for (int32_t id = 0; id < static_cast<int32_t>(logits.size()); ++id) {
    const bool is_full = static_cast<int32_t>(best.size()) == count;
    if (count == 0 || (is_full && !more_probable(id, best.back()))) continue;
    if (is_full) best.pop_back();
    best.insert(std::upper_bound(best.begin(), best.end(), id, more_probable), id);
  }
  return best;
}

}  // namespace

TokenCounts::TokenCounts(const SamplingParams& params, std::span<const int32_t> prompt_ids)
    : is_used_(has_penalties(params)) {
  if (params.repetition_penalty == 1.0F) return;
  for (const int32_t token_id : prompt_ids) num_generated_.try_emplace(token_id, 0);
}

void TokenCounts::add_generated(int32_t token_id) {
  if (is_used_) ++num_generated_[token_id];
}

bool is_greedy(const SamplingParams& params) { return params.temperature < kGreedyTemperature; }

int32_t sample(const SamplingParams& params, const SamplerInput& input, SamplerScratch& scratch) {
  DCHECK(!input.logits.empty());
  const std::span<const float> logits = adjusted_logits(params, input, scratch);
  const size_t best = index_of_max(logits);
  if (is_greedy(params) || logits[best] == kMinusInfinity) {
    return static_cast<int32_t>(best);
  }
  scratch.token_ids.resize(logits.size());
  std::iota(scratch.token_ids.begin(), scratch.token_ids.end(), 0);
  const MoreProbable more_probable{logits};
  const Weights weights{
      .logits = logits, .max_logit = logits[best], .temperature = params.temperature};
  std::span<int32_t> token_ids = scratch.token_ids;
  token_ids = keep_top_k(params.top_k, token_ids, more_probable);
  token_ids = keep_top_p(params.top_p, token_ids, more_probable, weights);
  token_ids = keep_min_p(params.min_p, token_ids, weights);
  return pick(token_ids, weights, uniform_at(input.seed, input.position));
}

// x - x is 0 for every finite x and NaN for all others, which a sum keeps.
bool all_finite(std::span<const float> logits) {
  std::array<float, kLanes> lanes = {};
  const size_t num_whole = logits.size() / kLanes * kLanes;
  for (size_t i = 0; i < num_whole; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) lanes[j] += logits[i + j] - logits[i + j];
  }
  float sum = std::accumulate(lanes.begin(), lanes.end(), 0.0F);
  for (const float logit : logits.subspan(num_whole)) sum += logit - logit;
  return sum == 0.0F;
}

bool all_equal(std::span<const float> logits) {
  return std::all_of(logits.begin(), logits.end(), [&](float x) { return x == logits.front(); });
}

TokenLogprob token_logprob(std::span<const float> logits, int32_t token_id, int32_t num_top) {
  const double normaliser = log_sum_exp(logits);
  const auto logprob_of = [&](int32_t id) {
    return static_cast<float>(static_cast<double>(at(logits, id)) - normaliser);
  };
  const auto num_before = std::count_if(
      logits.begin(), logits.end(), [&](float logit) { return logit > at(logits, token_id); });
  TokenLogprob result{.token_id = token_id,
                      .logprob = logprob_of(token_id),
                      .rank = static_cast<int32_t>(num_before) + 1,
                      .top = {}};
  for (const int32_t id : most_probable(logits, num_top))
    result.top.emplace_back(id, logprob_of(id));
  return result;
}

}  // namespace nibble::engine
