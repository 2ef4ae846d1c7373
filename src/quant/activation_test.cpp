#include "quant/activation.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "quant/numeric.h"

namespace nibble::quant {
namespace {

using Floats = std::vector<float>;

Floats fp8(Floats x) {
  simulate_fp8(x, static_cast<int64_t>(x.size()));
  return x;
}

Floats fp4(Floats x) {
  simulate_fp4(x, static_cast<int64_t>(x.size()));
  return x;
}

// deepseek-v4.md 14.2
TEST(SimulateFp8, MatchesTheSelfCheckVectors) {
  EXPECT_EQ(fp8({0, 1, -2.5f, 3.3f, 0.013f, 100, -7.77f, 0.5f}),
            (Floats{0, 1, -2.5f, 3.25f, 0.0126953125f, 96, -8, 0.5f}));
  EXPECT_EQ(fp8({0, 10, -25, 33, 0.13f, 1000, -77.7f, 5}),
            (Floats{0, 10, -24, 32, 0.125f, 1024, -80, 5}));
  const float unit = std::ldexp(1.0f, -22);
  EXPECT_EQ(fp8({0, 1e-6f, -3e-5f, 5e-5f}),
            (Floats{0, 4 * unit, -126 * unit + -2 * unit, 208 * unit}));
}

TEST(SimulateFp8, ScalesUpToTheNextPowerOfTwo) {
  EXPECT_EQ(fp8_activation_scale(100.0f), 0.25f);
  EXPECT_EQ(fp8_activation_scale(1000.0f), 4.0f);
  EXPECT_EQ(fp8_activation_scale(448.0f), 1.0f);
  EXPECT_EQ(fp8_activation_scale(std::nextafter(448.0f, 1000.0f)), 2.0f);
  EXPECT_EQ(fp8_activation_scale(0.0f), std::ldexp(1.0f, -22));  // the floor of 1e-4
}

TEST(SimulateFp8, EqualsItsCodesTimesScales) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0f, 10.0f);
  Floats x(512);
  for (float& value : x) value = normal(random);
  std::vector<uint8_t> codes(512);
  Floats scales(4);
  quantize_fp8(x, 128, codes, scales);
  simulate_fp8(x, 128);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(x[i], e4m3_to_f32(codes[i]) * scales[i / 128]);
}

TEST(SimulateFp8, GivesExactBf16) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  Floats x(448);
  for (float& value : x) value = normal(random);
  simulate_fp8(x, 64);
  for (const float value : x) EXPECT_EQ(value, round_to_bf16(value));
}

TEST(SimulateFp4, MatchesTheSelfCheckVectors) {
  EXPECT_EQ(fp4({0.1f, 0.3f, -0.75f, 1.25f, 1.0f, -2.2f, 2.5f, 5.0f, 0.25f}),
            (Floats{0, 0.5f, -1, 1, 1, -2, 2, 4, 0}));
  EXPECT_EQ(fp4({0.1f, 0.3f, -0.75f, 1.25f, 1.0f, -2.2f, 2.5f, 7.0f, 0.25f}),
            (Floats{0, 0, -1, 1, 1, -2, 2, 8, 0}));
}

TEST(SimulateFp4, NeverSaturatesAndNeverWastesABit) {
  for (int32_t e = -120; e < 120; ++e) {
    const float top = std::ldexp(6.0f, e);
    EXPECT_EQ(fp4({top, 0})[0], top);  // scale 2^e, code 6
    const float above = std::nextafter(top, std::numeric_limits<float>::infinity());
    EXPECT_EQ(fp4({above, std::ldexp(0.5f, e)}),
              (Floats{std::ldexp(6.0f, e), 0}));  // scale 2^(e+1)
  }
}

TEST(SimulateFp4, KeepsZeros) { EXPECT_EQ(fp4(Floats(32, 0.0f)), Floats(32, 0.0f)); }

TEST(Hadamard, EqualsTheSylvesterMatrix) {
  const size_t n = 128;
  for (size_t j = 0; j < n; ++j) {
    Floats x(n, 0.0f);
    x[j] = 1.0f;
    hadamard_transform(x);
    for (size_t i = 0; i < n; ++i) {
      const float sign = std::popcount(i & j) % 2 == 0 ? 1.0f : -1.0f;
      EXPECT_EQ(x[i], sign * 0.08838834764831845f);
    }
  }
}

TEST(Hadamard, IsItsOwnInverse) {
  for (const size_t n : {1u, 2u, 16u, 64u}) {
    Floats x(n);
    for (size_t i = 0; i < n; ++i) x[i] = static_cast<float>(i);  // small integers; 1/n is exact
    Floats y = x;
    hadamard_transform(y);
    hadamard_transform(y);
    for (size_t i = 0; i < n; ++i)
      EXPECT_NEAR(y[i], x[i], 64 * std::numeric_limits<float>::epsilon());
  }
}

}  // namespace
}  // namespace nibble::quant
