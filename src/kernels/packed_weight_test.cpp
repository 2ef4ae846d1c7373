#include "kernels/packed_weight.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "quant/reference.h"

namespace nibble::kernels {
namespace {

using quant::Format;
using quant::QuantizedWeight;

constexpr PackedLayout kLayouts[] = {PackedLayout::kRowMajor, PackedLayout::kInterleaved16};

// Rows of very different sizes, so that a scale taken from the wrong block shows.
QuantizedWeight random_weight(
    Format format, int64_t n, int64_t k, DType scale_dtype, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(n * k));
  for (int64_t i = 0; i < n * k; ++i) {
    const auto exponent = static_cast<int>((i / k / 100 + i % k / 100) % 7) - 3;
    values[static_cast<size_t>(i)] = std::ldexp(normal(random), exponent);
  }
  return quant::quantize(format, values, n, k, scale_dtype);
}

std::vector<float> decoded_rows(const quant::WeightView& view, int64_t begin, int64_t end) {
  std::vector<float> out;
  std::vector<float> row(static_cast<size_t>(view.k));
  for (int64_t i = begin; i < end; ++i) {
    quant::dequantize_row(view, i, row);
    out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

std::vector<float> unpacked(const PackedWeight& weight) {
  std::vector<float> out(static_cast<size_t>(weight.n * weight.k));
  unpack_weight(weight, out);
  return out;
}

// Each format with each scale dtype, at an n and k that are not multiples of anything where that is
// allowed.
struct FormatCase {
  Format format;
  DType scale_dtype;
  int64_t n, k;
};
std::vector<FormatCase> format_cases() {
  std::vector<FormatCase> cases;
  for (const quant::FormatInfo& info : quant::kFormats) {
    const int64_t k = info.block_shape.n == 1 ? round_up(150, quant::k_multiple(info.format)) : 301;
    if (!info.has_scales()) cases.push_back({info.format, DType::kF32, 150, k});
    for (const DType dtype : info.scale_dtypes.span()) {
      cases.push_back({info.format, dtype, 150, k});
    }
  }
  return cases;
}

TEST(PackWeight, UnpacksToTheDecodedWeight) {
  for (const auto& [format, scale_dtype, n, k] : format_cases()) {
    const QuantizedWeight weight = random_weight(format, n, k, scale_dtype, 1);
    const WeightRows rows{.weight = weight.view(), .row_begin = 0, .row_end = n};
    for (const PackedLayout layout : kLayouts) {
      SCOPED_TRACE(std::string(quant::format_name(format)) + " " +
                   std::string(layout_name(layout)));
      const PackedWeight packed = pack_weight({&rows, 1}, layout).value();
      EXPECT_EQ(packed.n, n);
      EXPECT_EQ(packed.k, k);
      EXPECT_EQ(packed.num_bytes(), packed_weight_bytes(format, n, k, scale_dtype, layout));
      EXPECT_EQ(unpacked(packed), decoded_rows(weight.view(), 0, n));
    }
  }
}

TEST(PackWeight, StacksSlicesThatCutScaleBlocks) {
  for (const auto& [format, scale_dtype, n, k] : format_cases()) {
    QuantizedWeight first = random_weight(format, n, k, scale_dtype, 2);
    QuantizedWeight second = random_weight(format, n, k, scale_dtype, 3);
    // Stacked sources need not share it.
    if (quant::format_info(format).has_global_scale) first.global_scale *= 3;
    const WeightRows rows[] = {{.weight = first.view(), .row_begin = 121, .row_end = 150},
                               {.weight = second.view(), .row_begin = 7, .row_end = 142}};
    std::vector<float> expected = decoded_rows(first.view(), 121, 150);
    const std::vector<float> rest = decoded_rows(second.view(), 7, 142);
    expected.insert(expected.end(), rest.begin(), rest.end());
    for (const PackedLayout layout : kLayouts) {
      SCOPED_TRACE(std::string(quant::format_name(format)) + " " +
                   std::string(layout_name(layout)));
      const PackedWeight packed = pack_weight(rows, layout).value();
      EXPECT_EQ(packed.n, 29 + 135);
      EXPECT_EQ(unpacked(packed), expected);
    }
  }
}

TEST(PackWeight, KeepsTheBitsOfTheFormat) {
  const QuantizedWeight weight = random_weight(Format::kMxfp4, 64, 256, DType::kF8E8m0, 4);
  const WeightRows rows{.weight = weight.view(), .row_begin = 0, .row_end = 64};
  EXPECT_EQ(pack_weight({&rows, 1}, PackedLayout::kInterleaved16)->num_bytes(),
            weight.view().num_bytes());
}

TEST(PackWeight, RefusesSourcesThatDoNotFit) {
  const QuantizedWeight a = random_weight(Format::kBf16, 32, 64, DType::kF32, 5);
  const QuantizedWeight b = random_weight(Format::kBf16, 32, 96, DType::kF32, 5);
  const WeightRows different_k[] = {{a.view(), 0, 32}, {b.view(), 0, 32}};
  EXPECT_EQ(pack_weight(different_k, PackedLayout::kRowMajor).error().code, Errc::kInvalidArgument);
  const WeightRows outside[] = {{a.view(), 0, 33}};
  EXPECT_EQ(pack_weight(outside, PackedLayout::kRowMajor).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(pack_weight({}, PackedLayout::kRowMajor).error().code, Errc::kInvalidArgument);
  const WeightRows good[] = {{a.view(), 0, 32}};
  EXPECT_EQ(pack_weight(good, PackedLayout::kNone).error().code, Errc::kInvalidArgument);
}

}  // namespace
}  // namespace nibble::kernels
