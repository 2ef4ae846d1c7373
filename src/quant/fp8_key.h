// The FP8 forms of cached keys (model specification 6.1), encoded and decoded one row at a time. A
// key vector keeps its rotary dimensions in BF16, which FP8 would damage; a key of the indexer is
// codes throughout. Scales are powers of two, chosen as before FP8 matrix products, so that what
// the checkpoint's own FP8 simulation rounded is stored without loss.
//
// A value that is no finite number, or beyond kLargestFp8Key, makes its block's scale NaN and with
// it the whole block. No code of a row is NaN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/checked_math.h"

namespace nibble::quant {

inline constexpr int64_t kFp8KeyBlock = 64;
// The scale of larger values would not be finite times 2^8, as decoders multiply.
inline constexpr float kLargestFp8Key = 0x1p126F;

// Bytes of a key vector:
//   [0, c) E4M3 codes | [c, c + 2 r) BF16 | c / 64 E8M0 scales, one per block of codes | zeros
// up to a multiple of 8. 584 bytes for the released models' c = 448 and r = 64.
struct Fp8KeyLayout {
  int64_t num_codes = 0;   // c, a multiple of kFp8KeyBlock
  int64_t num_rotary = 0;  // r

  constexpr int64_t width() const { return num_codes + num_rotary; }
  constexpr int64_t scales_offset() const { return num_codes + 2 * num_rotary; }
  constexpr int64_t row_bytes() const {
    return round_up(scales_offset() + ceil_div(num_codes, kFp8KeyBlock), int64_t{8});
  }
};

// key: [width]   row: [row_bytes], aligned to 2 bytes
void encode_fp8_key(std::span<const float> key, const Fp8KeyLayout& layout, std::byte* row);
void decode_fp8_key(const std::byte* row, const Fp8KeyLayout& layout, std::span<float> key);

// Bytes of an indexer key: `width` E4M3 codes, then one F32 scale. width is a multiple of 4.
constexpr int64_t fp8_index_key_bytes(int64_t width) {
  return width + static_cast<int64_t>(sizeof(float));
}

// key: [width]   row: [fp8_index_key_bytes(width)], aligned to 4 bytes
void encode_fp8_index_key(std::span<const float> key, std::byte* row);
void decode_fp8_index_key(const std::byte* row, std::span<float> key);

}  // namespace nibble::quant
