// PackedLayout::kPanel64: 4-bit weights in the order in which a GPU warpgroup of 128 threads
// consumes them. Source: spec "kernels" 3.3 and 4.2 (slab and panel order, LUT8 words).
//
// A panel is 64 rows. Along k it is a run of stages of 256 values, each contiguous, so that one
// bulk copy brings a stage: for each of the 4 slabs of 16 rows, 4 chunks of 64 k x 512 bytes of
// codes, then the slab's scales. Within a chunk, lane 4 g + t (g < 8, t < 4) owns 16 bytes, four
// words:
//   group 0 row g, group 0 row g + 8, group 1 row g, group 1 row g + 8
// where a group is 32 values of k. A word holds values v0 .. v3 = k 4t .. 4t + 3 and v4 .. v7 =
// k 16 + 4t .. 16 + 4t + 3 of its group. MXFP4 and INT4: three bits of v_i in bits 4i .. 4i + 2,
// the signs of v0 .. v3 in bits 7, 15, 23, 31 and of v4 .. v7 in bits 3, 11, 19, 27 (a table
// look-up then yields four bytes at a time and the signs are one mask away).
//
// MXFP4: the three bits are E2M1's magnitude. 128 bytes of scales per slab: byte
//   16 g + 4 c + 2 h + q is that of chunk c, row g + 8 h, group q. A byte r in 0 .. 26 means
//   2^(r - 13): what an E5M2 code can absorb without rounding. The rest of the exponent is one f32
//   multiplier per row (PackedWeight::global_scales).
// NVFP4: the bits of E2M1, s e1 e0 m, of v_i in bits 7, 4, 3, 2 of byte i, where they are the E4M3
//   code of 2^-6 of the value; of v_(4 + i) in bits 5, 6, 1, 0, which two shifts bring there. 256
//   bytes of scales per slab: byte 128 (c / 2) + 16 g + 8 (c % 2) + 4 q + 2 s + h is the E4M3 scale
//   of chunk c, row g + 8 h, group q, values 16 s and on; never negative (the codes' signs are
//   turned instead). The row multiplier is the tensor's global scale.
// INT4: sign and three bits of |v|; -8 is sign and zero. 256 bytes of scales per slab: at byte
//   128 (c / 2) + 16 g + 8 (c % 2) + 4 q + 2 h the BF16 scale of chunk c, row g + 8 h, group q. The
//   row multiplier is 1.
// Rows are padded to 64 and k to 256 with zero codes and scales.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "kernels/packed_weight.h"

namespace nibble::kernels {

inline constexpr int64_t kPanelRows = 64;
inline constexpr int64_t kPanelStageK = 256;
inline constexpr int64_t kPanelSlabCodeBytes = int64_t{4} * 512;
inline constexpr int32_t kPanelScaleBias = 13;
inline constexpr int32_t kPanelScaleMax = 26;

constexpr int64_t panel_padded_k(int64_t k) { return round_up(k, kPanelStageK); }
constexpr int64_t num_panels(int64_t n) { return ceil_div(n, kPanelRows); }
// Of MXFP4, NVFP4 and INT4 with groups of 32.
constexpr int64_t panel_slab_bytes(quant::Format format) {
  return kPanelSlabCodeBytes + (format == quant::Format::kMxfp4 ? 128 : 256);
}
constexpr int64_t panel_stage_bytes(quant::Format format) { return 4 * panel_slab_bytes(format); }
// Codes and scales of a packed [n, k] weight; the row multipliers come on top.
constexpr int64_t panel_bytes(quant::Format format, int64_t n, int64_t k) {
  return num_panels(n) * (panel_padded_k(k) / kPanelStageK) * panel_stage_bytes(format);
}

// Which stored row lies at row `row` of a panel order. Natural order is the identity. In gate-up
// order, for a stack of w1 over w3 with n / 2 rows each, rows 8 .. 15 of every slab hold the up
// rows that match the gate rows 0 .. 7, so that a thread finds both in its accumulators.
//   n: rows of the stack; a multiple of 16 in gate-up order
enum class PanelOrder : uint8_t { kNatural, kGateUp };
int64_t panel_source_row(PanelOrder order, int64_t n, int64_t row);

// Packs rows of one of the three formats. kUnsupported when the exponents of one MXFP4 row differ
// by more than 26 (the message names the row), for an INT4 scale that bf16 does not hold and for a
// NaN scale; kInvalidArgument for other formats.
Result<PackedWeight> pack_panel64(std::span<const WeightRows> sources, PanelOrder order);
// Its errors but those of rows and scales.
Result<void> check_panel64(std::span<const WeightRows> sources, PanelOrder order);
// Decodes row `row` of the panel order.   out: [k]
void unpack_panel64_row(const PackedWeight& weight, int64_t row, std::span<float> out);

}  // namespace nibble::kernels
