#include "kernels/panel64.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/check.h"
#include "quant/numeric.h"
#include "quant/reference.h"

namespace nibble::kernels {
namespace {

constexpr int64_t kGroup = 32;
constexpr int64_t kChunkK = 64;
constexpr int64_t kChunkBytes = 512;

struct StoredRow {
  const quant::WeightView* weight = nullptr;
  int64_t row = 0;

  // Low nibble first, two values of k per byte.
  const uint8_t* codes() const {
    return static_cast<const uint8_t*>(weight->codes.data) + row * weight->codes.row_stride;
  }
  // Exponents with bias 127, one per group.
  const uint8_t* scales() const {
    return static_cast<const uint8_t*>(weight->scales.data) + row * weight->scales.row_stride;
  }
  uint32_t code(int64_t k) const { return (codes()[k / 2] >> (k % 2 * 4)) & 0xFU; }
};

// The place of one (row, group): its four words and its scale byte.
struct GroupPlace {
  std::byte* words = nullptr;  // lane t's word is 16 t bytes on
  std::byte* scale = nullptr;
};
GroupPlace place_of(std::byte* package, int64_t k, int64_t row, int64_t group) {
  const int64_t stages = panel_padded_k(k) / kPanelStageK;
  const int64_t stage = group / 8;
  const int64_t chunk = group / 2 % 4;
  const int64_t half = row % 16 / 8, g = row % 8, q = group % 2;
  std::byte* const slab = package + (row / kPanelRows * stages + stage) * kPanelStageBytes +
                          row % kPanelRows / 16 * kPanelSlabBytes;
  return {.words = slab + chunk * kChunkBytes + g * 64 + (q * 2 + half) * 4,
          .scale = slab + kPanelStageK / kChunkK * kChunkBytes + g * 16 + chunk * 4 + half * 2 + q};
}

// Bits of v_i in a word.
constexpr int32_t magnitude_bit(int32_t i) { return 4 * i; }
constexpr int32_t sign_bit(int32_t i) { return i < 4 ? 7 + 8 * i : 3 + 8 * (i - 4); }
// Index within its group of v_i of lane t.
constexpr int64_t value_index(int64_t t, int32_t i) { return (i < 4 ? 0 : 16) + 4 * t + i % 4; }

uint32_t encode_word(const StoredRow& source, int64_t first_k, int64_t t) {
  uint32_t word = 0;
  for (int32_t i = 0; i < 8; ++i) {
    const uint32_t code = source.code(first_k + value_index(t, i));
    word |= (code & 7U) << magnitude_bit(i) | (code >> 3) << sign_bit(i);
  }
  return word;
}

uint32_t decode_code(uint32_t word, int32_t i) {
  return ((word >> magnitude_bit(i)) & 7U) | ((word >> sign_bit(i)) & 1U) << 3;
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

std::vector<StoredRow> stored_rows(std::span<const WeightRows> sources, PanelOrder order) {
  std::vector<StoredRow> natural;
  for (const WeightRows& source : sources) {
    for (int64_t row = source.row_begin; row < source.row_end; ++row) {
      natural.push_back({.weight = &source.weight, .row = row});
    }
  }
  const auto n = static_cast<int64_t>(natural.size());
  std::vector<StoredRow> rows;
  for (int64_t row = 0; row < n; ++row) {
    rows.push_back(natural[static_cast<size_t>(panel_source_row(order, n, row))]);
  }
  return rows;
}

// Writes one row; returns its multiplier.
Result<float> pack_row(const StoredRow& source, int64_t row, std::byte* package) {
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
    const GroupPlace place = place_of(package, k, row, group);
    for (int64_t t = 0; t < 4; ++t) {
      const uint32_t word = encode_word(source, group * kGroup, t);
      std::memcpy(place.words + t * 16, &word, sizeof(word));
    }
    const int32_t r = is_zero_group(source, group) ? 0 : source.scales()[group] - base;
    *place.scale = static_cast<std::byte>(r);
  }
  return std::ldexp(1.0f, base + kPanelScaleBias - 127);
}

}  // namespace

int64_t panel_source_row(PanelOrder order, int64_t n, int64_t row) {
  if (order == PanelOrder::kNatural) return row;
  const int64_t within = row / 16 * 8 + row % 8;
  return row % 16 < 8 ? within : n / 2 + within;
}

Result<void> check_panel64(std::span<const WeightRows> sources, PanelOrder order) {
  int64_t n = 0;
  for (const auto& [weight, row_begin, row_end] : sources) {
    if (weight.format != quant::Format::kMxfp4 || weight.k != sources.front().weight.k) {
      return invalid_argument("panel64: " + std::string(quant::format_name(weight.format)) + " " +
                              Shape{weight.n, weight.k}.to_string() +
                              ", expected mxfp4 rows of one k");
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
  const std::vector<StoredRow> rows = stored_rows(sources, order);
  const auto n = static_cast<int64_t>(rows.size());
  PackedWeight packed;
  packed.format = quant::Format::kMxfp4;
  packed.layout = PackedLayout::kPanel64;
  packed.n = n;
  packed.k = sources.front().weight.k;
  const int64_t codes_bytes = panel_bytes(n, packed.k);
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
  for (int64_t group = 0; group < weight.k / kGroup; ++group) {
    const GroupPlace place = place_of(weight.storage.data(), weight.k, row, group);
    const float scale = std::ldexp(weight.global_scales[row],
                                   std::to_integer<int32_t>(*place.scale) - kPanelScaleBias);
    for (int64_t t = 0; t < 4; ++t) {
      uint32_t word = 0;
      std::memcpy(&word, place.words + t * 16, sizeof(word));
      for (int32_t i = 0; i < 8; ++i) {
        out[static_cast<size_t>(group * kGroup + value_index(t, i))] =
            quant::e2m1_to_f32(static_cast<uint8_t>(decode_code(word, i))) * scale;
      }
    }
  }
}

}  // namespace nibble::kernels
