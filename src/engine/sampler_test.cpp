#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>

#include "base/random.h"
#include "device/emulated_gpu.h"
#include "kernels/kernel.h"

namespace nibble::engine {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

SamplingParams greedy() { return {.temperature = 0.0F}; }

int32_t sample_at(const SamplingParams& params, std::span<const float> logits, uint64_t position) {
  SamplerScratch scratch;
  return sample(params, {.logits = logits, .seed = 9, .position = position}, scratch);
}

// Relative frequency of each drawn token over `num_draws` positions.
std::map<int32_t, double> frequencies(const SamplingParams& params,
                                      std::span<const float> logits,
                                      int num_draws = 20'000) {
  std::map<int32_t, double> result;
  for (int i = 0; i < num_draws; ++i) {
    result[sample_at(params, logits, static_cast<uint64_t>(i))] += 1.0 / num_draws;
  }
  return result;
}

// Logits of a distribution.
std::vector<float> logs(std::vector<double> probabilities) {
  std::vector<float> result;
  for (const double p : probabilities) result.push_back(static_cast<float>(std::log(p)));
  return result;
}

TEST(Sampler, GreedyTakesTheLowestIdOnTies) {
  const std::vector<float> logits = {1, 3, 2, 3};
  EXPECT_EQ(sample_at(greedy(), logits, 0), 1);
  EXPECT_EQ(sample_at({.temperature = 1e-6F}, logits, 0), 1);
}

TEST(Sampler, AddsLogitBias) {
  const std::vector<float> logits = {1, 3, 2};
  SamplingParams params = greedy();
  params.logit_bias = {{1, -2.5F}, {0, 0.5F}};
  EXPECT_EQ(sample_at(params, logits, 0), 2);
  params.logit_bias = {{1, -100.0F}, {0, 1.5F}};
  EXPECT_EQ(sample_at(params, logits, 0), 0);
}

TEST(Sampler, NeverPicksForbiddenTokens) {
  const std::vector<float> logits = {1, 3, 2};
  const std::vector<int32_t> forbidden = {1, 2};
  SamplerScratch scratch;
  SamplingParams params{.temperature = 2.0F};
  params.logit_bias = {{1, 100.0F}};
  for (uint64_t i = 0; i < 100; ++i) {
    const SamplerInput input{
        .logits = logits, .forbidden_ids = forbidden, .seed = 1, .position = i};
    EXPECT_EQ(sample(params, input, scratch), 0);
  }
}

// logits 4, 4, -1, 4: token 0 in the prompt only, 1 twice in the output, 2 once in the output.
struct PenaltyCase {
  SamplingParams params;
  std::vector<float> expected;
};

TEST(Sampler, AppliesEachPenaltyByItsDefinition) {
  const std::vector<float> logits = {4, 4, -1, 4};
  std::vector<PenaltyCase> cases(4);
  cases[0].params.repetition_penalty = 2.0F;
  cases[0].expected = {2, 2, -2, 4};
  cases[1].params.frequency_penalty = 0.5F;
  cases[1].expected = {4, 3, -1.5F, 4};
  cases[2].params.presence_penalty = 0.5F;
  cases[2].expected = {4, 3.5F, -1.5F, 4};
  cases[3].params.repetition_penalty = 2.0F;
  cases[3].params.frequency_penalty = 0.5F;
  cases[3].params.presence_penalty = 0.25F;
  cases[3].expected = {2, 0.75F, -2.75F, 4};
  for (const PenaltyCase& c : cases) {
    TokenCounts counts(c.params, std::vector<int32_t>{0});
    for (const int32_t token : {1, 2, 1}) counts.add_generated(token);
    SamplerScratch scratch;
    sample(c.params, {.logits = logits, .counts = &counts}, scratch);
    EXPECT_EQ(scratch.logits, c.expected) << "case " << &c - cases.data();
  }
}

TEST(Sampler, CountsNothingWithoutPenalties) {
  TokenCounts counts(SamplingParams{}, std::vector<int32_t>{0, 1});
  counts.add_generated(3);
  EXPECT_TRUE(counts.num_generated().empty());
}

TEST(Sampler, FollowsTheDistribution) {
  const auto logits = logs({0.5, 0.3, 0.15, 0.05});
  const auto drawn = frequencies({}, logits);
  EXPECT_NEAR(drawn.at(0), 0.5, 0.02);
  EXPECT_NEAR(drawn.at(1), 0.3, 0.02);
  EXPECT_NEAR(drawn.at(2), 0.15, 0.02);
  EXPECT_NEAR(drawn.at(3), 0.05, 0.02);
  const auto flat = frequencies({.temperature = 2.0F}, logits);  // p^(1/2), renormalised
  const double total = std::sqrt(0.5) + std::sqrt(0.3) + std::sqrt(0.15) + std::sqrt(0.05);
  EXPECT_NEAR(flat.at(0), std::sqrt(0.5) / total, 0.02);
  EXPECT_NEAR(flat.at(3), std::sqrt(0.05) / total, 0.02);
}

TEST(Sampler, TopKKeepsTheBestWithLowerIdsFirst) {
  const auto drawn = frequencies({.top_k = 2}, logs({0.2, 0.4, 0.2, 0.2}), 5000);
  EXPECT_EQ(drawn.size(), 2U);
  EXPECT_NEAR(drawn.at(1), 2.0 / 3, 0.03);
  EXPECT_NEAR(drawn.at(0), 1.0 / 3, 0.03);
}

TEST(Sampler, TopPKeepsTheShortestPrefixThatReachesIt) {
  const auto logits = logs({0.1, 0.5, 0.25, 0.15});
  EXPECT_EQ(frequencies({.top_p = 0.49F}, logits, 2000).size(), 1U);
  EXPECT_EQ(frequencies({.top_p = 0.51F}, logits, 2000).size(), 2U);
  EXPECT_EQ(frequencies({.top_p = 0.89F}, logits, 2000).size(), 3U);
  EXPECT_EQ(frequencies({.top_p = 0.95F}, logits, 2000).size(), 4U);
  EXPECT_EQ(frequencies({.top_p = 0.0F}, logits, 2000).size(), 1U);
  // The share is of what top_k left: 0.5 / 0.75 reaches 0.6.
  EXPECT_EQ(frequencies({.top_p = 0.6F, .top_k = 2}, logits, 2000).size(), 1U);
}

TEST(Sampler, MinPIsRelativeToTheBest) {
  const auto logits = logs({0.1, 0.5, 0.25, 0.15});
  EXPECT_EQ(frequencies({.min_p = 0.4F}, logits, 2000).size(), 2U);
  EXPECT_EQ(frequencies({.min_p = 1.0F}, logits, 2000).size(), 1U);
}

// A nucleus larger than the first search sizes is the same as by a full sort.
TEST(Sampler, FindsLargeNucleiInLargeVocabularies) {
  std::vector<float> logits(20'000);
  for (size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>(uniform_at(3, i));
  }
  std::vector<float> sorted = logits;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  double total = 0;
  for (const float x : sorted) total += std::exp(static_cast<double>(x));
  double sum = 0;
  size_t nucleus = 0;
  while (sum < 0.3 * total) sum += std::exp(static_cast<double>(sorted[nucleus++]));
  const float threshold = sorted[nucleus - 1];
  SamplerScratch scratch;
  for (uint64_t i = 0; i < 200; ++i) {
    const int32_t token =
        sample({.top_p = 0.3F}, {.logits = logits, .seed = 5, .position = i}, scratch);
    EXPECT_GE(logits[static_cast<size_t>(token)], threshold - 1e-4F);
  }
}

TEST(Sampler, DependsOnSeedAndPositionOnly) {
  const auto logits = logs({0.25, 0.25, 0.25, 0.25});
  std::vector<int32_t> first;
  std::vector<int32_t> second;
  for (uint64_t i = 0; i < 64; ++i) first.push_back(sample_at({}, logits, i));
  for (uint64_t i = 64; i-- > 0;) second.insert(second.begin(), sample_at({}, logits, i));
  EXPECT_EQ(first, second);
}

// The op of GPUs means the same.
TEST(Sampler, AgreesWithTheDeviceOp) {
  struct Settings {
    float temperature = 1.0F;
    int32_t top_k = 0;
    float top_p = 1.0F;
    float min_p = 0.0F;
  };
  constexpr int32_t kRows = 300, kVocab = 1000;
  const Settings all[] = {{.temperature = 0.0F},
                          {},
                          {.top_k = 7},
                          {.top_p = 0.7F},
                          {.temperature = 0.3F, .min_p = 0.1F},
                          {.temperature = 2.0F, .top_k = 500, .top_p = 0.9F, .min_p = 0.01F}};
  std::vector<float> logits(size_t{kRows} * kVocab);
  for (size_t i = 0; i < logits.size(); ++i) {
    logits[i] = std::round(static_cast<float>(uniform_at(1, i)) * 64.0F) / 16.0F;  // many ties
  }
  const auto device = device::make_emulated_gpu(1).value();
  const kernels::Route route =
      kernels::route({.op = kernels::Op::kSample}, device->info(), {.allow_reference = true})
          .value();
  for (const Settings& settings : all) {
    const std::vector<float> temperatures(kRows, settings.temperature);
    const std::vector<int32_t> top_k(kRows, settings.top_k);
    const std::vector<float> top_p(kRows, settings.top_p);
    const std::vector<float> min_p(kRows, settings.min_p);
    std::vector<uint64_t> seeds(kRows, 9), draws(kRows);
    std::iota(draws.begin(), draws.end(), uint64_t{0});
    std::vector<int32_t> ids(kRows);
    const kernels::DeviceSampleArgs args{.logits = {.data = logits.data()},
                                         .m = kRows,
                                         .vocab = kVocab,
                                         .temperatures = temperatures.data(),
                                         .top_k = top_k.data(),
                                         .top_p = top_p.data(),
                                         .min_p = min_p.data(),
                                         .seeds = seeds.data(),
                                         .draws = draws.data(),
                                         .ids = ids.data()};
    ASSERT_TRUE(route.launch(args, device->stream()).ok());
    const SamplingParams params{.temperature = settings.temperature,
                                .top_p = settings.top_p,
                                .min_p = settings.min_p,
                                .top_k = settings.top_k};
    for (size_t t = 0; t < kRows; ++t) {
      const auto row = std::span(logits).subspan(t * kVocab, kVocab);
      EXPECT_EQ(ids[t], sample_at(params, row, t)) << t;
    }
  }
}

TEST(Sampler, GivesLogprobsOfTheModelWithAlternatives) {
  const auto logits = logs({0.1, 0.5, 0.15, 0.25});
  const TokenLogprob result = token_logprob(logits, 2, 3);
  EXPECT_EQ(result.token_id, 2);
  EXPECT_FLOAT_EQ(result.logprob, std::log(0.15F));
  EXPECT_EQ(result.rank, 3);
  ASSERT_EQ(result.top.size(), 3U);
  EXPECT_EQ(result.top[0].first, 1);
  EXPECT_EQ(result.top[1].first, 3);
  EXPECT_EQ(result.top[2].first, 2);
  EXPECT_FLOAT_EQ(result.top[0].second, std::log(0.5F));
  EXPECT_FLOAT_EQ(result.top[1].second, std::log(0.25F));
  EXPECT_TRUE(token_logprob(logits, 0, 0).top.empty());
  EXPECT_EQ(token_logprob(logits, 0, 20).top.size(), 4U);
}

TEST(Sampler, OrdersEqualAlternativesById) {
  const std::vector<float> logits = {1, 2, 2, 2, 0};
  const auto top = token_logprob(logits, 0, 2).top;
  EXPECT_EQ(top[0].first, 1);
  EXPECT_EQ(top[1].first, 2);
}

TEST(Sampler, LargeLogitsKeepFiniteLogprobs) {
  const std::vector<float> logits = {3e38F, -3e38F};
  EXPECT_EQ(token_logprob(logits, 0, 0).logprob, 0.0F);
}

TEST(Sampler, SeesNonFiniteLogits) {
  EXPECT_TRUE(all_finite(std::vector<float>{0, 3e38F}));
  EXPECT_TRUE(all_finite(std::vector<float>(100, -3e38F)));
  for (size_t at = 0; at < 40; ++at) {
    for (const float fault : {kInfinity, -kInfinity, std::nanf("")}) {
      std::vector<float> logits(40, 3e38F);
      logits[at] = fault;
      EXPECT_FALSE(all_finite(logits)) << at;
    }
  }
}

TEST(Sampler, GreedyTakesTheFirstOfEqualsWhereverItIs) {
  const SamplingParams greedy{.temperature = 0};
  SamplerScratch scratch;
  for (size_t size = 1; size <= 50; ++size) {
    for (size_t first = 0; first < size; ++first) {
      std::vector<float> logits(size, -5.0F);
      for (size_t i = first; i < size; i += 3) logits[i] = -1.0F;
      EXPECT_EQ(sample(greedy, {.logits = logits}, scratch), static_cast<int32_t>(first));
    }
  }
}

}  // namespace
}  // namespace nibble::engine
