#include "quant/numeric.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace nibble::quant {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The encoding by definition: the nearest of `values` (ascending), ties to the even index,
// saturating.
uint8_t nearest_code(const std::vector<double>& values, double x) {
  size_t best = 0;
  for (size_t i = 1; i < values.size(); ++i) {
    const double old_distance = std::fabs(values[best] - x);
    const double new_distance = std::fabs(values[i] - x);
    if (new_distance < old_distance || (new_distance == old_distance && i % 2 == 0)) best = i;
  }
  return static_cast<uint8_t>(best);
}

TEST(Bf16, RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(f32_to_bf16(1.0f), 0x3F80);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3F808000u)), 0x3F80);  // tie, even below
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3F818000u)), 0x3F82);  // tie, even above
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3F808001u)), 0x3F81);
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_EQ(f32_to_bf16(-kInf), 0xFF80);
  EXPECT_TRUE(std::isnan(round_to_bf16(std::bit_cast<float>(0x7F800001u))));
  EXPECT_TRUE(std::isnan(round_to_bf16(std::bit_cast<float>(0xFFFFFFFFu))));
}

TEST(Bf16, RoundTripsEveryCode) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto code = static_cast<uint16_t>(bits);
    const float value = bf16_to_f32(code);
    if (std::isnan(value)) continue;
    EXPECT_EQ(f32_to_bf16(value), code);
  }
}

TEST(F16, RoundTripsEveryCode) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto code = static_cast<uint16_t>(bits);
    const float value = f16_to_f32(code);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(value))));
    } else {
      EXPECT_EQ(f32_to_f16(value), code);
    }
  }
}

TEST(F16, RoundsToNearestEven) {
  EXPECT_EQ(f16_to_f32(0x3C00), 1.0f);
  EXPECT_EQ(f16_to_f32(0x0001), std::ldexp(1.0f, -24));
  EXPECT_EQ(f16_to_f32(0x7BFF), 65504.0f);
  // Halfway between neighbours, normal and subnormal: the even code wins.
  for (uint32_t code = 0; code < 0x7BFF; ++code) {
    const float low = f16_to_f32(static_cast<uint16_t>(code));
    const float high = f16_to_f32(static_cast<uint16_t>(code + 1));
    const float middle = (low + high) / 2;
    EXPECT_EQ(f32_to_f16(middle), code % 2 == 0 ? code : code + 1);
    EXPECT_EQ(f32_to_f16(std::nextafter(middle, 0.0f)), code);
    EXPECT_EQ(f32_to_f16(std::nextafter(middle, kInf)), code + 1);
  }
  EXPECT_EQ(f32_to_f16(std::nextafter(65520.0f, 0.0f)), 0x7BFF);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7C00);
  EXPECT_EQ(f32_to_f16(-kInf), 0xFC00);
}

TEST(E4m3, DecodesCheckValues) {
  const struct {
    uint8_t code;
    float value;
  } cases[] = {{0x01, 0.001953125f},
               {0x07, 0.013671875f},
               {0x08, 0.015625f},
               {0x30, 0.5f},
               {0x38, 1.0f},
               {0x40, 2.0f},
               {0x77, 240.0f},
               {0x78, 256.0f},
               {0x7E, 448.0f},
               {0x80, 0.0f},
               {0xFE, -448.0f}};
  for (const auto& c : cases) EXPECT_EQ(e4m3_to_f32(c.code), c.value);
  EXPECT_TRUE(std::signbit(e4m3_to_f32(0x80)));
  for (int code = 0; code < 256; ++code) {
    const bool is_nan = code == 0x7F || code == 0xFF;
    EXPECT_EQ(std::isnan(e4m3_to_f32(static_cast<uint8_t>(code))), is_nan);
    EXPECT_EQ(is_e4m3_nan(static_cast<uint8_t>(code)), is_nan);
  }
}

TEST(E4m3, SaturatesAndKeepsNan) {
  EXPECT_EQ(f32_to_e4m3(1e9f), 0x7E);
  EXPECT_EQ(f32_to_e4m3(-1e9f), 0xFE);
  EXPECT_EQ(f32_to_e4m3(464.0f), 0x7E);
  EXPECT_EQ(f32_to_e4m3(479.9f), 0x7E);
  EXPECT_EQ(f32_to_e4m3(kInf), 0x7E);
  EXPECT_EQ(f32_to_e4m3(-0.0f), 0x80);
  EXPECT_TRUE(is_e4m3_nan(f32_to_e4m3(kNan)));
}

TEST(E4m3, EncodesTheNearestCode) {
  std::vector<double> values;
  for (size_t i = 0; i + 1 < values.size(); ++i) {
    const auto middle = static_cast<float>((values[i] + values[i + 1]) / 2);  // exact
    for (const float x : {static_cast<float>(values[i]),
                          middle,
                          std::nextafter(middle, 0.0f),
                          std::nextafter(middle, kInf)}) {
      EXPECT_EQ(f32_to_e4m3(x), nearest_code(values, x)) << x;
      EXPECT_EQ(f32_to_e4m3(-x), 128 + nearest_code(values, x)) << x;
    }
  }
}

TEST(E5m2, DecodesCheckValues) {
  EXPECT_EQ(e5m2_to_f32(0x7B), 57344.0f);
  EXPECT_EQ(e5m2_to_f32(0x04), std::ldexp(1.0f, -14));
  EXPECT_EQ(e5m2_to_f32(0x01), std::ldexp(1.0f, -16));
  EXPECT_EQ(e5m2_to_f32(0xFC), -kInf);
  EXPECT_TRUE(std::isnan(e5m2_to_f32(0x7D)));
}

TEST(E8m0, DecodesEveryCode) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(e8m0_to_f32(static_cast<uint8_t>(code)), std::ldexp(1.0f, code - 127));
  }
  EXPECT_TRUE(std::isnan(e8m0_to_f32(255)));
}

TEST(E8m0, FitsF16OnlyBetween103And142) {
  for (int code = 0; code < 255; ++code) {
    const float value = e8m0_to_f32(static_cast<uint8_t>(code));
    EXPECT_EQ(f16_to_f32(f32_to_f16(value)) == value, code >= 103 && code <= 142) << code;
  }
}

TEST(E2m1, DecodesTheTable) {
  const float magnitudes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (uint8_t code = 0; code < 8; ++code) {
    EXPECT_EQ(e2m1_to_f32(code), magnitudes[code]);
    EXPECT_EQ(e2m1_to_f32(static_cast<uint8_t>(code + 8)), -magnitudes[code]);
  }
  EXPECT_TRUE(std::signbit(e2m1_to_f32(8)));
}

TEST(E2m1, SendsTiesToTheEvenCode) {
  const struct {
    float x;
    float value;
  } cases[] = {
      {0.25f, 0}, {0.75f, 1}, {1.25f, 1}, {1.75f, 2}, {2.5f, 2}, {3.5f, 4}, {5.0f, 4}, {7.0f, 6}};
  for (const auto& c : cases) {
    EXPECT_EQ(e2m1_to_f32(f32_to_e2m1(c.x)), c.value);
    EXPECT_EQ(e2m1_to_f32(f32_to_e2m1(-c.x)), -c.value);
  }
  EXPECT_EQ(f32_to_e2m1(-0.0f), 8);
  EXPECT_EQ(f32_to_e2m1(kInf), 7);
}

TEST(E2m1, EncodesTheNearestCode) {
  std::vector<double> values(kE2m1Table.begin(), kE2m1Table.begin() + 8);
  std::mt19937 random(7);
  std::uniform_real_distribution<float> uniform(0.0f, 8.0f);
  for (int i = 0; i < 10000; ++i) {
    const float x = uniform(random);
    EXPECT_EQ(f32_to_e2m1(x), nearest_code(values, x)) << x;
  }
}

TEST(PackedNibble, TakesTheLowNibbleFirst) {
  const uint8_t bytes[2] = {0x7A, 0x2F};
  const float expected[4] = {-1, 6, -6, 1};
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(e2m1_to_f32(packed_nibble(bytes, i)), expected[i]);
  }
}

TEST(Int4, MatchesTheCompressedTensorsWord) {
  const uint32_t word = 0xFEA98710u;
  const auto bytes = std::bit_cast<std::array<uint8_t, 4>>(word);
  const int32_t expected[8] = {-8, -7, -1, 0, 1, 2, 6, 7};
  for (int64_t i = 0; i < 8; ++i) {
    const uint8_t nibble = packed_nibble(bytes.data(), i);
    EXPECT_EQ(int4_to_int(nibble), expected[i]);
    EXPECT_EQ(f32_to_int4(static_cast<float>(expected[i])), nibble);
  }
  EXPECT_EQ(int4_to_int(f32_to_int4(7.5f)), 7);
  EXPECT_EQ(int4_to_int(f32_to_int4(-100.0f)), -8);
  EXPECT_EQ(int4_to_int(f32_to_int4(2.5f)), 2);
}

TEST(CeilLog2, IsExactAroundPowersOfTwo) {
  for (int32_t e = -126; e < 127; ++e) {
    const float power = exp2_int(e);
    EXPECT_EQ(power, std::ldexp(1.0f, e));
    EXPECT_EQ(ceil_log2(power), e);
    EXPECT_EQ(ceil_log2(std::nextafter(power, kInf)), e + 1);
  }
}

}  // namespace
}  // namespace nibble::quant
