// PackedLayout::kFp8Panel64: FP8 weights with 128x128 scales as tiles that a GPU warpgroup
// multiplies straight from shared memory. Source: spec "kernels" 7.2; core matrices: PTX ISA 9.0,
// "wgmma", K-major without swizzle.
//
// A panel is 64 rows. Along k it is a run of tiles of 128 values, 8192 contiguous bytes each, so
// that one bulk copy brings a tile. In a tile, byte 1024 (c / 16) + 128 (r / 8) + 16 (r % 8) + c %
// 16 is row r, column c: 8 rows of 16 bytes are a core matrix. Scales: one f32 per panel and tile,
// in the same order. Rows are padded to 64 and k to 128 with zero codes.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "kernels/packed_weight.h"

namespace nibble::kernels {

inline constexpr int64_t kFp8PanelRows = 64;
inline constexpr int64_t kFp8TileK = 128;
inline constexpr int64_t kFp8TileBytes = kFp8PanelRows * kFp8TileK;

// Bytes of the parts of a packed [n, k] weight; scales follow the codes.
struct Fp8PanelBytes {
  int64_t codes = 0;
  int64_t scales = 0;

  constexpr int64_t total() const { return codes + scales; }
};
constexpr Fp8PanelBytes fp8_panel_bytes(int64_t n, int64_t k) {
  const int64_t tiles = ceil_div(n, kFp8PanelRows) * ceil_div(k, kFp8TileK);
  return {.codes = tiles * kFp8TileBytes, .scales = tiles * 4};
}

// Packs FP8 128x128 rows. kUnsupported when a panel would hold rows of two scale blocks (sources
// are then not cut at multiples of 64), kInvalidArgument for other formats.
Result<PackedWeight> pack_fp8_panel64(std::span<const WeightRows> sources);
// Its errors without memory; else the number of rows.
Result<int64_t> check_fp8_panel64(std::span<const WeightRows> sources);
// Decodes row `row`.   out: [k]
void unpack_fp8_panel64_row(const PackedWeight& weight, int64_t row, std::span<float> out);

}  // namespace nibble::kernels
