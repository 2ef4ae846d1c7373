#include "kernels/bf16_panel64.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "quant/reference.h"

namespace nibble::kernels {
namespace {

using quant::Format;
using quant::QuantizedWeight;

QuantizedWeight random_bf16(int64_t n, int64_t k, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(n * k));
  for (float& value : values) value = normal(random);
  return quant::quantize(Format::kBf16, values, n, k, DType::kF32);
}

std::vector<float> stored_row(const QuantizedWeight& weight, int64_t row) {
  std::vector<float> out(static_cast<size_t>(weight.k));
  quant::dequantize_row(weight.view(), row, out);
  return out;
}

std::vector<float> packed_row(const PackedWeight& weight, int64_t row) {
  std::vector<float> out(static_cast<size_t>(weight.k));
  unpack_row(weight, row, out);
  return out;
}

TEST(Bf16Panel64, KeepsEveryValueOfRaggedShapes) {
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 40}, {70, 300}, {128, 256}}) {
    const QuantizedWeight weight = random_bf16(n, k, 3);
    const WeightRows rows{.weight = weight.view(), .row_begin = 0, .row_end = n};
    const PackedWeight packed = pack_weight({&rows, 1}, PackedLayout::kBf16Panel64).value();
    EXPECT_EQ(packed.num_bytes(),
              packed_weight_bytes(Format::kBf16, n, k, DType::kF32, PackedLayout::kBf16Panel64));
    for (int64_t row = 0; row < n; ++row) {
      EXPECT_EQ(packed_row(packed, row), stored_row(weight, row)) << n << "x" << k << " " << row;
    }
  }
}

TEST(Bf16Panel64, StacksSources) {
  const QuantizedWeight a = random_bf16(100, 128, 4), b = random_bf16(30, 128, 5);
  const WeightRows rows[] = {{.weight = a.view(), .row_begin = 10, .row_end = 75},
                             {.weight = b.view(), .row_begin = 1, .row_end = 30}};
  const PackedWeight packed = pack_weight(rows, PackedLayout::kBf16Panel64).value();
  EXPECT_EQ(packed.n, 94);
  EXPECT_EQ(packed_row(packed, 64), stored_row(a, 74));
  EXPECT_EQ(packed_row(packed, 65), stored_row(b, 1));
}

// Worked out by hand: row 9 of the second panel, column 64 + 35.
TEST(Bf16Panel64, TilesHaveTheOrderOfTheLayout) {
  QuantizedWeight weight = random_bf16(128, 128, 6);
  std::fill(weight.codes.begin(), weight.codes.end(), std::byte{0});
  weight.codes[(73 * 128 + 64 + 35) * 2 + 1] = std::byte{0x3F};
  const WeightRows rows{.weight = weight.view(), .row_begin = 0, .row_end = 128};
  const PackedWeight packed = pack_weight({&rows, 1}, PackedLayout::kBf16Panel64).value();
  EXPECT_EQ(packed.codes[3 * 8192 + 4 * 1024 + 128 + 16 + 3 * 2 + 1], std::byte{0x3F});
}

TEST(Bf16Panel64, RefusesOtherFormats) {
  const std::vector<float> values(64 * 64, 1.0f);
  const QuantizedWeight weight = quant::quantize(Format::kF32, values, 64, 64, DType::kF32);
  const WeightRows rows{.weight = weight.view(), .row_begin = 0, .row_end = 64};
  EXPECT_EQ(pack_weight({&rows, 1}, PackedLayout::kBf16Panel64).error().code,
            Errc::kInvalidArgument);
}

}  // namespace
}  // namespace nibble::kernels
