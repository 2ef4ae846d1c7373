#include "kernels/packed_weight.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/bf16_panel64.h"
#include "kernels/fp8_panel64.h"
#include "kernels/panel64.h"
#include "kernels/slab16.h"
#include "quant/reference.h"

namespace nibble::kernels {
namespace {

using quant::Format;
using quant::FormatInfo;

// One row of one source.
struct SourceRow {
  const quant::WeightView* weight = nullptr;
  int64_t row = 0;

  const std::byte* codes() const {
    const TensorView& codes = weight->codes;
    return static_cast<const std::byte*>(codes.data) +
           row * codes.row_stride * dtype_size(codes.dtype);
  }
  // The scales of this row's block row, in the stored dtype.
  const std::byte* scales() const {
    const TensorView& scales = weight->scales;
    const int64_t block_row = row / quant::format_info(weight->format).block_shape.n;
    return static_cast<const std::byte*>(scales.data) +
           block_row * scales.row_stride * dtype_size(scales.dtype);
  }
};

std::vector<SourceRow> list_rows(std::span<const WeightRows> sources) {
  std::vector<SourceRow> rows;
  for (const WeightRows& source : sources) {
    for (int64_t row = source.row_begin; row < source.row_end; ++row) {
      rows.push_back({.weight = &source.weight, .row = row});
    }
  }
  return rows;
}

std::string describe(const quant::WeightView& weight) {
  return std::string(quant::format_name(weight.format)) + " " +
         Shape{weight.n, weight.k}.to_string();
}

int64_t num_groups(Format format, int64_t k) { return ceil_div(k, group_size(format, k)); }

int64_t row_bytes(Format format, int64_t k) {
  return k * quant::format_info(format).bits_per_weight / 8;
}

// Offsets of the parts, each starting on its own cache line, and their total.
struct Offsets {
  int64_t scales = 0;
  int64_t global_scales = 0;
  int64_t end = 0;
};
Offsets offsets_of(const PackedParts& parts) {
  constexpr int64_t kLine = 64;
  Offsets offsets;
  offsets.scales = round_up(parts.codes, kLine);
  offsets.global_scales = offsets.scales + round_up(parts.scales, kLine);
  offsets.end = offsets.global_scales + parts.global_scales;
  return offsets;
}

PackedParts row_major_parts(Format format, int64_t n, int64_t k) {
  const bool has_scales = quant::format_info(format).has_scales();
  return {.codes = n * row_bytes(format, k),
          .scales = has_scales ? n * num_groups(format, k) * 4 : 0};
}

PackedParts interleaved16_parts(Format format, int64_t n, int64_t k, DType scale_dtype) {
  const FormatInfo& info = quant::format_info(format);
  const int64_t blocks = ceil_div(n, kInterleavedRows);
  const int64_t scale_bytes = info.has_scales() ? dtype_size(scale_dtype) : 0;
  return {.codes = blocks * interleaved_block_bytes(format, k),
          .scales = blocks * num_groups(format, k) * kInterleavedRows * scale_bytes,
          .global_scales = info.has_global_scale ? blocks * kInterleavedRows * 4 : 0};
}

Result<PackedWeight> allocate_packed(const quant::WeightView& like,
                                     int64_t n,
                                     PackedLayout layout,
                                     const PackedParts& parts) {
  const auto [scales_at, globals_at, end] = offsets_of(parts);
  PackedWeight packed;
  TRY_ASSIGN(packed.storage, device::Buffer::allocate(end));
  packed.format = like.format;
  packed.layout = layout;
  packed.n = n;
  packed.k = like.k;
  packed.codes = packed.storage.data();
  if (parts.scales > 0) packed.scales = packed.storage.data() + scales_at;
  if (parts.global_scales > 0) {
    packed.global_scales = reinterpret_cast<const float*>(packed.storage.data() + globals_at);
  }
  return packed;
}

// The packer's own, writable view of memory that the packed weight shows as constant.
std::byte* writable(const PackedWeight& packed, const std::byte* part) {
  return packed.storage.data() + (part - packed.storage.data());
}

// --- kRowMajor ---

Result<PackedWeight> pack_row_major(const quant::WeightView& like,
                                    std::span<const SourceRow> rows) {
  const auto n = static_cast<int64_t>(rows.size());
  const FormatInfo& info = quant::format_info(like.format);
  const int64_t groups = num_groups(like.format, like.k);
  const int64_t bytes_per_row = row_bytes(like.format, like.k);
  TRY_ASSIGN(
      PackedWeight packed,
      allocate_packed(like, n, PackedLayout::kRowMajor, row_major_parts(like.format, n, like.k)));
  for (int64_t i = 0; i < n; ++i) {
    const SourceRow& source = rows[static_cast<size_t>(i)];
    std::memcpy(writable(packed, packed.codes) + i * bytes_per_row,
                source.codes(),
                static_cast<size_t>(bytes_per_row));
    if (!info.has_scales()) continue;
    auto* const scales = reinterpret_cast<float*>(writable(packed, packed.scales)) + i * groups;
    for (int64_t group = 0; group < groups; ++group) {
      scales[group] = quant::scale_value(like.scales.dtype, source.scales(), group) *
                      source.weight->global_scale;
    }
  }
  return packed;
}

void unpack_row_major(const PackedWeight& weight, int64_t row, float* out) {
  const std::byte* const codes = weight.codes + row * row_bytes(weight.format, weight.k);
  quant::decode_codes(weight.format, codes, std::span(out, static_cast<size_t>(weight.k)));
  if (weight.scales == nullptr) return;
  const int64_t group = group_size(weight.format, weight.k);
  const auto* const scales =
      reinterpret_cast<const float*>(weight.scales) + row * num_groups(weight.format, weight.k);
  for (int64_t j = 0; j < weight.k; ++j) out[j] *= scales[j / group];
}

// --- kInterleaved16 ---

// The low nibbles of four bytes side by side, and back.
constexpr uint32_t gather_nibbles(uint32_t bytes) {
  bytes &= 0x0F0F0F0F;
  bytes = (bytes | bytes >> 4) & 0x00FF00FF;
  return (bytes | bytes >> 8) & 0xFFFF;
}
constexpr uint32_t spread_nibbles(uint32_t nibbles) {
  nibbles = (nibbles | nibbles << 8) & 0x00FF00FF;
  return (nibbles | nibbles << 4) & 0x0F0F0F0F;
}

// Nibbles k0 .. k7, low first, to k0 k2 k4 k6 k1 k3 k5 k7, and back.
constexpr uint32_t split_nibbles(uint32_t word) {
  return gather_nibbles(word) | gather_nibbles(word >> 4) << 16;
}
constexpr uint32_t join_nibbles(uint32_t word) {
  return spread_nibbles(word & 0xFFFF) | spread_nibbles(word >> 16) << 4;
}
static_assert(split_nibbles(0x76543210) == 0x75316420);
static_assert(join_nibbles(0x75316420) == 0x76543210);

// Where the two halves of a row's 4 bytes lie in a vector.
struct LaneOffsets {
  int64_t low = 0;
  int64_t high = 0;
};
LaneOffsets lane_offsets(Format format, int64_t lane) {
  if (format != Format::kFp8E4m3Block128x128) return {.low = lane * 4, .high = lane * 4 + 2};
  const int64_t low = lane / 4 * 16 + lane % 4 * 2;
  return {.low = low, .high = low + 8};
}

void interleave_row(Format format, std::span<const std::byte> row, int64_t lane, std::byte* block) {
  const bool is_4bit = quant::format_info(format).bits_per_weight == 4;
  const LaneOffsets offsets = lane_offsets(format, lane);
  std::byte* vector = block;
  for (size_t begin = 0; begin < row.size(); begin += 4, vector += kInterleavedVectorBytes) {
    uint32_t word = 0;
    std::memcpy(&word, row.data() + begin, std::min<size_t>(4, row.size() - begin));
    if (is_4bit) word = split_nibbles(word);
    const auto low = static_cast<uint16_t>(word);
    const auto high = static_cast<uint16_t>(word >> 16);
    std::memcpy(vector + offsets.low, &low, 2);
    std::memcpy(vector + offsets.high, &high, 2);
  }
}

void deinterleave_row(Format format,
                      const std::byte* block,
                      int64_t lane,
                      std::span<std::byte> row) {
  const bool is_4bit = quant::format_info(format).bits_per_weight == 4;
  const LaneOffsets offsets = lane_offsets(format, lane);
  const std::byte* vector = block;
  for (size_t begin = 0; begin < row.size(); begin += 4, vector += kInterleavedVectorBytes) {
    uint16_t low = 0, high = 0;
    std::memcpy(&low, vector + offsets.low, 2);
    std::memcpy(&high, vector + offsets.high, 2);
    uint32_t word = low | static_cast<uint32_t>(high) << 16;
    if (is_4bit) word = join_nibbles(word);
    std::memcpy(row.data() + begin, &word, std::min<size_t>(4, row.size() - begin));
  }
}

Result<PackedWeight> pack_interleaved16(const quant::WeightView& like,
                                        std::span<const SourceRow> rows) {
  const auto n = static_cast<int64_t>(rows.size());
  const FormatInfo& info = quant::format_info(like.format);
  const int64_t block_bytes = interleaved_block_bytes(like.format, like.k);
  const int64_t groups = num_groups(like.format, like.k);
  const int64_t scale_bytes = info.has_scales() ? dtype_size(like.scales.dtype) : 0;
  TRY_ASSIGN(PackedWeight packed,
             allocate_packed(like,
                             n,
                             PackedLayout::kInterleaved16,
                             interleaved16_parts(like.format, n, like.k, like.scales.dtype)));
  if (info.has_scales()) packed.scale_dtype = like.scales.dtype;
  for (int64_t i = 0; i < n; ++i) {
    const SourceRow& source = rows[static_cast<size_t>(i)];
    const int64_t block = i / kInterleavedRows, lane = i % kInterleavedRows;
    interleave_row(like.format,
                   {source.codes(), static_cast<size_t>(row_bytes(like.format, like.k))},
                   lane,
                   writable(packed, packed.codes) + block * block_bytes);
    for (int64_t group = 0; scale_bytes > 0 && group < groups; ++group) {
      const int64_t at = (block * groups + group) * kInterleavedRows + lane;
      std::memcpy(writable(packed, packed.scales) + at * scale_bytes,
                  source.scales() + group * scale_bytes,
                  static_cast<size_t>(scale_bytes));
    }
    if (info.has_global_scale) {
      const float global_scale = source.weight->global_scale;
      std::memcpy(writable(packed, reinterpret_cast<const std::byte*>(packed.global_scales + i)),
                  &global_scale,
                  sizeof(global_scale));
    }
  }
  return packed;
}

void unpack_interleaved16(const PackedWeight& weight, int64_t row, float* out) {
  const int64_t block = row / kInterleavedRows, lane = row % kInterleavedRows;
  const int64_t groups = num_groups(weight.format, weight.k);
  const int64_t group = group_size(weight.format, weight.k);
  std::vector<std::byte> codes(static_cast<size_t>(row_bytes(weight.format, weight.k)));
  deinterleave_row(weight.format,
                   weight.codes + block * interleaved_block_bytes(weight.format, weight.k),
                   lane,
                   codes);
  quant::decode_codes(weight.format, codes.data(), std::span(out, static_cast<size_t>(weight.k)));
  if (weight.scales == nullptr) return;
  const float global_scale = weight.global_scales == nullptr ? 1.0f : weight.global_scales[row];
  for (int64_t j = 0; j < weight.k; ++j) {
    const int64_t at = (block * groups + j / group) * kInterleavedRows + lane;
    out[j] *= quant::scale_value(weight.scale_dtype, weight.scales, at) * global_scale;
  }
}

}  // namespace

std::string_view layout_name(PackedLayout layout) {
  switch (layout) {
    case PackedLayout::kNone:
      return "none";
    case PackedLayout::kRowMajor:
      return "row_major";
    case PackedLayout::kInterleaved16:
      return "interleaved16";
    case PackedLayout::kPanel64:
      return "panel64";
    case PackedLayout::kFp8Panel64:
      return "fp8_panel64";
    case PackedLayout::kBf16Panel64:
      return "bf16_panel64";
    case PackedLayout::kSlab16:
      return "slab16";
  }
  return "unknown";
}

Result<void> check_stack(std::span<const WeightRows> sources) {
  if (sources.empty()) return invalid_argument("pack: no source");
  const quant::WeightView& first = sources.front().weight;
  const FormatInfo& info = quant::format_info(first.format);
  for (const auto& [weight, row_begin, row_end] : sources) {
    if (weight.format != first.format || weight.k != first.k ||
        (info.has_scales() && weight.scales.dtype != first.scales.dtype)) {
      return invalid_argument("pack: cannot stack " + describe(weight) + " with scales " +
                              std::string(dtype_name(weight.scales.dtype)) + " on " +
                              describe(first) + " with scales " +
                              std::string(dtype_name(first.scales.dtype)));
    }
    if (row_begin < 0 || row_begin > row_end || row_end > weight.n) {
      return invalid_argument("pack: rows " + std::to_string(row_begin) + " to " +
                              std::to_string(row_end) + " of " + describe(weight));
    }
    if (weight.k % quant::k_multiple(weight.format) != 0) {
      return invalid_argument("pack: k of " + describe(weight) + " is not a multiple of " +
                              std::to_string(quant::k_multiple(weight.format)));
    }
  }
  return {};
}

PackedParts packed_weight_parts(
    Format format, int64_t n, int64_t k, DType scale_dtype, PackedLayout layout) {
  switch (layout) {
    case PackedLayout::kRowMajor:
      return row_major_parts(format, n, k);
    case PackedLayout::kInterleaved16:
      return interleaved16_parts(format, n, k, scale_dtype);
    case PackedLayout::kPanel64:
      return {.codes = panel_bytes(format, n, k), .global_scales = num_panels(n) * kPanelRows * 4};
    case PackedLayout::kFp8Panel64:
      return {.codes = fp8_panel_bytes(n, k).codes, .scales = fp8_panel_bytes(n, k).scales};
    case PackedLayout::kBf16Panel64:
      return {.codes = bf16_panel_bytes(n, k)};
    case PackedLayout::kSlab16:
      return {.codes = slab_bytes(format, n, k),
              .global_scales = slab16_bytes(format, n, k) - slab_bytes(format, n, k)};
    case PackedLayout::kNone:
      break;
  }
  return {};
}

int64_t packed_weight_bytes(
    Format format, int64_t n, int64_t k, DType scale_dtype, PackedLayout layout) {
  if (layout == PackedLayout::kPanel64)
    return panel_bytes(format, n, k) + num_panels(n) * kPanelRows * 4;
  if (layout == PackedLayout::kFp8Panel64) return fp8_panel_bytes(n, k).total();
  if (layout == PackedLayout::kBf16Panel64) return bf16_panel_bytes(n, k);
  if (layout == PackedLayout::kSlab16) return slab16_bytes(format, n, k);
  return offsets_of(layout == PackedLayout::kInterleaved16
                        ? interleaved16_parts(format, n, k, scale_dtype)
                        : row_major_parts(format, n, k))
      .end;
}

Result<PackedWeight> pack_weight(std::span<const WeightRows> sources, PackedLayout layout) {
  TRY(check_stack(sources));
  const std::vector<SourceRow> rows = list_rows(sources);
  const quant::WeightView& like = sources.front().weight;
  switch (layout) {
    case PackedLayout::kRowMajor:
      return pack_row_major(like, rows);
    case PackedLayout::kInterleaved16:
      return pack_interleaved16(like, rows);
    case PackedLayout::kPanel64:
      return pack_panel64(sources, PanelOrder::kNatural);
    case PackedLayout::kFp8Panel64:
      return pack_fp8_panel64(sources);
    case PackedLayout::kBf16Panel64:
      return pack_bf16_panel64(sources);
    case PackedLayout::kSlab16:
      return pack_slab16(sources, PanelOrder::kNatural);
    case PackedLayout::kNone:
      break;
  }
  return invalid_argument("pack: layout " + std::string(layout_name(layout)) + " holds no weight");
}

void unpack_row(const PackedWeight& weight, int64_t row, std::span<float> out) {
  DCHECK(static_cast<int64_t>(out.size()) == weight.k) << out.size();
  if (weight.layout == PackedLayout::kInterleaved16) {
    unpack_interleaved16(weight, row, out.data());
  } else if (weight.layout == PackedLayout::kPanel64) {
    unpack_panel64_row(weight, row, out);
  } else if (weight.layout == PackedLayout::kFp8Panel64) {
    unpack_fp8_panel64_row(weight, row, out);
  } else if (weight.layout == PackedLayout::kBf16Panel64) {
    unpack_bf16_panel64_row(weight, row, out);
  } else if (weight.layout == PackedLayout::kSlab16) {
    unpack_slab16_row(weight, row, out);
  } else {
    unpack_row_major(weight, row, out.data());
  }
}

void unpack_weight(const PackedWeight& weight, std::span<float> out) {
  CHECK(static_cast<int64_t>(out.size()) == weight.n * weight.k) << out.size();
  const auto k = static_cast<size_t>(weight.k);
  for (int64_t row = 0; row < weight.n; ++row) {
    unpack_row(weight, row, out.subspan(static_cast<size_t>(row) * k, k));
  }
}

}  // namespace nibble::kernels
