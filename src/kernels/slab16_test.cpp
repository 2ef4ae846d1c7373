#include "kernels/slab16.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "kernels/slab16_testing.h"
#include "quant/reference.h"

namespace nibble::kernels {
namespace {

using quant::Format;
using quant::QuantizedWeight;
using ::testing::HasSubstr;

constexpr Format kFormats[] = {Format::kMxfp4, Format::kNvfp4, Format::kFp8E4m3Block128x128};

std::vector<float> stored_row(const QuantizedWeight& weight, int64_t row) {
  std::vector<float> out(static_cast<size_t>(weight.k));
  quant::dequantize_row(weight.view(), row, out);
  return out;
}

std::vector<float> slab_row(const PackedWeight& weight, int64_t row) {
  std::vector<float> out(static_cast<size_t>(weight.k));
  unpack_slab16_row(weight, row, out);
  return out;
}

WeightRows all_rows(const QuantizedWeight& weight) {
  return {.weight = weight.view(), .row_begin = 0, .row_end = weight.n};
}

TEST(Slab16, KeepsEveryValueOfRaggedShapes) {
  for (const Format format : kFormats) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 128}, {70, 384}, {128, 512}}) {
      const QuantizedWeight weight = random_slab_weight(format, n, k, 3);
      const WeightRows rows = all_rows(weight);
      const PackedWeight packed = pack_weight({&rows, 1}, PackedLayout::kSlab16).value();
      EXPECT_EQ(packed.num_bytes(),
                packed_weight_bytes(format, n, k, weight.scale_dtype, PackedLayout::kSlab16));
      for (int64_t row = 0; row < n; ++row) {
        EXPECT_EQ(slab_row(packed, row), stored_row(weight, row))
            << quant::format_name(format) << " " << n << "x" << k << " row " << row;
      }
    }
  }
}

TEST(Slab16, PutsMatchingUpRowsEightBelowTheirGateRows) {
  for (const Format format : kFormats) {
    const QuantizedWeight gate = random_slab_weight(format, 24, 256, 4);
    const QuantizedWeight up = random_slab_weight(format, 24, 256, 5);
    const WeightRows rows[] = {all_rows(gate), all_rows(up)};
    const PackedWeight packed = pack_slab16(rows, PanelOrder::kGateUp).value();
    for (int64_t j = 0; j < 24; ++j) {
      const int64_t at = j / 8 * 16 + j % 8;
      EXPECT_EQ(slab_row(packed, at), stored_row(gate, j)) << quant::format_name(format) << j;
      EXPECT_EQ(slab_row(packed, at + 8), stored_row(up, j)) << quant::format_name(format) << j;
    }
  }
}

// Flipping any bit of a full package changes exactly one value, or the values of one group: no byte
// is unused and none is used twice.
TEST(Slab16, UsesEveryByteOnce) {
  for (const Format format : kFormats) {
    const QuantizedWeight weight = random_slab_weight(format, 16, 256, 6);
    const WeightRows rows = all_rows(weight);
    const PackedWeight packed = pack_slab16({&rows, 1}, PanelOrder::kNatural).value();
    const auto decode = [&] {
      std::vector<float> all(16 * 256);
      unpack_weight(packed, all);
      return all;
    };
    const std::vector<float> before = decode();
    const int64_t codes = slab_stage_bytes(format).codes;
    const bool is_4bit = format != Format::kFp8E4m3Block128x128;
    std::set<size_t> seen;
    for (int64_t byte = 0; byte < codes; ++byte) {
      for (const std::byte flipped : {std::byte{0x04}, std::byte{0x40}}) {
        packed.storage.data()[byte] ^= flipped;
        const std::vector<float> after = decode();
        packed.storage.data()[byte] ^= flipped;
        size_t changed = 0;
        for (size_t i = 0; i < after.size(); ++i) {
          if (after[i] == before[i]) continue;
          ++changed;
          if (is_4bit || flipped == std::byte{0x04}) {
            EXPECT_TRUE(seen.insert(i).second) << i;
          }
        }
        EXPECT_EQ(changed, 1U) << quant::format_name(format) << " byte " << byte;
      }
    }
    EXPECT_EQ(seen.size(), before.size());
  }
}

// Worked out by hand from the layout.
TEST(Slab16, WordsHaveTheOrderOfTheLayout) {
  QuantizedWeight weight = random_slab_weight(Format::kMxfp4, 16, 256, 7);
  std::fill(weight.codes.begin(), weight.codes.end(), std::byte{0});
  // Row 9, k 32 + 8 * 2 + 5: group 1, lane 4 * 1 + 2, v_5: high nibble of byte 1 of the word of row
  // g + 8.
  weight.codes[static_cast<size_t>((9 * 256 + 53) / 2)] = std::byte{0xB0};
  const WeightRows rows = all_rows(weight);
  const PackedWeight mxfp4 = pack_slab16({&rows, 1}, PanelOrder::kNatural).value();
  EXPECT_EQ(mxfp4.codes[6 * 16 + 12 + 1], std::byte{0xB0});
  EXPECT_EQ(mxfp4.codes[2048 + 9 * 8 + 1], weight.scales[9 * 8 + 1]);

  QuantizedWeight nvfp4 = random_slab_weight(Format::kNvfp4, 16, 256, 8);
  std::fill(nvfp4.codes.begin(), nvfp4.codes.end(), std::byte{0});
  // Row 2, k 64 + 16 + 4 * 3 + 1: chunk 1, group 0, lane 11, v_5: nibble 2 of the high half.
  nvfp4.codes[static_cast<size_t>((2 * 256 + 93) / 2)] = std::byte{0x70};
  const WeightRows nvfp4_rows = all_rows(nvfp4);
  const PackedWeight packed = pack_slab16({&nvfp4_rows, 1}, PanelOrder::kNatural).value();
  uint32_t word = 0;
  std::memcpy(&word, packed.codes + 512 + 11 * 16, sizeof(word));
  EXPECT_EQ(word, 7U << (16 + 8));
  EXPECT_EQ(packed.codes[2048 + 2 * 16 + 5], nvfp4.scales[2 * 16 + 5]);
}

TEST(Slab16, RefusesHalvesWithTwoScales) {
  const QuantizedWeight weight = random_slab_weight(Format::kFp8E4m3Block128x128, 256, 128, 9);
  const WeightRows rows{.weight = weight.view(), .row_begin = 124, .row_end = 140};
  const auto packed = pack_slab16({&rows, 1}, PanelOrder::kNatural);
  ASSERT_FALSE(packed.ok());
  EXPECT_EQ(packed.error().code, Errc::kUnsupported);
  EXPECT_THAT(packed.error().message, HasSubstr("rows 127 and 128 share 8 rows of a slab"));
}

TEST(Slab16, RefusesOtherFormats) {
  QuantizedWeight weight = random_slab_weight(Format::kMxfp4, 16, 256, 10);
  weight.format = Format::kInt4Group32;
  const WeightRows rows = all_rows(weight);
  EXPECT_EQ(pack_slab16({&rows, 1}, PanelOrder::kNatural).error().code, Errc::kInvalidArgument);
}

}  // namespace
}  // namespace nibble::kernels
