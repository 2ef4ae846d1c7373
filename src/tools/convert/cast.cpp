#include "tools/convert/cast.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <optional>

#include "base/check.h"
#include "quant/numeric.h"

namespace nibble::tools {
namespace {

using quant::Format;
using quant::WeightView;

constexpr int32_t kMinE4m3Exponent = -9;      // the smallest subnormal
constexpr int32_t kMaxE4m3Exponent = 8;       // 2^9 would be above 448
constexpr int32_t kMinGlobalExponent = -126;  // normal F32
constexpr int64_t kMxGroup = 32;
constexpr int64_t kNvGroup = 16;

const uint8_t* code_row(const WeightView& weight, int64_t row) {
  return static_cast<const uint8_t*>(weight.codes.data) + row * weight.k / 2;
}

const uint8_t* scale_row(const WeightView& weight, int64_t row) {
  return static_cast<const uint8_t*>(weight.scales.data) + row * weight.scales.shape[1];
}

// True when all `count` packed codes are 0 or -0.
bool are_zeros(const uint8_t* codes, int64_t count) {
  return std::all_of(codes, codes + count / 2, [](uint8_t byte) { return (byte & 0x77) == 0; });
}

constexpr uint8_t e4m3_power(int32_t exponent) {
  return static_cast<uint8_t>(exponent >= -6 ? (exponent + 7) << 3 : 1 << (exponent + 9));
}

// The exponent of an E4M3 code that is a power of two.
std::optional<int32_t> e4m3_exponent(uint8_t code) {
  const uint32_t mantissa = code & 7u;
  if (code >= 0x7F) return std::nullopt;  // negative or NaN
  if (code >= 8) return mantissa == 0 ? std::optional((code >> 3) - 7) : std::nullopt;
  if (!std::has_single_bit(mantissa)) return std::nullopt;
  return std::countr_zero(mantissa) + kMinE4m3Exponent;
}

// The exponent of a positive F32 that is a power of two, subnormals included.
std::optional<int32_t> f32_exponent(float value) {
  int32_t exponent = 0;
  if (std::frexp(value, &exponent) != 0.5f) return std::nullopt;
  return exponent - 1;
}

struct ExponentRange {
  int32_t min = 255;
  int32_t max = -1;

  void add(int32_t byte) {
    min = std::min(min, byte);
    max = std::max(max, byte);
  }
  bool is_empty() const { return max < 0; }
};

// Scale bytes of all groups.
ExponentRange scale_range(std::span<const WeightView> weights) {
  ExponentRange range;
  for (const WeightView& weight : weights) {
    const auto* scales = static_cast<const uint8_t*>(weight.scales.data);
    const int64_t count = weight.scales.shape.num_elements();
    uint8_t min = 255, max = 0;  // a loop that compilers vectorise
    for (int64_t i = 0; i < count; ++i) {
      min = std::min(min, scales[i]);
      max = std::max(max, scales[i]);
    }
    range.add(min);
    range.add(max);
  }
  return range;
}

// Scale bytes of the groups that hold a value other than 0.
ExponentRange scale_range_of_values(std::span<const WeightView> weights) {
  ExponentRange range;
  for (const WeightView& weight : weights) {
    for (int64_t i = 0; i < weight.n; ++i) {
      for (int64_t j = 0; j < weight.k / kMxGroup; ++j) {
        const uint8_t* codes = code_row(weight, i) + j * kMxGroup / 2;
        if (!are_zeros(codes, kMxGroup)) range.add(scale_row(weight, i)[j]);
      }
    }
  }
  return range;
}

int64_t count_outside(std::span<const WeightView> weights, int32_t min, int32_t max) {
  int64_t count = 0;
  for (const WeightView& weight : weights) {
    const auto* scales = static_cast<const uint8_t*>(weight.scales.data);
    count += std::count_if(scales, scales + weight.scales.shape.num_elements(), [&](uint8_t scale) {
      return scale < min || scale > max;
    });
  }
  return count;
}

constexpr int32_t kNoPowerOfTwo = -1000;  // below every exponent

// The NVFP4 scale of MX group `j` in row `i`, whose halves have different ones: a half of zeros
// follows the other.
Result<uint8_t> scale_of_value(const WeightView& weight, int64_t i, int64_t j) {
  const uint8_t* scales = scale_row(weight, i) + 2 * j;
  const uint8_t* codes = code_row(weight, i) + j * kMxGroup / 2;
  if (are_zeros(codes, kNvGroup)) return scales[1];
  if (are_zeros(codes + kNvGroup / 2, kNvGroup)) return scales[0];
  return unsupported(
      fmt::format("the halves of group {} in row {} have different scales, 0x{:02X} and 0x{:02X}",
                  j,
                  i,
                  scales[0],
                  scales[1]));
}

Error no_e8m0_scale(uint8_t scale, int32_t byte, int64_t i, int64_t j) {
  if (byte == kNoPowerOfTwo) {
    return unsupported(
        fmt::format("the scale 0x{:02X} of group {} in row {} is no power of two", scale, j, i));
  }
  return unsupported(
      fmt::format("the scale 2^{} of group {} in row {} is outside of E8M0", byte - 127, j, i));
}

}  // namespace

int32_t nvfp4_global_exponent(uint8_t largest) {
  return std::max(largest - 127 - kMaxE4m3Exponent, kMinGlobalExponent);
}

Nvfp4Cast plan_nvfp4_cast(std::span<const WeightView> weights) {
  const ExponentRange all = scale_range(weights);
  ExponentRange range = all;
  if (range.max == quant::kE8m0Nan) return {.fault = "a scale is NaN (byte 255)"};
  constexpr int32_t kSpan = kMaxE4m3Exponent - kMinE4m3Exponent;
  Nvfp4Cast cast;
  if (range.max - range.min > kSpan) {
    const ExponentRange of_values = scale_range_of_values(weights);
    if (of_values.max - of_values.min > kSpan) {
      cast.fault =
          fmt::format("scale exponents span {} to {}, and NVFP4 group scales span {} powers of two",
                      of_values.min - 127,
                      of_values.max - 127,
                      kSpan);
    }
    if (!of_values.is_empty()) range = of_values;
  }
  cast.global_exponent = nvfp4_global_exponent(static_cast<uint8_t>(range.max));
  if (cast.global_exponent > 0 && cast.fault.empty()) {
    cast.fault = fmt::format("a global scale of 2^{} is needed, and readers expect one below 1",
                             cast.global_exponent);
  }
  const int32_t min = cast.global_exponent + kMinE4m3Exponent + 127;
  const int32_t max = cast.global_exponent + kMaxE4m3Exponent + 127;
  if (all.min < min || all.max > max) cast.num_clamped_groups = count_outside(weights, min, max);
  return cast;
}

void cast_scales_to_nvfp4(const WeightView& weight,
                          int32_t global_exponent,
                          std::span<uint8_t> out) {
  CHECK(weight.format == Format::kMxfp4);
  const int64_t count = weight.scales.shape.num_elements();
  CHECK(static_cast<int64_t>(out.size()) == 2 * count) << out.size();
  std::array<uint8_t, 256> table{};
  for (int32_t byte = 0; byte < 256; ++byte) {
    table[static_cast<size_t>(byte)] =
        e4m3_power(std::clamp(byte - 127 - global_exponent, kMinE4m3Exponent, kMaxE4m3Exponent));
  }
  const auto* scales = static_cast<const uint8_t*>(weight.scales.data);
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t scale = table[scales[i]];
    out[static_cast<size_t>(2 * i)] = scale;
    out[static_cast<size_t>(2 * i + 1)] = scale;
  }
}

Result<int64_t> cast_scales_to_mxfp4(const WeightView& weight, std::span<uint8_t> out) {
  CHECK(weight.format == Format::kNvfp4);
  const int64_t groups = weight.k / kMxGroup;
  CHECK(weight.k % kMxGroup == 0) << weight.k;
  CHECK(static_cast<int64_t>(out.size()) == weight.n * groups) << out.size();
  const std::optional<int32_t> global = f32_exponent(weight.global_scale);
  if (!global) {
    return unsupported(fmt::format("the global scale {} is no power of two", weight.global_scale));
  }
  std::array<int32_t, 256> bytes{};  // the E8M0 byte for each E4M3 code, or why there is none
  for (size_t code = 0; code < bytes.size(); ++code) {
    const std::optional<int32_t> exponent = e4m3_exponent(static_cast<uint8_t>(code));
    bytes[code] = exponent ? *exponent + *global + 127 : kNoPowerOfTwo;
  }
  int64_t num_adopted = 0;
  for (int64_t i = 0; i < weight.n; ++i) {
    const uint8_t* scales = scale_row(weight, i);
    for (int64_t j = 0; j < groups; ++j) {
      uint8_t scale = scales[2 * j];
      if (scale != scales[2 * j + 1]) {
        TRY_ASSIGN(scale, scale_of_value(weight, i, j));
        ++num_adopted;
      }
      const int32_t byte = bytes[scale];
      if (byte < 0 || byte >= quant::kE8m0Nan) return no_e8m0_scale(scale, byte, i, j);
      out[static_cast<size_t>(i * groups + j)] = static_cast<uint8_t>(byte);
    }
  }
  return num_adopted;
}

}  // namespace nibble::tools
