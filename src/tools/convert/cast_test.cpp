#include "tools/convert/cast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "quant/numeric.h"
#include "quant/reference.h"

namespace nibble::tools {
namespace {

using quant::Format;
using quant::QuantizedWeight;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::byte> bytes(std::span<const uint8_t> values) {
  const auto span = std::as_bytes(values);
  return {span.begin(), span.end()};
}

std::vector<uint8_t> repeat(uint8_t value, int64_t count) {
  return std::vector<uint8_t>(static_cast<size_t>(count), value);
}

// One row of MXFP4; every code is `code`.
QuantizedWeight mxfp4_row(const std::vector<uint8_t>& scales, uint8_t code = 0x22) {
  const auto groups = static_cast<int64_t>(scales.size());
  return {.format = Format::kMxfp4,
          .n = 1,
          .k = 32 * groups,
          .scale_dtype = DType::kF8E8m0,
          .codes = bytes(repeat(code, 16 * groups)),
          .scales = bytes(scales)};
}

QuantizedWeight nvfp4_row(const std::vector<uint8_t>& scales, float global, uint8_t code = 0x22) {
  const auto groups = static_cast<int64_t>(scales.size());
  return {.format = Format::kNvfp4,
          .n = 1,
          .k = 16 * groups,
          .scale_dtype = DType::kF8E4m3,
          .codes = bytes(repeat(code, 8 * groups)),
          .scales = bytes(scales),
          .global_scale = global};
}

Nvfp4Cast plan(const QuantizedWeight& weight) {
  const quant::WeightView view = weight.view();
  return plan_nvfp4_cast({&view, 1});
}

std::vector<uint8_t> to_nvfp4(const QuantizedWeight& weight, int32_t exponent) {
  std::vector<uint8_t> out(2 * weight.scales.size());
  cast_scales_to_nvfp4(weight.view(), exponent, out);
  return out;
}

std::vector<float> values_of(const QuantizedWeight& weight) {
  std::vector<float> values(static_cast<size_t>(weight.n * weight.k));
  quant::dequantize(weight.view(), values);
  return values;
}

TEST(CastToNvfp4, MatchesTheWorkedExample) {
  const QuantizedWeight weight = mxfp4_row({118, 121, 125, 120});
  const Nvfp4Cast cast = plan(weight);
  EXPECT_THAT(cast.fault, IsEmpty());
  EXPECT_EQ(cast.global_exponent, -10);
  EXPECT_THAT(to_nvfp4(weight, -10), ElementsAre(0x40, 0x40, 0x58, 0x58, 0x78, 0x78, 0x50, 0x50));
}

TEST(CastToNvfp4, SharesTheGlobalScaleOfTheLargest) {
  const QuantizedWeight w1 = mxfp4_row({118});
  const QuantizedWeight w3 = mxfp4_row({125});
  const quant::WeightView views[] = {w1.view(), w3.view()};
  EXPECT_EQ(plan_nvfp4_cast(views).global_exponent, -10);
}

TEST(CastToNvfp4, IsExactForASpanOf17) {
  const QuantizedWeight widest = mxfp4_row({103, 120});
  EXPECT_THAT(plan(widest).fault, IsEmpty());
  EXPECT_THAT(to_nvfp4(widest, -15), ElementsAre(0x01, 0x01, 0x78, 0x78));
  EXPECT_THAT(plan(mxfp4_row({102, 120})).fault, HasSubstr("span -25 to -7"));
}

TEST(CastToNvfp4, ClampsOnlyScalesOfZeros) {
  QuantizedWeight weight = mxfp4_row({0, 120, 254});
  const auto zeros = [&](size_t group) {
    for (size_t i = 0; i < 16; ++i) weight.codes[16 * group + i] = std::byte{0x80};  // 0, -0
  };
  zeros(0);
  EXPECT_THAT(plan(weight).fault, HasSubstr("span"));
  zeros(2);
  const Nvfp4Cast cast = plan(weight);
  EXPECT_THAT(cast.fault, IsEmpty());
  EXPECT_EQ(cast.global_exponent, -15);
  EXPECT_EQ(cast.num_clamped_groups, 2);
  EXPECT_THAT(to_nvfp4(weight, -15), ElementsAre(0x01, 0x01, 0x78, 0x78, 0x78, 0x78));
}

TEST(CastToNvfp4, RefusesNanAndGlobalsThatReadersRefuse) {
  EXPECT_THAT(plan(mxfp4_row({120, 255})).fault, HasSubstr("NaN"));
  EXPECT_THAT(plan(mxfp4_row({135})).fault, IsEmpty());  // 2^0
  EXPECT_THAT(plan(mxfp4_row({136})).fault, HasSubstr("2^1"));
}

TEST(CastToNvfp4, KeepsTheSmallestScales) {
  const QuantizedWeight weight = mxfp4_row({0, 3});
  const Nvfp4Cast cast = plan(weight);
  EXPECT_THAT(cast.fault, IsEmpty());
  QuantizedWeight result = weight;
  result.format = Format::kNvfp4;
  result.scale_dtype = DType::kF8E4m3;
  result.scales = bytes(to_nvfp4(weight, cast.global_exponent));
  result.global_scale = quant::exp2_int(cast.global_exponent);
  EXPECT_EQ(values_of(result), values_of(weight));
}

TEST(CastToMxfp4, ReversesTheCast) {
  std::mt19937 random(1);
  for (int round = 0; round < 100; ++round) {
    const auto base = static_cast<uint32_t>(random() % 110);
    QuantizedWeight weight = mxfp4_row(repeat(0, 40));
    for (std::byte& scale : weight.scales) scale = static_cast<std::byte>(base + random() % 18);
    for (std::byte& code : weight.codes) code = static_cast<std::byte>(random());
    const Nvfp4Cast cast = plan(weight);
    ASSERT_THAT(cast.fault, IsEmpty());
    QuantizedWeight nvfp4 = weight;
    nvfp4.format = Format::kNvfp4;
    nvfp4.scale_dtype = DType::kF8E4m3;
    nvfp4.scales = bytes(to_nvfp4(weight, cast.global_exponent));
    nvfp4.global_scale = quant::exp2_int(cast.global_exponent);
    ASSERT_EQ(values_of(nvfp4), values_of(weight));
    std::vector<uint8_t> back(weight.scales.size());
    const Result<int64_t> adopted = cast_scales_to_mxfp4(nvfp4.view(), back);
    ASSERT_TRUE(adopted.ok()) << adopted.error().message;
    EXPECT_EQ(*adopted, 0);
    EXPECT_EQ(bytes(back), weight.scales);
  }
}

std::string refusal(const QuantizedWeight& weight) {
  std::vector<uint8_t> out(weight.scales.size() / 2);
  const Result<int64_t> cast = cast_scales_to_mxfp4(weight.view(), out);
  return cast.ok() ? "" : cast.error().message;
}

TEST(CastToMxfp4, RefusesWhatIsNoPowerOfTwo) {
  EXPECT_THAT(refusal(nvfp4_row({0x6D, 0x6D}, 0.5f)), HasSubstr("0x6D of group 0 in row 0"));
  EXPECT_THAT(refusal(nvfp4_row({0x03, 0x03}, 0.5f)), HasSubstr("0x03"));
  EXPECT_THAT(refusal(nvfp4_row({0xB8, 0xB8}, 0.5f)), HasSubstr("0xB8"));  // negative
  EXPECT_THAT(refusal(nvfp4_row({0x00, 0x00}, 0.5f)), HasSubstr("0x00"));
  EXPECT_THAT(refusal(nvfp4_row({0x38, 0x38}, 0.0025f)), HasSubstr("global scale 0.0025"));
  EXPECT_THAT(refusal(nvfp4_row({0x38, 0x40}, 0.5f)), HasSubstr("0x38 and 0x40"));
  EXPECT_THAT(refusal(nvfp4_row({0x38, 0x38}, 0.5f)), IsEmpty());
}

TEST(CastToMxfp4, LetsHalvesOfZerosFollow) {
  for (const size_t half : {size_t{0}, size_t{1}}) {
    QuantizedWeight weight = nvfp4_row({0x38, 0x38}, 0.5f);
    weight.scales[half] = std::byte{0};
    for (size_t i = 0; i < 8; ++i) weight.codes[8 * half + i] = std::byte{0x08};
    std::vector<uint8_t> out(1);
    EXPECT_EQ(cast_scales_to_mxfp4(weight.view(), out).value(), 1);
    EXPECT_THAT(out, ElementsAre(126));
  }
}

}  // namespace
}  // namespace nibble::tools
