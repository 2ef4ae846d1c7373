#include "kernels/fp8_panel64.h"

#include <string>

#include "base/check.h"
#include "quant/numeric.h"
#include "quant/reference.h"

namespace nibble::kernels {
namespace {

constexpr int64_t kScaleBlockRows = 128;

// Offset of (row, column) in the codes of a weight with `tiles` tiles per panel.
int64_t code_offset(int64_t tiles, int64_t row, int64_t column) {
  const int64_t tile = row / kFp8PanelRows * tiles + column / kFp8TileK;
  const int64_t r = row % kFp8PanelRows, c = column % kFp8TileK;
  return tile * kFp8TileBytes + c / 16 * 1024 + r / 8 * 128 + r % 8 * 16 + c % 16;
}

int64_t tiles_per_panel(int64_t k) { return ceil_div(k, kFp8TileK); }

// Writes one row of a source as row `row` of the stack.
void pack_row(const quant::WeightView& source, int64_t source_row, int64_t row, std::byte* codes) {
  const auto* const from =
      static_cast<const std::byte*>(source.codes.data) + source_row * source.codes.row_stride;
  for (int64_t column = 0; column < source.k; ++column) {
    codes[code_offset(tiles_per_panel(source.k), row, column)] = from[column];
  }
}

// Writes the scales of the panel that starts with `source_row`.
void pack_panel_scales(const quant::WeightView& source, int64_t source_row, float* scales) {
  const TensorView& stored = source.scales;
  const auto* const from =
      static_cast<const std::byte*>(stored.data) +
      source_row / kScaleBlockRows * stored.row_stride * dtype_size(stored.dtype);
  for (int64_t tile = 0; tile < tiles_per_panel(source.k); ++tile) {
    scales[tile] = quant::scale_value(stored.dtype, from, tile) * source.global_scale;
  }
}

}  // namespace

Result<int64_t> check_fp8_panel64(std::span<const WeightRows> sources) {
  int64_t n = 0;
  for (const auto& [weight, row_begin, row_end] : sources) {
    if (weight.format != quant::Format::kFp8E4m3Block128x128 ||
        weight.k != sources.front().weight.k) {
      return invalid_argument("fp8_panel64: " + std::string(quant::format_name(weight.format)) +
                              " " + Shape{weight.n, weight.k}.to_string() +
                              ", expected fp8_block128x128 rows of one k");
    }
    if (row_begin % kFp8PanelRows != 0 || n % kFp8PanelRows != 0) {
      return unsupported("fp8_panel64: rows " + std::to_string(row_begin) + " to " +
                         std::to_string(row_end) + " at row " + std::to_string(n) +
                         " of the stack, expected multiples of 64, so that a panel has one scale");
    }
    n += row_end - row_begin;
  }
  if (n == 0) return invalid_argument("fp8_panel64: no rows");
  return n;
}

Result<PackedWeight> pack_fp8_panel64(std::span<const WeightRows> sources) {
  TRY_ASSIGN(const int64_t n, check_fp8_panel64(sources));
  PackedWeight packed;
  packed.format = quant::Format::kFp8E4m3Block128x128;
  packed.layout = PackedLayout::kFp8Panel64;
  packed.n = n;
  packed.k = sources.front().weight.k;
  const Fp8PanelBytes bytes = fp8_panel_bytes(n, packed.k);
  TRY_ASSIGN(packed.storage, device::Buffer::allocate(bytes.total()));
  packed.codes = packed.storage.data();
  packed.scales = packed.storage.data() + bytes.codes;
  auto* const scales = reinterpret_cast<float*>(packed.storage.data() + bytes.codes);
  int64_t row = 0;
  for (const auto& [weight, row_begin, row_end] : sources) {
    for (int64_t source_row = row_begin; source_row < row_end; ++source_row, ++row) {
      pack_row(weight, source_row, row, packed.storage.data());
      if (row % kFp8PanelRows != 0) continue;
      pack_panel_scales(
          weight, source_row, scales + row / kFp8PanelRows * tiles_per_panel(packed.k));
    }
  }
  return packed;
}

void unpack_fp8_panel64_row(const PackedWeight& weight, int64_t row, std::span<float> out) {
  CHECK(static_cast<int64_t>(out.size()) == weight.k) << out.size();
  const int64_t tiles = tiles_per_panel(weight.k);
  const auto* const scales =
      reinterpret_cast<const float*>(weight.scales) + row / kFp8PanelRows * tiles;
  for (int64_t column = 0; column < weight.k; ++column) {
    const std::byte code = weight.codes[code_offset(tiles, row, column)];
    out[static_cast<size_t>(column)] =
        quant::e4m3_to_f32(std::to_integer<uint8_t>(code)) * scales[column / kFp8TileK];
  }
}

}  // namespace nibble::kernels
