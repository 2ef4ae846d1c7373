#include "tools/convert/encode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>

#include "quant/numeric.h"
#include "quant/reference.h"

namespace nibble::tools {
namespace {

using quant::Format;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

quant::WeightView f32_weight(const std::vector<float>& values, int64_t n) {
  const int64_t k = static_cast<int64_t>(values.size()) / n;
  return {.format = Format::kF32,
          .n = n,
          .k = k,
          .codes = TensorView::read_only(values.data(), DType::kF32, {n, k})};
}

struct Encoded {
  std::map<size_t, std::vector<uint8_t>> tensors;  // by index
  ErrorStatistics statistics;
};

Result<Encoded> encode(const quant::WeightView& weight, Format format, float global_scale = 1.0f) {
  Encoded encoded;
  const WriteBytes write =
      [&](size_t index, int64_t offset, std::span<const std::byte> bytes) -> Result<void> {
    std::vector<uint8_t>& tensor = encoded.tensors[index];
    EXPECT_EQ(static_cast<int64_t>(tensor.size()), offset);
    for (const std::byte b : bytes) tensor.push_back(std::to_integer<uint8_t>(b));
    return {};
  };
  TRY_ASSIGN(
      encoded.statistics,
      encode_weight(
          weight,
          "m",
          {.format = format, .codes_index = 0, .scales_index = 1, .global_scale = global_scale},
          write));
  return encoded;
}

TEST(EncodeWeight, MatchesTheWorkedNvfp4Block) {
  const std::vector<float> x = {
      .1f, -.2f, .3f, -.4f, .5f, -.6f, .7f, -.8f, .9f, -1, 1.1f, -1.2f, .05f, 0, -.01f, 1.53f};
  const Encoded encoded = encode(f32_weight(x, 1), Format::kNvfp4, 0.0025f).value();
  EXPECT_THAT(encoded.tensors.at(1), ElementsAre(0x6D));
  EXPECT_THAT(encoded.tensors.at(0), ElementsAre(0xA1, 0xB2, 0xC4, 0xD5, 0xE5, 0xE6, 0x00, 0x78));
}

// Byte for amax by the ceil rule (spec "quantization" 1.4).
TEST(EncodeWeight, ScalesMxfp4ByTheCeilRule) {
  const std::pair<float, uint8_t> cases[] = {
      {3.4f, 127}, {3.6f, 127}, {6.0f, 127}, {6.4f, 128}, {7.0f, 128}, {0.9f, 125}};
  for (const auto& [amax, byte] : cases) {
    std::vector<float> x(32, 0.0f);
    x[7] = -amax;
    EXPECT_THAT(encode(f32_weight(x, 1), Format::kMxfp4).value().tensors.at(1), ElementsAre(byte))
        << amax;
  }
}

TEST(EncodeWeight, GivesFp4TheSignOfNumbersBelowZero) {
  std::vector<float> x(32, 1.0f);
  x[0] = -0.0f;
  x[1] = -0.01f;
  x[2] = 0.01f;
  x[3] = -1.0f;
  for (const Format format : {Format::kMxfp4, Format::kNvfp4}) {
    const Encoded encoded = encode(f32_weight(x, 1), format, 1.0f / 6).value();
    EXPECT_EQ(encoded.tensors.at(0)[0] & 0x0F, 0) << quant::format_name(format);
    EXPECT_EQ(encoded.tensors.at(0)[0] >> 4, 8) << quant::format_name(format);
    EXPECT_EQ(encoded.tensors.at(0)[1] & 0x0F, 0) << quant::format_name(format);
    EXPECT_EQ(encoded.tensors.at(0)[1] >> 4 & 8, 8) << quant::format_name(format);
  }
}

// 2^ceil(log2(amax / 448)) of a 128x128 block, as an E8M0 byte; code = value / scale.
TEST(EncodeWeight, ScalesFp8BlocksByPowersOfTwo) {
  struct Case {
    float amax;
    uint8_t scale;
    uint8_t code;
  };
  const Case cases[] = {{448, 127, 0x7E},    // 448 / 1
                        {449, 128, 0x76},    // 224.5 / 2^1 rounds to 224
                        {3.5f, 120, 0x7E},   // 448 * 2^-7
                        {3.6f, 121, 0x76},   // 230.4 at 2^-6 rounds to 224
                        {1.0f, 119, 0x78}};  // 256 at 2^-8
  for (const Case& c : cases) {
    std::vector<float> x(200 * 160, 0.0f);
    x[130 * 160 + 140] = -c.amax;  // row 130, column 140: block (1, 1) of 2 x 2
    const Encoded encoded = encode(f32_weight(x, 200), Format::kFp8E4m3Block128x128).value();
    ASSERT_EQ(encoded.tensors.at(1).size(), 4U);
    EXPECT_EQ(encoded.tensors.at(1)[3], c.scale) << c.amax;
    EXPECT_EQ(encoded.tensors.at(0)[130 * 160 + 140], 0x80 | c.code) << c.amax;
  }
}

TEST(EncodeWeight, LetsFp8KeepNegativeZero) {
  const Encoded encoded =
      encode(f32_weight({-0.0f, 448, -1e-6f, 0}, 1), Format::kFp8E4m3Block128x128).value();
  EXPECT_THAT(encoded.tensors.at(0), ElementsAre(0x80, 0x7E, 0x80, 0x00));
  EXPECT_THAT(encoded.tensors.at(1), ElementsAre(127));
}

TEST(EncodeWeight, PacksInt4AsCompressedTensors) {
  std::vector<float> x(32, 0.0f);
  x[0] = 3.0f;
  x[1] = -3.0f;  // the scale rounds up to 0.4004, so q = -7.49 -> -7
  const Encoded encoded = encode(f32_weight(x, 1), Format::kInt4Group32).value();
  EXPECT_EQ(encoded.tensors.at(0)[0], 0x1F);  // 7 and -7, stored with offset 8
  EXPECT_EQ(encoded.tensors.at(0)[1], 0x88);
  uint16_t scale = 0;
  std::memcpy(&scale, encoded.tensors.at(1).data(), sizeof scale);
  EXPECT_EQ(scale, quant::f32_to_bf16(0.4f));
}

// Slabs of rows are invisible.
TEST(EncodeWeight, EqualsTheReferenceEncoderAcrossSlabs) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 0.05f);
  constexpr int64_t kN = 300, kK = 224;
  std::vector<float> x(kN * kK);
  for (float& value : x) value = normal(random);
  const quant::WeightView weight = f32_weight(x, kN);
  for (const Format format :
       {Format::kFp8E4m3Block128x128, Format::kMxfp4, Format::kNvfp4, Format::kInt4Group32}) {
    const float global = quant::nvfp4_global_scale(weight_amax(weight, "m").value());
    const Encoded encoded = encode(weight, format, global).value();
    const quant::QuantizedWeight expected = quant::quantize(format, x, kN, kK);
    const auto same = [](const std::vector<uint8_t>& a, const std::vector<std::byte>& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
    };
    EXPECT_TRUE(same(encoded.tensors.at(0), expected.codes)) << quant::format_name(format);
    EXPECT_TRUE(same(encoded.tensors.at(1), expected.scales)) << quant::format_name(format);
    EXPECT_EQ(encoded.statistics.num_elements, kN * kK);
    EXPECT_EQ(encoded.statistics.num_changed_tensors, 1);
    EXPECT_GT(encoded.statistics.cosine(), 0.99);
    EXPECT_LT(encoded.statistics.cosine(), 1.0);
  }
}

TEST(EncodeWeight, MeasuresTheError) {
  std::vector<float> x(32, 6.0f);
  x[0] = 5.2f;  // becomes 6
  const ErrorStatistics statistics = encode(f32_weight(x, 1), Format::kMxfp4).value().statistics;
  const double error = 6.0 - static_cast<double>(5.2f);
  EXPECT_EQ(statistics.max_error, error);
  EXPECT_EQ(statistics.rms(), std::sqrt(error * error / 32));
  EXPECT_EQ(encode(f32_weight(std::vector<float>(32, 6.0f), 1), Format::kMxfp4)
                .value()
                .statistics.num_exact_tensors,
            1);
}

TEST(EncodeWeight, RefusesWhatIsNoNumber) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    std::vector<float> x(200 * 32, 1.0f);
    x[150 * 32 + 5] = bad;
    const Result<Encoded> encoded = encode(f32_weight(x, 200), Format::kMxfp4);
    ASSERT_FALSE(encoded.ok());
    EXPECT_EQ(encoded.error().code, Errc::kDataLoss);
    EXPECT_THAT(encoded.error().message, HasSubstr("tensor m: element [150, 5]"));
    EXPECT_FALSE(weight_amax(f32_weight(x, 200), "m").ok());
  }
}

}  // namespace
}  // namespace nibble::tools
