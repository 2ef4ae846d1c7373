#include "kernels/slab16.h"

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

constexpr int64_t kGroup = 32;  // values of k that one lane quartet holds in a word each
constexpr int64_t kFp8Block = 128;

struct StoredRow {
  const quant::WeightView* weight = nullptr;
  int64_t row = 0;

  const std::byte* codes() const {
    return static_cast<const std::byte*>(weight->codes.data) +
           row * weight->codes.row_stride * dtype_size(weight->codes.dtype);
  }
  // Scales of this row, as stored.
  const std::byte* scales() const {
    const int64_t block_rows = quant::format_info(weight->format).block_shape.n;
    return static_cast<const std::byte*>(weight->scales.data) +
           row / block_rows * weight->scales.row_stride * dtype_size(weight->scales.dtype);
  }
  uint32_t nibble(int64_t k) const {
    return (std::to_integer<uint32_t>(codes()[k / 2]) >> (k % 2 * 4)) & 0xFU;
  }
};

// Where a value lies: its byte from the start of the stage, and its lowest bit in that byte.
struct CodePlace {
  int64_t byte = 0;
  int32_t bit = 0;
};

// A lane's word of (row, group of 32 in the stage), 4-bit formats.
constexpr int64_t word_of(int64_t row, int64_t group, int64_t t) {
  const int64_t lane = row % 8 * 4 + t, half = row / 8;
  return group / 2 * 512 + lane * 16 + (group % 2 * 2 + half) * 4;
}

// Place of (row of the slab, k of the stage).
CodePlace place_of(Format format, int64_t row, int64_t k) {
  const int64_t group = k / kGroup, within = k % kGroup;
  switch (format) {
    case Format::kMxfp4: {
      const int64_t i = within % 8;
      return {.byte = word_of(row, group, within / 8) + i % 4, .bit = i < 4 ? 0 : 4};
    }
    case Format::kNvfp4: {
      const int64_t pair = within / 16 * 2 + within % 4 / 2;
      const int64_t bit = pair * 4 + within % 2 * 16;
      return {.byte = word_of(row, group, within % 16 / 4) + bit / 8,
              .bit = static_cast<int32_t>(bit % 8)};
    }
    default: {
      const int64_t lane = row % 8 * 4 + within / 8;
      const int64_t word = within % 8 / 4 * 2 + row / 8;
      return {.byte = group * 512 + lane * 16 + word * 4 + within % 4, .bit = 0};
    }
  }
}

// Offset of the scale of (row of the slab, k of the stage) from the start of the stage.
int64_t scale_offset(Format format, int64_t row, int64_t k) {
  const int64_t codes = slab_stage_bytes(format).codes;
  switch (format) {
    case Format::kMxfp4:
      return codes + 8 * row + k / 32;
    case Format::kNvfp4:
      return codes + 16 * row + k / 16;
    default:
      return codes + 4 * (row / 8 * 2 + k / kFp8Block);
  }
}

// The stage of a packed weight that holds (row, k).
std::byte* stage_of(Format format, std::byte* package, int64_t row, int64_t k, int64_t all_k) {
  const int64_t stage = row / kSlabRows * slab_stages(all_k) + k / kSlabStageK;
  return package + stage * slab_stage_bytes(format).total();
}

Result<void> check_sources(std::span<const WeightRows> sources, PanelOrder order) {
  int64_t n = 0;
  for (const auto& [weight, row_begin, row_end] : sources) {
    if (slab_stage_bytes(weight.format).total() == 0 ||
        weight.format != sources.front().weight.format || weight.k != sources.front().weight.k) {
      return invalid_argument("slab16: " + std::string(quant::format_name(weight.format)) + " " +
                              Shape{weight.n, weight.k}.to_string() +
                              ", expected mxfp4, nvfp4 or fp8_block128x128 rows of one k");
    }
    n += row_end - row_begin;
  }
  if (n == 0 || (order == PanelOrder::kGateUp && n % 16 != 0)) {
    return invalid_argument("slab16: " + std::to_string(n) +
                            " rows, expected a positive multiple of 16 for gate and up");
  }
  return {};
}

// FP8: the 8 rows of half a slab share their scales.
Result<void> check_halves(std::span<const StoredRow> rows) {
  if (rows.front().weight->format != Format::kFp8E4m3Block128x128) return {};
  for (size_t row = 1; row < rows.size(); ++row) {
    if (row % 8 == 0 || rows[row].scales() == rows[row - 1].scales()) continue;
    return unsupported("slab16: rows " + std::to_string(rows[row - 1].row) + " and " +
                       std::to_string(rows[row].row) +
                       " share 8 rows of a slab but not their scale block; cut the sources at "
                       "multiples of 16 rows");
  }
  return {};
}

void pack_codes(const StoredRow& source, int64_t row, std::byte* package) {
  const Format format = source.weight->format;
  const int64_t k = source.weight->k;
  for (int64_t column = 0; column < k; ++column) {
    const CodePlace place = place_of(format, row % kSlabRows, column % kSlabStageK);
    std::byte& target = stage_of(format, package, row, column, k)[place.byte];
    target |= format == Format::kFp8E4m3Block128x128
                  ? source.codes()[column]
                  : static_cast<std::byte>(source.nibble(column) << place.bit);
  }
}

void pack_scales(const StoredRow& source, int64_t row, std::byte* package) {
  const Format format = source.weight->format;
  const int64_t k = source.weight->k, group = quant::format_info(format).block_shape.k;
  for (int64_t column = 0; column < k; column += group) {
    std::byte* const target = stage_of(format, package, row, column, k) +
                              scale_offset(format, row % kSlabRows, column % kSlabStageK);
    if (format == Format::kFp8E4m3Block128x128) {
      const float scale =
          quant::scale_value(source.weight->scales.dtype, source.scales(), column / group) *
          source.weight->global_scale;
      std::memcpy(target, &scale, sizeof(scale));
    } else {
      *target = source.scales()[column / group];
    }
  }
}

// The scale 1 everywhere, for padding.
void fill_scales(Format format, int64_t n, int64_t k, std::byte* package) {
  constexpr float kOne = 1.0f;
  for (int64_t row = 0; row < num_slabs(n) * kSlabRows; ++row) {
    for (int64_t column = 0; column < slab_stages(k) * kSlabStageK; column += 16) {
      std::byte* const target = stage_of(format, package, row, column, k) +
                                scale_offset(format, row % kSlabRows, column % kSlabStageK);
      if (format == Format::kFp8E4m3Block128x128) {
        std::memcpy(target, &kOne, sizeof(kOne));
      } else {
        *target = format == Format::kMxfp4 ? std::byte{127} : std::byte{0x38};
      }
    }
  }
}

}  // namespace

Result<PackedWeight> pack_slab16(std::span<const WeightRows> sources, PanelOrder order) {
  TRY(check_sources(sources, order));
  const std::vector<StoredRow> rows = stored_rows<StoredRow>(sources, order);
  TRY(check_halves(rows));
  const auto n = static_cast<int64_t>(rows.size());
  PackedWeight packed;
  packed.format = sources.front().weight.format;
  packed.layout = PackedLayout::kSlab16;
  packed.n = n;
  packed.k = sources.front().weight.k;
  TRY_ASSIGN(packed.storage, device::Buffer::allocate(slab16_bytes(packed.format, n, packed.k)));
  std::byte* const package = packed.storage.data();
  packed.codes = package;
  fill_scales(packed.format, n, packed.k, package);
  for (int64_t row = 0; row < n; ++row) {
    pack_codes(rows[static_cast<size_t>(row)], row, package);
    pack_scales(rows[static_cast<size_t>(row)], row, package);
  }
  if (packed.format == Format::kNvfp4) {
    auto* const multipliers =
        reinterpret_cast<float*>(package + slab_bytes(packed.format, n, packed.k));
    packed.global_scales = multipliers;
    for (int64_t row = 0; row < num_slabs(n) * kSlabRows; ++row) {
      multipliers[row] = row < n ? rows[static_cast<size_t>(row)].weight->global_scale : 0;
    }
  }
  return packed;
}

void unpack_slab16_row(const PackedWeight& weight, int64_t row, std::span<float> out) {
  CHECK(static_cast<int64_t>(out.size()) == weight.k) << out.size();
  for (int64_t column = 0; column < weight.k; ++column) {
    const std::byte* const stage =
        stage_of(weight.format, weight.storage.data(), row, column, weight.k);
    const CodePlace place = place_of(weight.format, row % kSlabRows, column % kSlabStageK);
    const auto code = std::to_integer<uint32_t>(stage[place.byte]) >> place.bit;
    const std::byte* const scale =
        stage + scale_offset(weight.format, row % kSlabRows, column % kSlabStageK);
    float& value = out[static_cast<size_t>(column)];
    if (weight.format == Format::kFp8E4m3Block128x128) {
      value = quant::e4m3_to_f32(static_cast<uint8_t>(code)) *
              quant::scale_value(DType::kF32, scale, 0);
    } else {
      const bool is_mxfp4 = weight.format == Format::kMxfp4;
      value = quant::e2m1_to_f32(static_cast<uint8_t>(code & 0xFU)) *
              (quant::scale_value(is_mxfp4 ? DType::kF8E8m0 : DType::kF8E4m3, scale, 0) *
               (is_mxfp4 ? 1.0f : weight.global_scales[row]));
    }
  }
}

}  // namespace nibble::kernels
