// Weights in the layout that a kernel wants. Made once at load by the repacker that the kernel's
// record names; the stored format is kept, so a packed MXFP4 weight is still 4 bits wide.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/checked_math.h"
#include "base/result.h"
#include "device/buffer.h"
#include "quant/format.h"

namespace nibble::kernels {

enum class PackedLayout : uint8_t {
  kNone,           // the op has no packed weight
  kRowMajor,       // codes as stored, row after row; scales expanded to one per row and group, f32
  kInterleaved16,  // 16 rows side by side, so that one vector lane is one output row; padded with
                   // zero rows
  kPanel64,        // 4-bit formats for GPU warpgroups: kernels/panel64.h
  kFp8Panel64,     // FP8 128x128 for GPU warpgroups: kernels/fp8_panel64.h
  kBf16Panel64,    // BF16 for GPU warpgroups: kernels/bf16_panel64.h
  kSlab16,         // MXFP4, NVFP4 and FP8 128x128 for GPU warps: kernels/slab16.h
};
std::string_view layout_name(PackedLayout layout);

struct PackedWeight {
  quant::Format format = quant::Format::kF32;
  PackedLayout layout = PackedLayout::kNone;
  int64_t n = 0;
  int64_t k = 0;
  const std::byte* codes = nullptr;
  const std::byte* scales = nullptr;     // null for formats without
  DType scale_dtype = DType::kF32;       // of `scales`: kInterleaved16 as stored, others f32
  const float* global_scales = nullptr;  // kInterleaved16 and kSlab16 of formats with global
                                         // scales, kPanel64: one per row, padded rows too
  device::Buffer storage;                // what the pointers point into

  int64_t num_bytes() const { return storage.num_bytes(); }
};

// Rows [row_begin, row_end) of a stored weight; several sources are stacked (w1 over w3, for
// example). All must share format, k and the dtype of scales.
struct WeightRows {
  quant::WeightView weight;
  int64_t row_begin = 0;
  int64_t row_end = 0;
};

// kInvalidArgument when the sources do not fit together, kExhausted without memory.
Result<PackedWeight> pack_weight(std::span<const WeightRows> sources, PackedLayout layout);
// Bytes that a packed [n, k] weight takes, with scales stored as `scale_dtype`. For plans.
int64_t packed_weight_bytes(
    quant::Format format, int64_t n, int64_t k, DType scale_dtype, PackedLayout layout);
// The parts of such a weight: `codes`, `scales` and `global_scales` of PackedWeight, without what
// aligns them.
struct PackedParts {
  int64_t codes = 0;
  int64_t scales = 0;
  int64_t global_scales = 0;
};
PackedParts packed_weight_parts(
    quant::Format format, int64_t n, int64_t k, DType scale_dtype, PackedLayout layout);
// Errors of pack_weight() that concern sources of any layout.
Result<void> check_stack(std::span<const WeightRows> sources);
// The inverse: decodes row `row`, or all rows, to f32.   out: [k], or [n, k] row-major
void unpack_row(const PackedWeight& weight, int64_t row, std::span<float> out);
void unpack_weight(const PackedWeight& weight, std::span<float> out);

// --- kRowMajor ---
// Groups are runs of the format's block_shape.k elements of one row; NVFP4's global scale is part
// of each group's.

// Weights along k that share one scale; all of k for formats without scales.
inline int64_t group_size(quant::Format format, int64_t k) {
  const quant::FormatInfo& info = quant::format_info(format);
  return info.has_scales() ? info.block_shape.k : k;
}

// --- kInterleaved16 ---
// A block is 16 rows; blocks follow each other. Within a block, along k, come 64-byte vectors: 4
// bytes of each row, so 1 (f32), 2 (bf16, f16), 4 (fp8) or 8 (4-bit) values of k. Lane r of a
// vector, its bytes 4r to 4r + 3, holds row r:
//   f32    k0
//   bf16   k0 k1
//   4-bit  nibbles, low first: k0 k2 k4 k6 k1 k3 k5 k7. Nibble j of the two halves is the pair (2j,
//   2j + 1). fp8    as above in lanes of 4 rows: the 16 bytes are k0 k1 of rows 0 to 3, then k2 k3
//   of rows 0 to 3
// k is padded with zero codes to a multiple of 16. Scales: 16 per block and group, row r at r, in
// the stored dtype. Source: the layouts of spec "kernels" 3 and 11; the orders make pairs along k
// appear without shuffles.

inline constexpr int64_t kInterleavedRows = 16;
inline constexpr int64_t kInterleavedVectorBytes = 64;

constexpr int64_t interleaved_padded_k(int64_t k) { return round_up(k, 16); }

// Values of k in one vector.
constexpr int64_t interleaved_vector_k(quant::Format format) {
  return 32 / quant::format_info(format).bits_per_weight;
}

// Bytes of one block's codes.
constexpr int64_t interleaved_block_bytes(quant::Format format, int64_t k) {
  return interleaved_padded_k(k) / interleaved_vector_k(format) * kInterleavedVectorBytes;
}

}  // namespace nibble::kernels
