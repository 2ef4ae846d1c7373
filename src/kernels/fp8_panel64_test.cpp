#include "kernels/fp8_panel64.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "quant/reference.h"

namespace nibble::kernels {
namespace {

using quant::Format;
using quant::QuantizedWeight;
using ::testing::HasSubstr;

QuantizedWeight random_fp8(int64_t n, int64_t k, DType scale_dtype, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(n * k));
  for (float& value : values) value = normal(random);
  return quant::quantize(Format::kFp8E4m3Block128x128, values, n, k, scale_dtype);
}

std::vector<float> stored_row(const QuantizedWeight& weight, int64_t row) {
  std::vector<float> out(static_cast<size_t>(weight.k));
  quant::dequantize_row(weight.view(), row, out);
  return out;
}

std::vector<float> packed_row(const PackedWeight& weight, int64_t row) {
  std::vector<float> out(static_cast<size_t>(weight.k));
  unpack_fp8_panel64_row(weight, row, out);
  return out;
}

TEST(Fp8Panel64, KeepsEveryValueOfRaggedShapes) {
  for (const DType dtype : {DType::kF8E8m0, DType::kF32}) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 40}, {70, 300}, {256, 512}}) {
      const QuantizedWeight weight = random_fp8(n, k, dtype, 3);
      const WeightRows rows{.weight = weight.view(), .row_begin = 0, .row_end = n};
      const PackedWeight packed = pack_fp8_panel64({&rows, 1}).value();
      EXPECT_EQ(packed.num_bytes(),
                packed_weight_bytes(
                    Format::kFp8E4m3Block128x128, n, k, dtype, PackedLayout::kFp8Panel64));
      for (int64_t row = 0; row < n; ++row) {
        EXPECT_EQ(packed_row(packed, row), stored_row(weight, row)) << n << "x" << k << " " << row;
      }
    }
  }
}

TEST(Fp8Panel64, StacksSourcesThatAreCutWithinAScaleBlock) {
  const QuantizedWeight a = random_fp8(256, 256, DType::kF8E8m0, 4);
  const QuantizedWeight b = random_fp8(128, 256, DType::kF8E8m0, 5);
  const WeightRows rows[] = {{.weight = a.view(), .row_begin = 64, .row_end = 192},
                             {.weight = b.view(), .row_begin = 64, .row_end = 128}};
  const PackedWeight packed = pack_fp8_panel64(rows).value();
  for (int64_t row = 0; row < 128; ++row) {
    EXPECT_EQ(packed_row(packed, row), stored_row(a, 64 + row)) << row;
  }
  for (int64_t row = 0; row < 64; ++row) {
    EXPECT_EQ(packed_row(packed, 128 + row), stored_row(b, 64 + row)) << row;
  }
}

// Worked out by hand: row 9 of the panel, column 128 + 35.
TEST(Fp8Panel64, TilesHaveTheOrderOfTheLayout) {
  QuantizedWeight weight = random_fp8(64, 256, DType::kF8E8m0, 6);
  std::fill(weight.codes.begin(), weight.codes.end(), std::byte{0});
  weight.codes[9 * 256 + 128 + 35] = std::byte{0x38};
  const WeightRows rows{.weight = weight.view(), .row_begin = 0, .row_end = 64};
  const PackedWeight packed = pack_fp8_panel64({&rows, 1}).value();
  EXPECT_EQ(packed.codes[8192 + 2 * 1024 + 128 + 16 + 3], std::byte{0x38});
}

TEST(Fp8Panel64, RefusesAPanelWithTwoScales) {
  const QuantizedWeight weight = random_fp8(256, 128, DType::kF8E8m0, 7);
  const WeightRows rows{.weight = weight.view(), .row_begin = 100, .row_end = 200};
  const auto packed = pack_fp8_panel64({&rows, 1});
  ASSERT_FALSE(packed.ok());
  EXPECT_EQ(packed.error().code, Errc::kUnsupported);
  EXPECT_THAT(packed.error().message, HasSubstr("rows 100 to 200"));
}

}  // namespace
}  // namespace nibble::kernels
