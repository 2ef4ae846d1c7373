#include "quant/reference.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "quant/numeric.h"

namespace nibble::quant {
namespace {

std::vector<float> random_weight(int64_t n, int64_t k, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> w(static_cast<size_t>(n * k));
  for (float& value : w) value = normal(random);
  return w;
}

std::vector<float> decoded(const WeightView& weight) {
  std::vector<float> out(static_cast<size_t>(weight.n * weight.k));
  dequantize(weight, out);
  return out;
}

std::vector<uint8_t> bytes_of(const std::vector<std::byte>& bytes) {
  const auto* begin = reinterpret_cast<const uint8_t*>(bytes.data());
  return {begin, begin + bytes.size()};
}

TEST(Mxfp4, DecodesTheWorkedExample) {
  std::array<uint8_t, 16> codes{};
  codes[0] = 0x2F;
  const uint8_t scale = 125;
  WeightView view{.format = Format::kMxfp4, .n = 1, .k = 32};
  view.codes = TensorView::read_only(codes.data(), DType::kI8, {1, 16});
  view.scales = TensorView::read_only(&scale, DType::kF8E8m0, {1, 1});
  const std::vector<float> w = decoded(view);
  EXPECT_EQ(w[0], -1.5f);
  EXPECT_EQ(w[1], 0.25f);
  EXPECT_EQ(w[2], 0.0f);
}

TEST(Mxfp4, KnowsTheThreeScaleRules) {
  const struct {
    float amax;
    int floor, ceil, even;
  } cases[] = {{3.4f, 126, 127, 126},
               {3.6f, 126, 127, 127},
               {6.0f, 127, 127, 127},
               {6.4f, 127, 128, 127},
               {7.0f, 127, 128, 128},
               {0.9f, 124, 125, 125}};
  for (const auto& c : cases) {
    EXPECT_EQ(mxfp4_scale_code(c.amax, MxScaleRule::kFloor), c.floor) << c.amax;
    EXPECT_EQ(mxfp4_scale_code(c.amax, MxScaleRule::kCeil), c.ceil) << c.amax;
    EXPECT_EQ(mxfp4_scale_code(c.amax, MxScaleRule::kEven), c.even) << c.amax;
  }
}

// The block of quantization.md 1.5; the second row only lifts the tensor's amax to 6.72.
TEST(Nvfp4, EncodesTheWorkedBlock) {
  std::vector<float> w = {
      .1f, -.2f, .3f, -.4f, .5f, -.6f, .7f, -.8f, .9f, -1, 1.1f, -1.2f, .05f, 0, -.01f, 1.53f};
  w.resize(32);
  w[16] = 6.72f;
  const QuantizedWeight q = quantize(Format::kNvfp4, w, 2, 16);
  EXPECT_FLOAT_EQ(q.global_scale, 0.0025f);
  EXPECT_EQ(bytes_of(q.scales), (std::vector<uint8_t>{0x6D, 0x7E}));
  const std::vector<uint8_t> codes = bytes_of(q.codes);
  EXPECT_EQ(std::vector<uint8_t>(codes.begin(), codes.begin() + 8),
            (std::vector<uint8_t>{0xA1, 0xB2, 0xC4, 0xD5, 0xE5, 0xE6, 0x00, 0x78}));
  const float expected[16] = {.13f,
                              -.26f,
                              .26f,
                              -.39f,
                              .52f,
                              -.52f,
                              .78f,
                              -.78f,
                              .78f,
                              -1.04f,
                              1.04f,
                              -1.04f,
                              0,
                              0,
                              0,
                              1.56f};
  const std::vector<float> back = decoded(q.view());
  for (size_t i = 0; i < 16; ++i) EXPECT_FLOAT_EQ(back[i], expected[i]);
  EXPECT_TRUE(std::signbit(back[14]));
}

TEST(Nvfp4, DecodesTheTinyExample) {
  std::array<uint8_t, 8> codes{};
  codes[0] = 0x7A;
  const uint8_t scale = 0x40;
  WeightView view{.format = Format::kNvfp4, .n = 1, .k = 16, .global_scale = std::ldexp(1.0f, -10)};
  view.codes = TensorView::read_only(codes.data(), DType::kU8, {1, 8});
  view.scales = TensorView::read_only(&scale, DType::kF8E4m3, {1, 1});
  const std::vector<float> w = decoded(view);
  EXPECT_EQ(w[0], -0.001953125f);
  EXPECT_EQ(w[1], 0.01171875f);
}

// MX scales 118, 121, 125, 120 become the global 2^-10 and E4M3 0x40, 0x58, 0x78, 0x50, each for
// two groups of 16.
TEST(Nvfp4, HoldsMxfp4WithoutLoss) {
  std::vector<uint8_t> codes(64);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 37 + 11);
  const std::array<uint8_t, 4> mx_scales = {118, 121, 125, 120};
  WeightView mx{.format = Format::kMxfp4, .n = 1, .k = 128};
  mx.codes = TensorView::read_only(codes.data(), DType::kI8, {1, 64});
  mx.scales = TensorView::read_only(mx_scales.data(), DType::kF8E8m0, {1, 4});

  const int32_t global_exponent = 125 - 127 - 8;
  EXPECT_EQ(global_exponent, -10);
  std::vector<uint8_t> nv_scales;
  for (const uint8_t code : mx_scales) {
    const uint8_t scale = f32_to_e4m3(exp2_int(code - 127 - global_exponent));
    nv_scales.insert(nv_scales.end(), 2, scale);
  }
  EXPECT_EQ(nv_scales, (std::vector<uint8_t>{0x40, 0x40, 0x58, 0x58, 0x78, 0x78, 0x50, 0x50}));
  WeightView nv = mx;
  nv.format = Format::kNvfp4;
  nv.scales = TensorView::read_only(nv_scales.data(), DType::kF8E4m3, {1, 8});
  nv.global_scale = exp2_int(global_exponent);
  const std::vector<float> from_mx = decoded(mx);
  const std::vector<float> from_nv = decoded(nv);
  for (size_t i = 0; i < from_mx.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(from_mx[i]), std::bit_cast<uint32_t>(from_nv[i])) << i;
  }
}

TEST(Fp8Block128x128, UsesTheScaleOfARaggedBlock) {
  const int64_t n = 200;
  const int64_t k = 300;
  EXPECT_EQ(scale_shape(Format::kFp8E4m3Block128x128, n, k), (Shape{2, 3}));
  const std::vector<uint8_t> codes(static_cast<size_t>(n * k), 0x38);  // all ones
  const std::array<float, 6> scales = {1, 2, 3, 4, 5, 6};
  WeightView view{.format = Format::kFp8E4m3Block128x128, .n = n, .k = k};
  view.codes = TensorView::read_only(codes.data(), DType::kF8E4m3, {n, k});
  view.scales = TensorView::read_only(scales.data(), DType::kF32, {2, 3});
  const std::vector<float> w = decoded(view);
  const auto at = [&](int64_t i, int64_t j) { return w[static_cast<size_t>(i * k + j)]; };
  EXPECT_EQ(at(130, 257), 6.0f);  // scales[1][2]
  EXPECT_EQ(at(127, 127), 1.0f);
  EXPECT_EQ(at(127, 128), 2.0f);
  EXPECT_EQ(at(128, 0), 4.0f);
  EXPECT_EQ(at(199, 299), 6.0f);
}

TEST(Fp8Block128x128, RoundsE8m0ScalesUp) {
  std::vector<float> w(size_t{128} * 128, 0.0f);
  w[0] = 3.0f * 448.0f;
  EXPECT_EQ(bytes_of(quantize(Format::kFp8E4m3Block128x128, w, 128, 128).scales),
            (std::vector<uint8_t>{127 + 2}));
  w[0] = 0.0003f * 448.0f;
  EXPECT_EQ(bytes_of(quantize(Format::kFp8E4m3Block128x128, w, 128, 128).scales),
            (std::vector<uint8_t>{127 - 11}));
}

TEST(Int4Group32, UsesSevenAndAHalfSteps) {
  std::vector<float> w(32, 0.0f);
  w[0] = 3.0f;
  w[1] = -3.2f + 0.2f;
  const QuantizedWeight q = quantize(Format::kInt4Group32, w, 1, 32, DType::kF32);
  const std::vector<float> back = decoded(q.view());
  EXPECT_FLOAT_EQ(q.view().scales.as<float>()[0], 0.4f);
  EXPECT_FLOAT_EQ(back[0], 2.8f);  // 7.5 steps round to 8 and saturate at 7
  EXPECT_FLOAT_EQ(back[1], -3.2f);
}

// Largest magnitude of each block of w [n, k], blocks in row-major order.
std::vector<float> block_maxima(const std::vector<float>& w,
                                int64_t n,
                                int64_t k,
                                BlockShape block) {
  const int64_t blocks_per_row = ceil_div(k, block.k);
  std::vector<float> maxima(static_cast<size_t>(ceil_div(n, block.n) * blocks_per_row), 0.0f);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < k; ++j) {
      float& amax = maxima[static_cast<size_t>(i / block.n * blocks_per_row + j / block.k)];
      amax = std::max(amax, std::fabs(w[static_cast<size_t>(i * k + j)]));
    }
  }
  return maxima;
}

struct RoundTripCase {
  Format format;
  DType scale_dtype;
  float step;  // largest |error| / amax of the block
};

// A value between two neighbouring codes moves by at most half of their distance, relative to the
// block's amax. Power-of-two scales waste up to one bit, so the half step doubles there.
const RoundTripCase kRoundTrips[] = {
    {Format::kF32, DType::kF32, 0.0f},
    {Format::kBf16, DType::kF32, 1.0f / 256},
    {Format::kF16, DType::kF32, 1.0f / 2048},
    {Format::kFp8E4m3Block128x128, DType::kF32, 16.0f / 448},
    {Format::kFp8E4m3Block128x128, DType::kF8E8m0, 32.0f / 448},
    {Format::kMxfp4, DType::kF8E8m0, 2.0f / 6},
    // The group scale rounds by at most 1/16 in either direction.
    {Format::kNvfp4, DType::kF8E4m3, 1.0f / 6 * 17 / 16},
    // Half a step, or half a step beyond the last positive code, and the rounding of the scale
    // itself.
    {Format::kInt4Group32, DType::kBf16, 0.5f / 7.5f + 8.0f / 7.5f / 256},
    {Format::kInt4Group32, DType::kF16, 0.5f / 7.5f + 8.0f / 7.5f / 2048},
    {Format::kInt4Group32, DType::kF32, 0.5f / 7.5f + 1e-6f},
};

TEST(Quantize, MovesNoValueByMoreThanHalfAStep) {
  const int64_t n = 130;
  const int64_t k = 160;
  const std::vector<float> w = random_weight(n, k, 11);
  for (const RoundTripCase& c : kRoundTrips) {
    const std::vector<float> back = decoded(quantize(c.format, w, n, k, c.scale_dtype).view());
    const BlockShape block = format_info(c.format).block_shape;
    const std::vector<float> maxima = block_maxima(w, n, k, block);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < k; ++j) {
        const float amax =
            maxima[static_cast<size_t>(i / block.n * ceil_div(k, block.k) + j / block.k)];
        const auto index = static_cast<size_t>(i * k + j);
        ASSERT_LE(std::fabs(back[index] - w[index]), c.step * amax)
            << format_name(c.format) << " " << i << " " << j;
      }
    }
  }
}

TEST(Quantize, IsAFixedPointOnItsOwnOutput) {
  for (const FormatInfo& info : kFormats) {
    if (info.format == Format::kInt4Group32 || info.format == Format::kNvfp4)
      continue;  // scales derive from amax
    const std::vector<float> w = random_weight(8, 256, 5);
    const std::vector<float> once = decoded(quantize(info.format, w, 8, 256).view());
    EXPECT_EQ(decoded(quantize(info.format, once, 8, 256).view()), once) << info.name;
  }
}

TEST(Quantize, KeepsZerosExact) {
  const std::vector<float> zeros(64, 0.0f);
  for (const FormatInfo& info : kFormats) {
    EXPECT_EQ(decoded(quantize(info.format, zeros, 2, 32).view()), zeros) << info.name;
  }
}

TEST(Format, NamesRoundTripAndRowsAreInEnumOrder) {
  for (size_t i = 0; i < kFormats.size(); ++i) {
    EXPECT_EQ(static_cast<size_t>(kFormats[i].format), i);
    EXPECT_EQ(format_from_name(kFormats[i].name), kFormats[i].format);
    const int64_t bits = dtype_size(kFormats[i].code_dtypes.dtypes[0]) * 8;
    EXPECT_EQ(bits, kFormats[i].bits_per_weight * kFormats[i].elements_per_code);
  }
  EXPECT_EQ(format_from_name("fp4"), std::nullopt);
}

}  // namespace
}  // namespace nibble::quant
