// PackedLayout::kBf16Panel64: BF16 weights as tiles that a GPU warpgroup multiplies straight from
// shared memory. Source: spec "kernels" 7.4; core matrices: PTX ISA 9.0, "wgmma", K-major without
// swizzle.
//
// A panel is 64 rows. Along k it is a run of tiles of 64 values, 8192 contiguous bytes each, so
// that one bulk copy brings a tile. In a tile, byte 1024 (c / 8) + 128 (r / 8) + 16 (r % 8) + 2 (c
// % 8) is the first of row r, column c: 8 rows of 16 bytes are a core matrix. Rows are padded to 64
// and k to 64 with zeros.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "kernels/packed_weight.h"

namespace nibble::kernels {

inline constexpr int64_t kBf16PanelRows = 64;
inline constexpr int64_t kBf16PanelTileK = 64;
inline constexpr int64_t kBf16PanelTileBytes = kBf16PanelRows * kBf16PanelTileK * 2;

// Bytes of a packed [n, k] weight.
constexpr int64_t bf16_panel_bytes(int64_t n, int64_t k) {
  return ceil_div(n, kBf16PanelRows) * ceil_div(k, kBf16PanelTileK) * kBf16PanelTileBytes;
}

// kInvalidArgument for other formats than BF16.
Result<PackedWeight> pack_bf16_panel64(std::span<const WeightRows> sources);
// Decodes row `row`.   out: [k]
void unpack_bf16_panel64_row(const PackedWeight& weight, int64_t row, std::span<float> out);

}  // namespace nibble::kernels
