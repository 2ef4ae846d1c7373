#include "kernels/panel64.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/check.h"
#include "kernels/stored_rows-inl.h"
#include "quant/numeric.h"
#include "quant/reference.h"

namespace nibble::kernels {
namespace {

using quant::Format;

constexpr int64_t kGroup = 32;  // of the word order; NVFP4 has two scales in one
constexpr int64_t kChunkBytes = 512;

struct StoredRow {
  const quant::WeightView* weight = nullptr;
  int64_t row = 0;

  // Low nibble first, two values of k per byte.
  const uint8_t* codes() const {
    return static_cast<const uint8_t*>(weight->codes.data) +
           row * weight->codes.row_stride * dtype_size(weight->codes.dtype);
  }
  // One byte per group: MXFP4's exponents with bias 127, NVFP4's E4M3.
  const uint8_t* scales() const {
    return static_cast<const uint8_t*>(weight->scales.data) + row * weight->scales.row_stride;
  }
  // The value of the scale of `group`, of any dtype.
  float scale(int64_t group) const {
    const TensorView& view = weight->scales;
    return quant::scale_value(
        view.dtype,
        static_cast<const std::byte*>(view.data) + row * view.row_stride * dtype_size(view.dtype),
        group);
  }
  uint32_t nibble(int64_t k) const { return (codes()[k / 2] >> (k % 2 * 4)) & 0xFU; }
  // Three bits and a sign above them.
  uint32_t code(int64_t k) const {
    if (k >= weight->k) return 0;  // NVFP4: the second half of the last group
    const uint32_t stored = nibble(k);
    if (weight->format != Format::kInt4Group32) return stored;
    const int32_t value = quant::int4_to_int(static_cast<uint8_t>(stored));
    return value < 0 ? (static_cast<uint32_t>(-value) & 7U) | 8U : static_cast<uint32_t>(value);
  }
};

// The place of one (row, group): its four words and its scales, all one after the other but
// NVFP4's, which are two bytes apart.
template <class Byte>
struct GroupPlace {
  Byte* words = nullptr;  // lane t's word is 16 t bytes on
  Byte* scale = nullptr;
};
template <class Byte>
GroupPlace<Byte> place_of(Byte* package, Format format, int64_t k, int64_t row, int64_t group) {
  const int64_t stages = panel_padded_k(k) / kPanelStageK;
  const int64_t stage = group / 8;
  const int64_t chunk = group / 2 % 4;
  const int64_t half = row % 16 / 8, g = row % 8, q = group % 2;
  Byte* const slab = package + (row / kPanelRows * stages + stage) * panel_stage_bytes(format) +
                     row % kPanelRows / 16 * panel_slab_bytes(format);
  const int64_t in_pairs = chunk / 2 * 128 + g * 16 + chunk % 2 * 8 + q * 4;
  const int64_t scale = format == Format::kMxfp4   ? g * 16 + chunk * 4 + half * 2 + q
                        : format == Format::kNvfp4 ? in_pairs + half
                                                   : in_pairs + half * 2;
  return {.words = slab + chunk * kChunkBytes + g * 64 + (q * 2 + half) * 4,
          .scale = slab + kPanelSlabCodeBytes + scale};
}
constexpr int64_t kNvfp4ScaleStride = 2;

// Where the bits of v_i's code lie in a word, from the lowest one up.
using CodeBits = std::array<int32_t, 4>;
constexpr CodeBits code_bits(Format format, int32_t i) {
  const int32_t byte = i % 4 * 8;
  if (format == Format::kNvfp4) {
    return i < 4 ? CodeBits{byte + 2, byte + 3, byte + 4, byte + 7}
                 : CodeBits{byte, byte + 1, byte + 6, byte + 5};
  }
  return {4 * i, 4 * i + 1, 4 * i + 2, byte + (i < 4 ? 7 : 3)};
}
// Index within its group of v_i of lane t.
constexpr int64_t value_index(int64_t t, int32_t i) { return (i < 4 ? 0 : 16) + 4 * t + i % 4; }

// `flips`: bits to turn in the codes of v0 .. v3 and of v4 .. v7.
struct SignFlips {
  uint32_t first = 0;
  uint32_t second = 0;
};
uint32_t encode_word(const StoredRow& source, int64_t first_k, int64_t t, SignFlips flips = {}) {
  uint32_t word = 0;
  for (int32_t i = 0; i < 8; ++i) {
    const uint32_t code =
        source.code(first_k + value_index(t, i)) ^ (i < 4 ? flips.first : flips.second);
    const CodeBits bits = code_bits(source.weight->format, i);
    for (size_t bit = 0; bit < bits.size(); ++bit) word |= (code >> bit & 1U) << bits[bit];
  }
  return word;
}

uint32_t decode_code(Format format, uint32_t word, int32_t i) {
  const CodeBits bits = code_bits(format, i);
  uint32_t code = 0;
  for (size_t bit = 0; bit < bits.size(); ++bit) code |= (word >> bits[bit] & 1U) << bit;
  return code;
}

bool is_zero_group(const StoredRow& source, int64_t group) {
  for (int64_t k = group * kGroup; k < (group + 1) * kGroup; ++k) {
    if ((source.code(k) & 7U) != 0) return false;
  }
  return true;
}

// Smallest and largest exponent of the groups that hold a value other than zero.
struct ExponentRange {
  int32_t min = 255;
  int32_t max = -1;
};
ExponentRange exponent_range(const StoredRow& source) {
  ExponentRange range;
  for (int64_t group = 0; group < source.weight->k / kGroup; ++group) {
    if (is_zero_group(source, group)) continue;
    range.min = std::min<int32_t>(range.min, source.scales()[group]);
    range.max = std::max<int32_t>(range.max, source.scales()[group]);
  }
  return range;
}

bool has_panels(Format format) {
  return format == Format::kMxfp4 || format == Format::kNvfp4 || format == Format::kInt4Group32;
}

void write_words(const GroupPlace<std::byte>& place,
                 const StoredRow& source,
                 int64_t group,
                 SignFlips flips) {
  for (int64_t t = 0; t < 4; ++t) {
    const uint32_t word = encode_word(source, group * kGroup, t, flips);
    std::memcpy(place.words + t * 16, &word, sizeof(word));
  }
}

// Each writes one row and returns its multiplier.
Result<float> pack_mxfp4_row(const StoredRow& source, int64_t row, std::byte* package) {
  const int64_t k = source.weight->k;
  const ExponentRange range = exponent_range(source);
  if (range.max - range.min > kPanelScaleMax) {
    return unsupported("panel64: row " + std::to_string(source.row) + ": group exponents " +
                       std::to_string(range.min - 127) + " to " + std::to_string(range.max - 127) +
                       " differ by " + std::to_string(range.max - range.min) + ", at most " +
                       std::to_string(kPanelScaleMax) +
                       " fit; force a kernel with another layout (--kernel)");
  }
  const int32_t base = range.max < 0 ? 127 : std::max(range.max - kPanelScaleMax, 0);
  for (int64_t group = 0; group < k / kGroup; ++group) {
    const GroupPlace<std::byte> place = place_of(package, Format::kMxfp4, k, row, group);
    write_words(place, source, group, {});
    const int32_t r = is_zero_group(source, group) ? 0 : source.scales()[group] - base;
    *place.scale = static_cast<std::byte>(r);
  }
  return std::ldexp(1.0f, base + kPanelScaleBias - 127);
}

Error nan_scale(const StoredRow& source) {
  return unsupported("panel64: row " + std::to_string(source.row) +
                     ": a group scale is NaN or infinite");
}

Result<float> pack_nvfp4_row(const StoredRow& source, int64_t row, std::byte* package) {
  constexpr uint8_t kSign = 0x80, kNan = 0x7F;
  const int64_t k = source.weight->k;
  for (int64_t group = 0; group < ceil_div(k, kGroup); ++group) {
    const GroupPlace<std::byte> place = place_of(package, Format::kNvfp4, k, row, group);
    SignFlips flips;
    for (int64_t s = 0; s < 2; ++s) {
      const int64_t scale_index = group * 2 + s;
      if (scale_index >= k / 16) continue;
      const uint8_t scale = source.scales()[scale_index];
      if ((scale & kNan) == kNan) return nan_scale(source);
      if ((scale & kSign) != 0) (s == 0 ? flips.first : flips.second) = 8;
      place.scale[s * kNvfp4ScaleStride] = static_cast<std::byte>(scale & kNan);
    }
    write_words(place, source, group, flips);
  }
  return source.weight->global_scale;
}

Result<float> pack_int4_row(const StoredRow& source, int64_t row, std::byte* package) {
  const int64_t k = source.weight->k;
  for (int64_t group = 0; group < k / kGroup; ++group) {
    const float scale = source.scale(group);
    if (!std::isfinite(scale)) return nan_scale(source);
    const uint16_t bits = quant::f32_to_bf16(scale);
    if (quant::bf16_to_f32(bits) != scale) {
      return unsupported("panel64: row " + std::to_string(source.row) + ": scale " +
                         std::to_string(scale) +
                         " is no bf16 value; force a kernel with another "
                         "layout (--kernel)");
    }
    const GroupPlace<std::byte> place = place_of(package, Format::kInt4Group32, k, row, group);
    write_words(place, source, group, {});
    std::memcpy(place.scale, &bits, sizeof(bits));
  }
  return 1.0f;
}

Result<float> pack_row(const StoredRow& source, int64_t row, std::byte* package) {
  switch (source.weight->format) {
    case Format::kNvfp4:
      return pack_nvfp4_row(source, row, package);
    case Format::kInt4Group32:
      return pack_int4_row(source, row, package);
    default:
      return pack_mxfp4_row(source, row, package);
  }
}

// What a code means, and what multiplies it.
float code_value(Format format, uint32_t code) {
  if (format != Format::kInt4Group32) return quant::e2m1_to_f32(static_cast<uint8_t>(code));
  const auto magnitude = static_cast<float>(code & 7U);
  if (code < 8) return magnitude;
  return code == 8 ? -8.0f : -magnitude;
}
float scale_value(Format format, const std::byte* scale, bool is_second_half, float multiplier) {
  if (format == Format::kMxfp4) {
    return std::ldexp(multiplier, std::to_integer<int32_t>(*scale) - kPanelScaleBias);
  }
  if (format == Format::kNvfp4) {
    const std::byte code = scale[is_second_half ? kNvfp4ScaleStride : 0];
    return quant::e4m3_to_f32(std::to_integer<uint8_t>(code)) * multiplier;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, scale, sizeof(bits));
  return quant::bf16_to_f32(bits) * multiplier;
}

}  // namespace

int64_t panel_source_row(PanelOrder order, int64_t n, int64_t row) {
  if (order == PanelOrder::kNatural) return row;
  const int64_t within = row / 16 * 8 + row % 8;
  return row % 16 < 8 ? within : n / 2 + within;
}

Result<void> check_panel64(std::span<const WeightRows> sources, PanelOrder order) {
  int64_t n = 0;
  const quant::WeightView& like = sources.front().weight;
  for (const auto& [weight, row_begin, row_end] : sources) {
    if (!has_panels(weight.format) || weight.format != like.format || weight.k != like.k) {
      return invalid_argument("panel64: " + std::string(quant::format_name(weight.format)) + " " +
                              Shape{weight.n, weight.k}.to_string() +
                              ", expected mxfp4, nvfp4 or int4_g32 rows of one format and k");
    }
    n += row_end - row_begin;
  }
  if (n == 0 || (order == PanelOrder::kGateUp && n % 16 != 0)) {
    return invalid_argument("panel64: " + std::to_string(n) +
                            " rows, expected a positive multiple of 16 for gate and up");
  }
  return {};
}

Result<PackedWeight> pack_panel64(std::span<const WeightRows> sources, PanelOrder order) {
  TRY(check_panel64(sources, order));
  const std::vector<StoredRow> rows = stored_rows<StoredRow>(sources, order);
  const auto n = static_cast<int64_t>(rows.size());
  PackedWeight packed;
  packed.format = sources.front().weight.format;
  packed.layout = PackedLayout::kPanel64;
  packed.n = n;
  packed.k = sources.front().weight.k;
  const int64_t codes_bytes = panel_bytes(packed.format, n, packed.k);
  const int64_t row_scales = num_panels(n) * kPanelRows;
  TRY_ASSIGN(packed.storage, device::Buffer::allocate(codes_bytes + row_scales * 4));
  packed.codes = packed.storage.data();
  auto* const multipliers = reinterpret_cast<float*>(packed.storage.data() + codes_bytes);
  packed.global_scales = multipliers;
  for (int64_t row = 0; row < n; ++row) {
    TRY_ASSIGN(multipliers[row],
               pack_row(rows[static_cast<size_t>(row)], row, packed.storage.data()));
  }
  return packed;
}

void unpack_panel64_row(const PackedWeight& weight, int64_t row, std::span<float> out) {
  CHECK(static_cast<int64_t>(out.size()) == weight.k) << out.size();
  for (int64_t group = 0; group < ceil_div(weight.k, kGroup); ++group) {
    const GroupPlace<const std::byte> place =
        place_of(weight.codes, weight.format, weight.k, row, group);
    for (int64_t t = 0; t < 4; ++t) {
      uint32_t word = 0;
      std::memcpy(&word, place.words + t * 16, sizeof(word));
      for (int32_t i = 0; i < 8; ++i) {
        const int64_t at = group * kGroup + value_index(t, i);
        if (at >= weight.k) continue;
        out[static_cast<size_t>(at)] =
            code_value(weight.format, decode_code(weight.format, word, i)) *
            scale_value(weight.format, place.scale, i >= 4, weight.global_scales[row]);
      }
    }
  }
}

}  // namespace nibble::kernels
