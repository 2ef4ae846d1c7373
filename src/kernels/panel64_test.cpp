#include "kernels/panel64.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "quant/reference.h"

namespace nibble::kernels {
namespace {

using quant::Format;
using quant::QuantizedWeight;
using ::testing::HasSubstr;

// Random codes of both zeros; exponents over the whole spread that the layout holds.
QuantizedWeight random_mxfp4(int64_t n, int64_t k, uint32_t seed) {
  std::mt19937 random(seed);
  QuantizedWeight weight{.format = Format::kMxfp4, .n = n, .k = k, .scale_dtype = DType::kF8E8m0};
  weight.codes.resize(static_cast<size_t>(n * k / 2));
  for (std::byte& code : weight.codes) code = static_cast<std::byte>(random() & 0xFFU);
  weight.scales.resize(static_cast<size_t>(n * k / 32));
  for (std::byte& scale : weight.scales) {
    scale = static_cast<std::byte>(100 + random() % (kPanelScaleMax + 1));
  }
  return weight;
}

std::vector<float> stored_row(const QuantizedWeight& weight, int64_t row) {
  std::vector<float> out(static_cast<size_t>(weight.k));
  quant::dequantize_row(weight.view(), row, out);
  return out;
}

std::vector<float> panel_row(const PackedWeight& weight, int64_t row) {
  std::vector<float> out(static_cast<size_t>(weight.k));
  unpack_panel64_row(weight, row, out);
  return out;
}

TEST(Panel64, KeepsEveryValueOfRaggedShapes) {
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 32}, {70, 288}, {128, 512}}) {
    const QuantizedWeight weight = random_mxfp4(n, k, 3);
    const WeightRows rows{.weight = weight.view(), .row_begin = 0, .row_end = n};
    const PackedWeight packed = pack_panel64({&rows, 1}, PanelOrder::kNatural).value();
    EXPECT_EQ(packed.num_bytes(),
              packed_weight_bytes(Format::kMxfp4, n, k, DType::kF8E8m0, PackedLayout::kPanel64));
    for (int64_t row = 0; row < n; ++row) {
      EXPECT_EQ(panel_row(packed, row), stored_row(weight, row)) << n << "x" << k << " row " << row;
    }
  }
}

// Random codes and scales: every E4M3 scale but NaN for NVFP4, BF16 of either sign for INT4.
QuantizedWeight random_nvfp4(int64_t n, int64_t k, uint32_t seed) {
  constexpr uint32_t kNan = 0x7F;
  std::mt19937 random(seed);
  QuantizedWeight weight{.format = Format::kNvfp4, .n = n, .k = k, .scale_dtype = DType::kF8E4m3};
  weight.codes.resize(static_cast<size_t>(n * k / 2));
  for (std::byte& code : weight.codes) code = static_cast<std::byte>(random() & 0xFFU);
  weight.scales.resize(static_cast<size_t>(n * k / 16));
  for (std::byte& scale : weight.scales) {
    const auto bits = static_cast<uint32_t>(random() & 0xFFU);
    scale = static_cast<std::byte>((bits & kNan) == kNan ? bits - 1 : bits);
  }
  weight.global_scale = 0.37f;
  return weight;
}
QuantizedWeight random_int4(int64_t n, int64_t k, uint32_t seed) {
  std::mt19937 random(seed);
  QuantizedWeight weight{
      .format = Format::kInt4Group32, .n = n, .k = k, .scale_dtype = DType::kBf16};
  weight.codes.resize(static_cast<size_t>(n * k / 2));
  for (std::byte& code : weight.codes) code = static_cast<std::byte>(random() & 0xFFU);
  for (int64_t i = 0; i < n * k / 32; ++i) {
    const auto bits =
        static_cast<uint32_t>(0x3A00U + random() % 0x0800U + (random() % 2) * 0x8000U);
    weight.scales.push_back(static_cast<std::byte>(bits & 0xFFU));
    weight.scales.push_back(static_cast<std::byte>(bits >> 8));
  }
  return weight;
}

TEST(Panel64, KeepsEveryValueOfNvfp4AndInt4) {
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 32}, {70, 288}, {256, 512}}) {
    for (const QuantizedWeight& weight : {random_nvfp4(n, k, 8), random_int4(n, k, 9)}) {
      const WeightRows rows{.weight = weight.view(), .row_begin = 0, .row_end = n};
      const PackedWeight packed = pack_panel64({&rows, 1}, PanelOrder::kNatural).value();
      EXPECT_EQ(packed.format, weight.format);
      EXPECT_EQ(
          packed.num_bytes(),
          packed_weight_bytes(weight.format, n, k, weight.scale_dtype, PackedLayout::kPanel64));
      for (int64_t row = 0; row < n; ++row) {
        EXPECT_EQ(panel_row(packed, row), stored_row(weight, row))
            << quant::format_name(weight.format) << " " << n << "x" << k << " row " << row;
      }
    }
  }
}

// Worked out by hand: row 9 is the second of its pair, k 16 .. 31 the second NVFP4 scale.
TEST(Panel64, ScalesHaveTheOrderOfTheLayout) {
  QuantizedWeight weight = random_nvfp4(16, 256, 10);
  std::fill(weight.scales.begin(), weight.scales.end(), std::byte{0});
  weight.scales[9 * 16 + 15] = std::byte{0x39};  // k 240 .. 255: chunk 3, group 1, second half
  const WeightRows rows{.weight = weight.view(), .row_begin = 0, .row_end = 16};
  const PackedWeight packed = pack_panel64({&rows, 1}, PanelOrder::kNatural).value();
  EXPECT_EQ(packed.codes[kPanelSlabCodeBytes + 128 + 16 + 8 + 4 + 2 + 1], std::byte{0x39});
  EXPECT_EQ(packed.global_scales[9], 0.37f);
}

// Worked out by hand: -6 at k 0 is E4M3's -6 / 64, -0.5 and 4 at k 16 and 17 lie in free bits.
TEST(Panel64, Nvfp4WordsAreE4m3CodesAndTheBitsBetween) {
  QuantizedWeight weight = random_nvfp4(1, 32, 14);
  std::fill(weight.codes.begin(), weight.codes.end(), std::byte{0});
  std::fill(weight.scales.begin(), weight.scales.end(), std::byte{0x38});
  weight.codes[0] = std::byte{0x0F};
  weight.codes[8] = std::byte{0x69};
  const WeightRows rows{.weight = weight.view(), .row_begin = 0, .row_end = 1};
  const PackedWeight packed = pack_panel64({&rows, 1}, PanelOrder::kNatural).value();
  uint32_t word = 0;
  std::memcpy(&word, packed.codes, sizeof(word));
  EXPECT_EQ(word, 0x9CU | 1U << 5 | 1U << 0 | 1U << (8 + 6) | 1U << (8 + 1));
}

TEST(Panel64, MinusEightIsSignAndZero) {
  QuantizedWeight weight = random_int4(1, 32, 11);
  std::fill(weight.codes.begin(), weight.codes.end(), std::byte{0x88});  // zeros
  weight.codes[0] = std::byte{0x70};                                     // -8, -1
  const WeightRows rows{.weight = weight.view(), .row_begin = 0, .row_end = 1};
  const PackedWeight packed = pack_panel64({&rows, 1}, PanelOrder::kNatural).value();
  uint32_t word = 0;
  std::memcpy(&word, packed.codes, sizeof(word));
  EXPECT_EQ(word, 1U << 7 | 1U << 4 | 1U << 15);
}

TEST(Panel64, RefusesScalesThatTheLayoutCannotHold) {
  QuantizedWeight nvfp4 = random_nvfp4(2, 32, 12);
  nvfp4.scales[3] = std::byte{0xFF};
  const WeightRows nan{.weight = nvfp4.view(), .row_begin = 0, .row_end = 2};
  EXPECT_THAT(pack_panel64({&nan, 1}, PanelOrder::kNatural).error().message,
              HasSubstr("row 1: a group scale is NaN"));
  QuantizedWeight int4 = random_int4(1, 32, 13);
  const float scale = 0.1f;
  int4.scale_dtype = DType::kF32;
  int4.scales.resize(sizeof(scale));
  std::memcpy(int4.scales.data(), &scale, sizeof(scale));
  const WeightRows fine{.weight = int4.view(), .row_begin = 0, .row_end = 1};
  EXPECT_THAT(pack_panel64({&fine, 1}, PanelOrder::kNatural).error().message,
              HasSubstr("row 0: scale 0.1"));
}

TEST(Panel64, PutsMatchingUpRowsEightBelowTheirGateRows) {
  const QuantizedWeight gate = random_mxfp4(24, 64, 4), up = random_mxfp4(24, 64, 5);
  const WeightRows rows[] = {{.weight = gate.view(), .row_begin = 0, .row_end = 24},
                             {.weight = up.view(), .row_begin = 0, .row_end = 24}};
  const PackedWeight packed = pack_panel64(rows, PanelOrder::kGateUp).value();
  for (int64_t j = 0; j < 24; ++j) {
    const int64_t at = j / 8 * 16 + j % 8;
    EXPECT_EQ(panel_row(packed, at), stored_row(gate, j)) << j;
    EXPECT_EQ(panel_row(packed, at + 8), stored_row(up, j)) << j;
  }
}

// Worked out by hand from the layout: lane 0's first word of row 0 holds k 0 .. 3 and 16 .. 19.
TEST(Panel64, WordsHaveTheOrderOfTheLayout) {
  QuantizedWeight weight = random_mxfp4(1, 32, 6);
  std::fill(weight.codes.begin(), weight.codes.end(), std::byte{0});
  weight.codes[0] = std::byte{0x9A};  // k 0: code 10 (-1), k 1: code 9 (-0.5)
  weight.codes[9] = std::byte{0xF0};  // k 19: code 15 (-6)
  weight.scales[0] = std::byte{127};
  const WeightRows rows{.weight = weight.view(), .row_begin = 0, .row_end = 1};
  const PackedWeight packed = pack_panel64({&rows, 1}, PanelOrder::kNatural).value();
  uint32_t word = 0;
  std::memcpy(&word, packed.codes, sizeof(word));
  EXPECT_EQ(word, 2U | 1U << 4 | 7U << 28 | 1U << 7 | 1U << 15 | 1U << 27);
  EXPECT_EQ(packed.codes[4 * 512], std::byte{kPanelScaleMax});
  EXPECT_EQ(packed.global_scales[0], 0x1p-13f);
}

TEST(Panel64, RefusesARowWhoseExponentsSpreadTooFar) {
  QuantizedWeight weight = random_mxfp4(4, 64, 7);
  std::fill(weight.codes.begin(), weight.codes.end(), std::byte{0x11});
  std::fill(weight.scales.begin(), weight.scales.end(), std::byte{120});
  weight.scales[5] = std::byte{147};
  const WeightRows rows{.weight = weight.view(), .row_begin = 0, .row_end = 4};
  const auto packed = pack_panel64({&rows, 1}, PanelOrder::kNatural);
  ASSERT_FALSE(packed.ok());
  EXPECT_EQ(packed.error().code, Errc::kUnsupported);
  EXPECT_THAT(packed.error().message, HasSubstr("row 2: group exponents -7 to 20 differ by 27"));
  // A group of zeros has no exponent to keep.
  weight.codes.assign(weight.codes.size(), std::byte{0});
  EXPECT_TRUE(pack_panel64({&rows, 1}, PanelOrder::kNatural).ok());
}

}  // namespace
}  // namespace nibble::kernels
