#include "kernels/bf16_panel64.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/check.h"
#include "quant/numeric.h"

namespace nibble::kernels {
namespace {

// Offset of (row, column) in a weight with `tiles` tiles per panel.
int64_t code_offset(int64_t tiles, int64_t row, int64_t column) {
  const int64_t tile = row / kBf16PanelRows * tiles + column / kBf16PanelTileK;
  const int64_t r = row % kBf16PanelRows, c = column % kBf16PanelTileK;
  return tile * kBf16PanelTileBytes + c / 8 * 1024 + r / 8 * 128 + r % 8 * 16 + c % 8 * 2;
}

int64_t tiles_per_panel(int64_t k) { return ceil_div(k, kBf16PanelTileK); }

}  // namespace

Result<PackedWeight> pack_bf16_panel64(std::span<const WeightRows> sources) {
  TRY(check_stack(sources));
  const quant::WeightView& first = sources.front().weight;
  if (first.format != quant::Format::kBf16) {
    return invalid_argument("bf16_panel64: " + std::string(quant::format_name(first.format)) + " " +
                            Shape{first.n, first.k}.to_string() + ", expected bf16");
  }
  PackedWeight packed;
  packed.format = first.format;
  packed.layout = PackedLayout::kBf16Panel64;
  packed.k = first.k;
  for (const WeightRows& source : sources) packed.n += source.row_end - source.row_begin;
  TRY_ASSIGN(packed.storage, device::Buffer::allocate(bf16_panel_bytes(packed.n, packed.k)));
  packed.codes = packed.storage.data();
  constexpr int64_t kRun = 8;  // of a row that lie side by side
  int64_t row = 0;
  for (const auto& [weight, row_begin, row_end] : sources) {
    for (int64_t source_row = row_begin; source_row < row_end; ++source_row, ++row) {
      const auto* const from = static_cast<const std::byte*>(weight.codes.data) +
                               source_row * weight.codes.row_stride * 2;
      for (int64_t column = 0; column < packed.k; column += kRun) {
        const int64_t count = std::min(kRun, packed.k - column);
        std::memcpy(packed.storage.data() + code_offset(tiles_per_panel(packed.k), row, column),
                    from + column * 2,
                    static_cast<size_t>(count * 2));
      }
    }
  }
  return packed;
}

void unpack_bf16_panel64_row(const PackedWeight& weight, int64_t row, std::span<float> out) {
  CHECK(static_cast<int64_t>(out.size()) == weight.k) << out.size();
  for (int64_t column = 0; column < weight.k; ++column) {
    uint16_t code = 0;
    std::memcpy(&code, weight.codes + code_offset(tiles_per_panel(weight.k), row, column), 2);
    out[static_cast<size_t>(column)] = quant::bf16_to_f32(code);
  }
}

}  // namespace nibble::kernels
