#include "quant/fp8_key.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "quant/activation.h"
#include "quant/numeric.h"

namespace nibble::quant {
namespace {

using ::testing::Each;
using Floats = std::vector<float>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr Fp8KeyLayout kReleased{.num_codes = 448, .num_rotary = 64};

Floats random_key(int64_t width, float magnitude, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, magnitude);
  Floats key(static_cast<size_t>(width));
  for (float& value : key) value = normal(random);
  return key;
}

std::vector<std::byte> encoded(const Floats& key, const Fp8KeyLayout& layout) {
  std::vector<std::byte> row(static_cast<size_t>(layout.row_bytes()), std::byte{0xAA});
  encode_fp8_key(key, layout, row.data());
  return row;
}

Floats stored(const Floats& key, const Fp8KeyLayout& layout) {
  Floats back(key.size());
  decode_fp8_key(encoded(key, layout).data(), layout, back);
  return back;
}

Floats stored_index(const Floats& key) {
  std::vector<std::byte> row(
      static_cast<size_t>(fp8_index_key_bytes(static_cast<int64_t>(key.size()))));
  encode_fp8_index_key(key, row.data());
  Floats back(key.size());
  decode_fp8_index_key(row.data(), back);
  return back;
}

TEST(Fp8Key, TakesTheBytesOfTheSpecification) {
  EXPECT_EQ(kReleased.row_bytes(), 584);
  EXPECT_EQ(kReleased.scales_offset(), 448 + 128);
  EXPECT_EQ(fp8_index_key_bytes(128), 132);
  EXPECT_EQ((Fp8KeyLayout{.num_codes = 64, .num_rotary = 64}.row_bytes()), 200);
}

TEST(Fp8Key, LaysOutCodesRotaryDimensionsAndScales) {
  const Fp8KeyLayout layout{.num_codes = 64, .num_rotary = 2};
  Floats key(66, 0.0f);
  key[0] = 448;
  key[1] = -1;
  key[64] = 1.0f + 0x1p-7f;
  const auto row = encoded(key, layout);
  ASSERT_EQ(row.size(), 72U);
  EXPECT_EQ(row[0], std::byte{0x7E});
  EXPECT_EQ(row[1], std::byte{0xB8});
  EXPECT_EQ(row[64], std::byte{0x81});  // BF16 0x3F81, low byte first
  EXPECT_EQ(row[65], std::byte{0x3F});
  EXPECT_EQ(row[68], std::byte{127});  // scale 1
  EXPECT_THAT(std::vector<std::byte>(row.begin() + 69, row.end()), Each(std::byte{0}));
}

TEST(Fp8Key, IsWhatTheSimulationRoundsTo) {
  for (const float magnitude : {1e-6f, 0.01f, 1.0f, 300.0f, 1e20f}) {
    const Floats key = random_key(512, magnitude, 3);
    Floats expected = key;
    simulate_fp8(std::span(expected).first(448), kFp8KeyBlock);
    for (size_t i = 448; i < 512; ++i) expected[i] = round_to_bf16(expected[i]);
    EXPECT_EQ(stored(key, kReleased), expected) << magnitude;
  }
}

TEST(Fp8Key, LosesNothingOfWhatIsRoundedAlready) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    const Floats once = stored(random_key(512, 2.0f, seed), kReleased);
    EXPECT_EQ(stored(once, kReleased), once) << seed;
  }
}

TEST(Fp8Key, EveryCodeOfABlockSurvives) {
  const Fp8KeyLayout layout{.num_codes = 128, .num_rotary = 0};
  for (const uint8_t sign : {uint8_t{0x00}, uint8_t{0x80}}) {
    Floats key;
    for (uint8_t code = 0; code < 0x7F; ++code)
      key.push_back(e4m3_to_f32(static_cast<uint8_t>(code | sign)));
    key.insert(key.begin() + 63, e4m3_to_f32(0x7E));  // both blocks have scale 1
    EXPECT_EQ(stored(key, layout), key);
  }
}

TEST(Fp8Key, ABlockWithAValueThatCannotBeStoredIsNan) {
  for (const float bad : {kNan, -kNan, kInfinity, -kInfinity, 3e38f}) {
    Floats key = random_key(512, 1.0f, 1);
    key[70] = bad;
    const Floats back = stored(key, kReleased);
    for (size_t i = 0; i < 448; ++i) EXPECT_EQ(std::isnan(back[i]), i / 64 == 1) << i;
  }
  Floats key = random_key(512, 1.0f, 1);
  key[448] = kNan;
  EXPECT_TRUE(std::isnan(stored(key, kReleased)[448]));
  EXPECT_FALSE(std::isnan(stored(key, kReleased)[447]));
}

TEST(Fp8Key, TheLargestValueIsFinite) {
  Floats key(512, 0.0f);
  key[0] = -kLargestFp8Key;
  EXPECT_EQ(stored(key, kReleased)[0], -kLargestFp8Key);
}

TEST(Fp8IndexKey, HasOneScaleForAllDimensions) {
  const Floats key = random_key(128, 5.0f, 9);
  Floats expected = key;
  simulate_fp8(expected, 128);
  EXPECT_EQ(stored_index(key), expected);
  EXPECT_EQ(stored_index(expected), expected);
  EXPECT_EQ(stored_index(Floats(128, 0.0f)), Floats(128, 0.0f));
}

TEST(Fp8IndexKey, KeepsTheFp4SimulationExactly) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    Floats key = random_key(128, 0.3f, seed);
    hadamard_transform(key);
    simulate_fp4(key, 32);
    EXPECT_EQ(stored_index(key), key) << seed;
  }
}

TEST(Fp8IndexKey, AKeyWithAValueThatCannotBeStoredIsNan) {
  Floats key = random_key(128, 1.0f, 2);
  key[127] = kInfinity;
  for (const float value : stored_index(key)) EXPECT_TRUE(std::isnan(value));
}

}  // namespace
}  // namespace nibble::quant
