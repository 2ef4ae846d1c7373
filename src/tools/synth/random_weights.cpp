#include "tools/synth/random_weights.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "base/checked_math.h"
#include "base/hash.h"
#include "base/random.h"
#include "quant/numeric.h"

namespace nibble::tools {
namespace {

using quant::Format;
using quant::QuantizedWeight;

// clang-format off
// Magnitudes of E4M3 codes at the 128 quantiles (i + 1/2) / 128 of |x|, x normal with deviation
// 130. The largest is 384, for which the ceil rule gives a block the scale that it has.
constexpr std::array<uint8_t, 128> kE4m3Magnitudes = {
    0x32, 0x3F, 0x45, 0x49, 0x4B, 0x4E, 0x50, 0x52, 0x53, 0x54, 0x55, 0x57, 0x58, 0x59, 0x59, 0x5A,
    0x5B, 0x5B, 0x5C, 0x5C, 0x5D, 0x5E, 0x5E, 0x5F, 0x60, 0x60, 0x61, 0x61, 0x61, 0x62, 0x62, 0x62,
    0x63, 0x63, 0x63, 0x64, 0x64, 0x64, 0x65, 0x65, 0x65, 0x66, 0x66, 0x66, 0x67, 0x67, 0x67, 0x68,
    0x68, 0x68, 0x68, 0x69, 0x69, 0x69, 0x69, 0x69, 0x6A, 0x6A, 0x6A, 0x6A, 0x6A, 0x6A, 0x6B, 0x6B,
    0x6B, 0x6B, 0x6B, 0x6C, 0x6C, 0x6C, 0x6C, 0x6D, 0x6D, 0x6D, 0x6D, 0x6D, 0x6E, 0x6E, 0x6E, 0x6E,
    0x6F, 0x6F, 0x6F, 0x6F, 0x70, 0x70, 0x70, 0x70, 0x70, 0x70, 0x71, 0x71, 0x71, 0x71, 0x71, 0x71,
    0x71, 0x72, 0x72, 0x72, 0x72, 0x72, 0x72, 0x73, 0x73, 0x73, 0x73, 0x73, 0x74, 0x74, 0x74, 0x74,
    0x75, 0x75, 0x75, 0x75, 0x76, 0x76, 0x77, 0x77, 0x77, 0x78, 0x78, 0x79, 0x79, 0x79, 0x7A, 0x7C,
};
// clang-format on
constexpr float kE4m3Rms = 129.7f;
// E2M1 magnitude codes in proportion to a normal distribution with deviation 1.9, out of 128.
constexpr std::array<int32_t, 8> kE2m1Counts = {13, 26, 23, 20, 22, 16, 7, 1};
constexpr float kE2m1Rms = 1.88f;

constexpr std::array<uint8_t, 256> make_e2m1_codes() {
  std::array<uint8_t, 256> codes{};
  size_t next = 0;
  for (size_t code = 0; code < kE2m1Counts.size(); ++code) {
    for (int32_t i = 0; i < kE2m1Counts[code]; ++i, ++next) {
      codes[next] = static_cast<uint8_t>(code);
      codes[next + 128] = static_cast<uint8_t>(code | 8);
    }
  }
  return codes;
}
// A random byte to a code with sign. Code 8, -0, is among them, as in released files.
constexpr std::array<uint8_t, 256> kE2m1Codes = make_e2m1_codes();

constexpr int64_t kGroup = 32;
constexpr uint64_t kWordsPerGroup = 5;  // four of random bytes for codes, one for the rest
constexpr int64_t kFp8Block = 128;

// Spread of scales within a tensor, in powers of two; the index is random.
constexpr std::array<int32_t, 16> kScaleOffsets = {
    -2, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2};
constexpr double kSpreadRms = 1.5;  // sqrt(mean of 4^offset)

uint8_t random_byte(uint64_t word, int64_t i) { return static_cast<uint8_t>(word >> (8 * i)); }

// Exponent of the scale that gives weights of `k` inputs the deviation 1 / sqrt(k).
int32_t base_exponent(int64_t k, float code_rms) {
  const double rms = kSpreadRms * static_cast<double>(code_rms);
  return static_cast<int32_t>(
      std::lround(std::log2(1.0 / (rms * std::sqrt(static_cast<double>(k))))));
}

// Some rows are larger as a whole, as outlier channels are.
int32_t row_offset(uint64_t seed, int64_t row) {
  return (split_mix64(~seed, static_cast<uint64_t>(row)) & 15) == 0 ? 1 : 0;
}

uint8_t mxfp4_scale(uint64_t seed, int32_t base, int64_t row, uint64_t group) {
  const uint64_t word = split_mix64(seed, group * kWordsPerGroup + 4);
  return static_cast<uint8_t>(127 + base + row_offset(seed, row) + kScaleOffsets[word & 15]);
}

void fill_mxfp4_group(uint64_t seed, uint64_t group, std::byte* codes) {
  std::array<uint8_t, kGroup> nibbles{};
  bool has_large = false;
  for (uint64_t w = 0; w < 4; ++w) {
    const uint64_t word = split_mix64(seed, group * kWordsPerGroup + w);
    for (int64_t i = 0; i < 8; ++i) {
      const uint8_t code = kE2m1Codes[random_byte(word, i)];
      nibbles[8 * w + static_cast<uint64_t>(i)] = code;
      has_large |= (code & 7) >= 6;
    }
  }
  if (!has_large) {  // the ceil rule would choose a smaller scale
    uint8_t& nibble = nibbles[split_mix64(seed, group * kWordsPerGroup + 4) >> 59];
    nibble = static_cast<uint8_t>((nibble & 8) | 6);
  }
  for (size_t i = 0; i < kGroup / 2; ++i) {
    codes[i] = static_cast<std::byte>(nibbles[2 * i] | nibbles[2 * i + 1] << 4);
  }
}

void fill_fp8_row(uint64_t seed, int64_t row, std::span<std::byte> codes) {
  const auto k = static_cast<int64_t>(codes.size());
  const int64_t words_per_row = ceil_div(k, 8);
  for (int64_t w = 0; w < words_per_row; ++w) {
    const uint64_t word = split_mix64(seed, static_cast<uint64_t>(row * words_per_row + w));
    const int64_t count = std::min<int64_t>(8, k - 8 * w);
    for (int64_t j = 0; j < count; ++j) {
      const uint8_t byte = random_byte(word, j);
      codes[static_cast<size_t>(8 * w + j)] =
          static_cast<std::byte>(kE4m3Magnitudes[byte & 127] | (byte & 128));
    }
  }
}

QuantizedWeight make_weight(Format format, int64_t num_rows, int64_t k) {
  QuantizedWeight weight{.format = format, .n = num_rows, .k = k, .scale_dtype = DType::kF8E8m0};
  const auto num_codes = num_rows * k * quant::format_info(format).bits_per_weight / 8;
  weight.codes.resize(static_cast<size_t>(num_codes));
  weight.scales.resize(static_cast<size_t>(quant::scale_shape(format, num_rows, k).num_elements()));
  return weight;
}

}  // namespace

uint64_t tensor_seed(uint64_t seed, std::string_view name) {
  return hash_bytes(std::as_bytes(std::span(name)), mix64(seed));
}

void fill_mxfp4_scales(uint64_t seed, int64_t n, int64_t k, std::span<uint8_t> out) {
  const int64_t groups = k / kGroup;
  CHECK(k % kGroup == 0 && static_cast<int64_t>(out.size()) == n * groups) << k;
  const int32_t base = base_exponent(k, kE2m1Rms);
  for (int64_t i = 0; i < n * groups; ++i) {
    out[static_cast<size_t>(i)] = mxfp4_scale(seed, base, i / groups, static_cast<uint64_t>(i));
  }
}

QuantizedWeight random_mxfp4_rows(uint64_t seed, int64_t k, int64_t row_begin, int64_t num_rows) {
  CHECK(k % kGroup == 0) << k;
  const int64_t groups = k / kGroup;
  QuantizedWeight weight = make_weight(Format::kMxfp4, num_rows, k);
  const int32_t base = base_exponent(k, kE2m1Rms);
  for (int64_t i = 0; i < num_rows * groups; ++i) {
    const auto group = static_cast<uint64_t>(row_begin * groups + i);
    weight.scales[static_cast<size_t>(i)] =
        static_cast<std::byte>(mxfp4_scale(seed, base, row_begin + i / groups, group));
    fill_mxfp4_group(seed, group, weight.codes.data() + i * kGroup / 2);
  }
  return weight;
}

QuantizedWeight random_fp8_rows(uint64_t seed, int64_t k, int64_t row_begin, int64_t num_rows) {
  CHECK(row_begin % kFp8Block == 0) << row_begin;
  QuantizedWeight weight = make_weight(Format::kFp8E4m3Block128x128, num_rows, k);
  for (int64_t i = 0; i < num_rows; ++i) {
    fill_fp8_row(
        seed,
        row_begin + i,
        std::span(weight.codes).subspan(static_cast<size_t>(i * k), static_cast<size_t>(k)));
  }
  const int64_t block_columns = ceil_div(k, kFp8Block);
  const int64_t first_block = row_begin / kFp8Block * block_columns;
  const int32_t base = base_exponent(k, kE4m3Rms);
  for (int64_t b = 0; b < static_cast<int64_t>(weight.scales.size()); ++b) {
    const uint64_t word = split_mix64(~seed, static_cast<uint64_t>(first_block + b));
    weight.scales[static_cast<size_t>(b)] =
        static_cast<std::byte>(127 + base + kScaleOffsets[word & 15]);
    // Every block holds a largest code, as the ceil rule demands.
    const int64_t column = b % block_columns * kFp8Block;
    const auto width = static_cast<uint64_t>(std::min(kFp8Block, k - column));
    const int64_t at =
        b / block_columns * kFp8Block * k + column + static_cast<int64_t>((word >> 8) % width);
    weight.codes[static_cast<size_t>(at)] = static_cast<std::byte>(kE4m3Magnitudes.back());
  }
  return weight;
}

float random_normal(uint64_t seed, uint64_t position) {
  // The sum of four uniform 16-bit numbers: close to normal, and the same on every machine.
  const uint64_t word = split_mix64(seed, position);
  const auto sum = static_cast<int32_t>((word & 0xFFFF) + (word >> 16 & 0xFFFF) +
                                        (word >> 32 & 0xFFFF) + (word >> 48));
  constexpr float kDeviation = 37837.0f;  // 65536 * sqrt(4 / 12)
  return static_cast<float>(sum - 2 * 0xFFFF) / kDeviation;
}

void fill_expert_ids(uint64_t seed, int64_t num_experts, int64_t row, std::span<int64_t> out) {
  CHECK(static_cast<int64_t>(out.size()) <= num_experts) << num_experts;
  uint64_t position = static_cast<uint64_t>(row) << 16;
  size_t count = 0;
  while (count < out.size()) {
    const auto id =
        static_cast<int64_t>(split_mix64(seed, position++) % static_cast<uint64_t>(num_experts));
    const auto known = out.first(count);
    if (std::find(known.begin(), known.end(), id) == known.end()) out[count++] = id;
  }
}

}  // namespace nibble::tools
