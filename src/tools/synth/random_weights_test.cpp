#include "tools/synth/random_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/hash.h"
#include "quant/numeric.h"

namespace nibble::tools {
namespace {

using quant::Format;
using quant::QuantizedWeight;

using MakeRows = QuantizedWeight (*)(uint64_t, int64_t, int64_t, int64_t);

std::vector<std::byte> join(std::vector<std::byte> a, const std::vector<std::byte>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::vector<float> values_of(const QuantizedWeight& weight) {
  std::vector<float> values(static_cast<size_t>(weight.n * weight.k));
  quant::dequantize(weight.view(), values);
  return values;
}

class RandomRows : public ::testing::TestWithParam<MakeRows> {};

TEST_P(RandomRows, DoNotDependOnSlabs) {
  const QuantizedWeight whole = GetParam()(7, 160, 0, 300);
  const QuantizedWeight first = GetParam()(7, 160, 0, 128);
  const QuantizedWeight rest = GetParam()(7, 160, 128, 172);
  EXPECT_EQ(whole.codes, join(first.codes, rest.codes));
  EXPECT_EQ(whole.scales, join(first.scales, rest.scales));
  EXPECT_NE(GetParam()(8, 160, 0, 300).codes, whole.codes);
}

// Decoded and encoded again, scales and values are the same (codes but for -0).
TEST_P(RandomRows, HaveTheScalesOfTheCeilRule) {
  for (const int64_t k : {32, 160, 1024}) {
    const QuantizedWeight weight = GetParam()(11, k, 0, 200);
    const std::vector<float> values = values_of(weight);
    for (const float value : values) ASSERT_EQ(value, quant::round_to_bf16(value));
    const QuantizedWeight again = quant::quantize(weight.format, values, weight.n, k);
    EXPECT_EQ(again.scales, weight.scales);
    EXPECT_EQ(values_of(again), values);
  }
}

TEST_P(RandomRows, LookTrained) {
  constexpr int64_t kN = 512, kK = 2048;
  const QuantizedWeight weight = GetParam()(3, kK, 0, kN);
  double sum = 0, sum2 = 0;
  for (const float value : values_of(weight)) {
    sum += static_cast<double>(value);
    sum2 += static_cast<double>(value) * static_cast<double>(value);
  }
  const double count = kN * kK;
  EXPECT_NEAR(sum / count, 0, 1e-3);
  EXPECT_GT(std::sqrt(sum2 / count) * std::sqrt(double{kK}), 0.5);
  EXPECT_LT(std::sqrt(sum2 / count) * std::sqrt(double{kK}), 2.0);
  const auto [low, high] = std::minmax_element(weight.scales.begin(), weight.scales.end());
  const int spread = std::to_integer<int>(*high) - std::to_integer<int>(*low);
  EXPECT_GE(spread, 3);
  EXPECT_LE(spread, 6);  // far from the 17 that an NVFP4 cast can take
}

INSTANTIATE_TEST_SUITE_P(Formats,
                         RandomRows,
                         ::testing::Values(&random_mxfp4_rows, &random_fp8_rows),
                         [](const auto& param) { return param.index == 0 ? "mxfp4" : "fp8"; });

// Bytes of a seed are a promise: benchmarks of different days compare the same weights.
TEST(RandomWeights, StayWhatTheyAre) {
  const auto hash = [](const QuantizedWeight& weight) {
    return hash_bytes(weight.codes, hash_bytes(weight.scales));
  };
  EXPECT_EQ(hash(random_mxfp4_rows(1, 256, 0, 64)), 4395985547695690841u);
  EXPECT_EQ(hash(random_fp8_rows(1, 256, 0, 64)), 11777430289062076847u);
  EXPECT_EQ(tensor_seed(1, "layers.0.ffn.experts.0.w1"), 16721685013637124380u);
}

TEST(RandomWeights, ScalesAloneAreThoseOfTheRows) {
  std::vector<uint8_t> scales(200 * 8);
  fill_mxfp4_scales(5, 200, 256, scales);
  const QuantizedWeight weight = random_mxfp4_rows(5, 256, 0, 200);
  const auto bytes = std::as_bytes(std::span(scales));
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), weight.scales.begin(), weight.scales.end()));
}

TEST(RandomNormal, HasMeanZeroAndDeviationOne) {
  double sum = 0, sum2 = 0;
  constexpr int kCount = 100'000;
  for (uint64_t i = 0; i < kCount; ++i) {
    const auto x = static_cast<double>(random_normal(9, i));
    ASSERT_LT(std::fabs(x), 3.5);
    sum += x;
    sum2 += x * x;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.02);
  EXPECT_NEAR(sum2 / kCount, 1, 0.02);
}

TEST(FillExpertIds, GivesDistinctIdsInRange) {
  for (int64_t row = 0; row < 1000; ++row) {
    int64_t ids[6];
    fill_expert_ids(1, 8, row, ids);
    const std::set<int64_t> distinct(std::begin(ids), std::end(ids));
    EXPECT_EQ(distinct.size(), 6u);
    EXPECT_GE(*distinct.begin(), 0);
    EXPECT_LT(*distinct.rbegin(), 8);
  }
}

}  // namespace
}  // namespace nibble::tools
