// PackedLayout::kSlab16: weights in the order in which a warp feeds them to mma.sync, for GPUs
// whose tensor cores know no other instruction (sm_120). Source: spec "kernels" 4.2, 4.5 and 7.2;
// fragments: PTX ISA 9.0, "mma.m16n8k32", "mma.m16n8k16".
//
// A slab is 16 rows. Along k it is a run of stages of 256 values, each contiguous, codes before
// scales, so that one bulk copy brings a stage. Lane 4 g + t (g < 8, t < 4) owns rows g and g + 8.
//
// 4-bit codes (2048 bytes a stage): 4 chunks of 64 k x 512 bytes. Lane i owns bytes 16 i and on of
// a chunk, four words: group 0 row g, group 0 row g + 8, group 1 row g, group 1 row g + 8, where a
// group is 32 values of k.
//   MXFP4, a word of v0 .. v7 = k 8 t .. 8 t + 7: byte i holds v_i in its low and v_(4+i) in its
//     high nibble, each a shift away from the 8-bit container (bits 5 .. 2) of m16n8k32.
//     Scales (128 bytes): byte 8 r + q is the stored exponent of row r, group q of the stage.
//   NVFP4, a word of v0 .. v3 = k 4 t .. 4 t + 3 and v4 .. v7 = k 16 + 4 t .. 16 + 4 t + 3: nibble
//   j
//     of the low half is v_(2j), of the high half v_(2j+1), so that both fall into the halves of a
//     pair of BF16. Scales (256 bytes): byte 16 r + q is the stored E4M3 scale of row r, q-th 16 of
//     the stage; the global scale is a multiplier per row (PackedWeight::global_scales).
// FP8 128x128 (4096 bytes a stage): 8 steps of 32 k x 512 bytes. Lane i owns bytes 16 i and on of a
//   step, four words: row g k 8 t .. 8 t + 3, row g + 8 the same, row g k 8 t + 4 .. 8 t + 7, row
//   g + 8 the same. Scales (16 bytes): f32 2 h + b is that of rows 8 h .. 8 h + 7, b-th 128 k.
// Rows are padded to 16 and k to 256 with zero codes of scale 1.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "kernels/packed_weight.h"
#include "kernels/panel64.h"

namespace nibble::kernels {

inline constexpr int64_t kSlabRows = 16;
inline constexpr int64_t kSlabStageK = 256;

// Bytes of a stage; all zero for formats without this layout.
struct SlabStageBytes {
  int64_t codes = 0;
  int64_t scales = 0;

  constexpr int64_t total() const { return codes + scales; }
};
constexpr SlabStageBytes slab_stage_bytes(quant::Format format) {
  switch (format) {
    case quant::Format::kMxfp4:
      return {.codes = 2048, .scales = 128};
    case quant::Format::kNvfp4:
      return {.codes = 2048, .scales = 256};
    case quant::Format::kFp8E4m3Block128x128:
      return {.codes = 4096, .scales = 16};
    default:
      return {};
  }
}

constexpr int64_t num_slabs(int64_t n) { return ceil_div(n, kSlabRows); }
constexpr int64_t slab_stages(int64_t k) { return ceil_div(k, kSlabStageK); }
// Codes and scales of a packed [n, k] weight; NVFP4's row multipliers come on top.
constexpr int64_t slab_bytes(quant::Format format, int64_t n, int64_t k) {
  return num_slabs(n) * slab_stages(k) * slab_stage_bytes(format).total();
}
// All of it.
constexpr int64_t slab16_bytes(quant::Format format, int64_t n, int64_t k) {
  const int64_t multipliers = format == quant::Format::kNvfp4 ? num_slabs(n) * kSlabRows * 4 : 0;
  return slab_bytes(format, n, k) + multipliers;
}

// Packs rows of one format and k. In gate-up order (panel_source_row()) FP8 sources must be cut at
// multiples of 8 rows, else of 16: kUnsupported when half a slab would hold two scales.
// kInvalidArgument for formats without this layout.
Result<PackedWeight> pack_slab16(std::span<const WeightRows> sources, PanelOrder order);
// Decodes row `row` of the order it was packed in.   out: [k]
void unpack_slab16_row(const PackedWeight& weight, int64_t row, std::span<float> out);

}  // namespace nibble::kernels
