// PackedLayout::kPanel64: 4-bit weights in the order in which a GPU warpgroup of 128 threads
// consumes them. Source: spec "kernels" 3.3 and 4.2 (slab and panel order, LUT8 words).
//
// A panel is 64 rows. Along k it is a run of stages of 256 values, each contiguous, so that one
// bulk copy brings a stage: for each of the 4 slabs of 16 rows, 4 chunks of 64 k x 512 bytes of
// codes, then 128 bytes of scales. Within a chunk, lane 4 g + t (g < 8, t < 4) owns 16 bytes, four
// words:
//   group 0 row g, group 0 row g + 8, group 1 row g, group 1 row g + 8
// where a group is 32 values of k. A word holds values v0 .. v3 = k 4t .. 4t + 3 and v4 .. v7 =
// k 16 + 4t .. 16 + 4t + 3 of its group: the magnitude of v_i in bits 4i .. 4i + 2, the signs of
// v0 .. v3 in bits 7, 15, 23, 31 and of v4 .. v7 in bits 3, 11, 19, 27 (a table look-up then yields
// four bytes at a time and the signs are one mask away). Scales: byte 16 g + 4 c + 2 h + q of a
// slab's 128 is that of chunk c, row g + 8 h, group q.
//
// A scale byte r in 0 .. 26 means 2^(r - 13): what an E5M2 code can absorb without rounding. The
// rest of the exponent is one f32 multiplier per row (PackedWeight::global_scales).
// Rows are padded to 64 and k to 256 with zero codes.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "kernels/packed_weight.h"

namespace nibble::kernels {

inline constexpr int64_t kPanelRows = 64;
inline constexpr int64_t kPanelStageK = 256;
inline constexpr int64_t kPanelSlabBytes = 4 * 512 + 128;
inline constexpr int64_t kPanelStageBytes = 4 * kPanelSlabBytes;
inline constexpr int32_t kPanelScaleBias = 13;
inline constexpr int32_t kPanelScaleMax = 26;

constexpr int64_t panel_padded_k(int64_t k) { return round_up(k, kPanelStageK); }
constexpr int64_t num_panels(int64_t n) { return ceil_div(n, kPanelRows); }
// Codes and scales of a packed [n, k] weight; the row multipliers come on top.
constexpr int64_t panel_bytes(int64_t n, int64_t k) {
  return num_panels(n) * (panel_padded_k(k) / kPanelStageK) * kPanelStageBytes;
}

// Which stored row lies at row `row` of a panel order. Natural order is the identity. In gate-up
// order, for a stack of w1 over w3 with n / 2 rows each, rows 8 .. 15 of every slab hold the up
// rows that match the gate rows 0 .. 7, so that a thread finds both in its accumulators.
//   n: rows of the stack; a multiple of 16 in gate-up order
enum class PanelOrder : uint8_t { kNatural, kGateUp };
int64_t panel_source_row(PanelOrder order, int64_t n, int64_t row);

// Packs MXFP4 rows. kUnsupported when the group exponents of one row differ by more than 26 (the
// message names the row), kInvalidArgument for other formats.
Result<PackedWeight> pack_panel64(std::span<const WeightRows> sources, PanelOrder order);
// Its errors but that of a row's exponents.
Result<void> check_panel64(std::span<const WeightRows> sources, PanelOrder order);
// Decodes row `row` of the panel order.   out: [k]
void unpack_panel64_row(const PackedWeight& weight, int64_t row, std::span<float> out);

}  // namespace nibble::kernels
