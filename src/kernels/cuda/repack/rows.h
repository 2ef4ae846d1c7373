// The arithmetic of repack kernels, one small part of a weight at a time. Plain C++ that runs on
// the GPU and, in tests, on the host.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/bf16_panel64.h"
#include "kernels/fp8_panel64.h"
#include "kernels/panel64.h"
#include "kernels/repack.h"

#ifdef __CUDACC__
#define NIBBLE_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define NIBBLE_HOST_DEVICE inline
#endif

namespace nibble::kernels::cuda {

// std::bit_cast, which GPU code may not call.
NIBBLE_HOST_DEVICE float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }
NIBBLE_HOST_DEVICE uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }

// --- scales ---

NIBBLE_HOST_DEVICE float decode_e8m0(uint32_t code) {
  if (code == 0) return float_of(0x00400000U);  // 2^-127
  return float_of(code == 255 ? 0x7FC00000U : code << 23);
}

NIBBLE_HOST_DEVICE float decode_e4m3(uint32_t code) {
  const uint32_t sign = (code & 0x80U) << 24, magnitude = code & 0x7FU;
  if (magnitude == 0x7F) return float_of(0x7FC00000U);
  // Exponents are rebased by a product, which also turns subnormals into normal numbers.
  const float value = float_of(magnitude << 20) * 0x1p120f;
  return float_of(bits_of(value) | sign);
}

NIBBLE_HOST_DEVICE float decode_f16(uint32_t bits) {
  const uint32_t sign = (bits & 0x8000U) << 16, magnitude = bits & 0x7FFFU;
  if (magnitude >= 0x7C00U) {  // infinities and NaN
    return float_of(sign | 0x7F800000U | (magnitude & 0x3FFU) << 13);
  }
  const float value = float_of(magnitude << 13) * 0x1p112f;
  return float_of(bits_of(value) | sign);
}

NIBBLE_HOST_DEVICE float decode_scale(DType dtype, const std::byte* scales, int64_t i) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(scales);
  const auto* const halves = reinterpret_cast<const uint16_t*>(scales);
  switch (dtype) {
    case DType::kF8E8m0:
      return decode_e8m0(bytes[i]);
    case DType::kF8E4m3:
      return decode_e4m3(bytes[i]);
    case DType::kBf16:
      return float_of(static_cast<uint32_t>(halves[i]) << 16);
    case DType::kF16:
      return decode_f16(halves[i]);
    default:
      return reinterpret_cast<const float*>(scales)[i];
  }
}

// Scales of one row along k.
NIBBLE_HOST_DEVICE int64_t groups_per_row(const RepackArgs& args) {
  return (args.k + args.block_shape.k - 1) / args.block_shape.k;
}

// The multiplier of `group` of the piece's row `row`.
NIBBLE_HOST_DEVICE float scale_of(const RepackArgs& args, int64_t row, int64_t group) {
  const int64_t block_row =
      (args.first_row + row) / args.block_shape.n - args.first_row / args.block_shape.n;
  return decode_scale(args.scale_dtype, args.scales, block_row * groups_per_row(args) + group) *
         args.global_scale;
}

// kRowMajor: one f32 per row and group.
NIBBLE_HOST_DEVICE void expand_scale(const RepackArgs& args, int64_t row, int64_t group) {
  reinterpret_cast<float*>(
      args.packed_scales)[(args.stack_row + row) * groups_per_row(args) + group] =
      scale_of(args, row, group);
}

// --- kBf16Panel64 ---

// 8 values of a row, fewer at its end.
NIBBLE_HOST_DEVICE int64_t bf16_chunks_per_row(int64_t k) { return (k + 7) / 8; }

// Writes chunk `chunk` of the piece's row `row`.
NIBBLE_HOST_DEVICE void pack_bf16_chunk(const RepackArgs& args, int64_t row, int64_t chunk) {
  constexpr int64_t kChunksPerTile = kBf16PanelTileK / 8;
  const int64_t tiles = (args.k + kBf16PanelTileK - 1) / kBf16PanelTileK;
  const int64_t at = args.stack_row + row;
  const int64_t tile = at / kBf16PanelRows * tiles + chunk / kChunksPerTile;
  const std::byte* const from = args.codes + (row * args.k + chunk * 8) * 2;
  std::byte* const to = args.packed_codes + tile * kBf16PanelTileBytes +
                        chunk % kChunksPerTile * (kBf16PanelRows * 16) + at % kBf16PanelRows * 16;
  const int64_t count = args.k - chunk * 8 < 8 ? args.k - chunk * 8 : 8;
  if (args.k % 8 == 0) {
    struct alignas(16) Chunk {
      uint32_t words[4];
    };
    *reinterpret_cast<Chunk*>(to) = *reinterpret_cast<const Chunk*>(from);
  } else {
    for (int64_t i = 0; i < count * 2; ++i) to[i] = from[i];
  }
}

// --- kFp8Panel64 ---

// 16 codes of a row, fewer at its end.
NIBBLE_HOST_DEVICE int64_t fp8_chunks_per_row(int64_t k) { return (k + 15) / 16; }

// Writes chunk `chunk` of the piece's row `row`, and the scale that begins with it.
NIBBLE_HOST_DEVICE void pack_fp8_chunk(const RepackArgs& args, int64_t row, int64_t chunk) {
  constexpr int64_t kChunksPerTile = kFp8TileK / 16;
  const int64_t tiles = (args.k + kFp8TileK - 1) / kFp8TileK;
  const int64_t at = args.stack_row + row;
  const int64_t tile = at / kFp8PanelRows * tiles + chunk / kChunksPerTile;
  const std::byte* const from = args.codes + row * args.k + chunk * 16;
  std::byte* const to = args.packed_codes + tile * kFp8TileBytes +
                        chunk % kChunksPerTile * (kFp8PanelRows * 16) + at % kFp8PanelRows * 16;
  const int64_t count = args.k - chunk * 16 < 16 ? args.k - chunk * 16 : 16;
  if (args.k % 16 == 0) {
    struct alignas(16) Chunk {
      uint32_t words[4];
    };
    *reinterpret_cast<Chunk*>(to) = *reinterpret_cast<const Chunk*>(from);
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = from[i];
  }
  if (at % kFp8PanelRows == 0 && chunk % kChunksPerTile == 0) {
    reinterpret_cast<float*>(args.packed_scales)[tile] =
        scale_of(args, row, chunk / kChunksPerTile);
  }
}

// --- kPanel64 ---

inline constexpr int32_t kPanelGroup = 32;       // values of k that share a scale
inline constexpr int32_t kPanelGroupBytes = 16;  // as stored

// Where row `row` of the stack lies: the inverse of panel_source_row().
NIBBLE_HOST_DEVICE int64_t panel_row(PanelOrder order, int64_t n, int64_t row) {
  if (order == PanelOrder::kNatural) return row;
  const int64_t is_up = row >= n / 2 ? 1 : 0;
  const int64_t within = row - is_up * (n / 2);
  return within / 8 * 16 + within % 8 + is_up * 8;
}

// Offset of (row of the order, group): lane t's word is 16 t bytes on. The group's scales lie
// outside of the words, NVFP4's two kNvfp4ScaleStride bytes apart.
struct PanelPlace {
  int64_t words = 0;
  int64_t scale = 0;
};
inline constexpr int64_t kNvfp4ScaleStride = 2;
template <quant::Format kFormat>
inline constexpr int64_t kSlabBytesOf = panel_slab_bytes(kFormat);  // GPU code may not call it
template <quant::Format kFormat>
NIBBLE_HOST_DEVICE PanelPlace panel_place(int64_t k, int64_t row, int64_t group) {
  constexpr int64_t kSlabBytes = kSlabBytesOf<kFormat>;
  const int64_t stages = (k + kPanelStageK - 1) / kPanelStageK;
  const int64_t slab =
      (row / kPanelRows * stages + group / 8) * 4 * kSlabBytes + row % kPanelRows / 16 * kSlabBytes;
  const int64_t chunk = group / 2 % 4, half = row % 16 / 8, g = row % 8, q = group % 2;
  const int64_t in_pairs = chunk / 2 * 128 + g * 16 + chunk % 2 * 8 + q * 4;
  const int64_t scale = kFormat == quant::Format::kMxfp4   ? g * 16 + chunk * 4 + half * 2 + q
                        : kFormat == quant::Format::kNvfp4 ? in_pairs + half
                                                           : in_pairs + half * 2;
  return {.words = slab + chunk * 512 + g * 64 + (q * 2 + half) * 4,
          .scale = slab + kPanelSlabCodeBytes + scale};
}
// Of (the piece's row `row`, group).
template <quant::Format kFormat>
NIBBLE_HOST_DEVICE PanelPlace panel_place(const RepackArgs& args, int64_t row, int64_t group) {
  return panel_place<kFormat>(args.k, panel_row(args.order, args.n, args.stack_row + row), group);
}

// Lane t's eight stored codes of a group: nibble i is v_i.
NIBBLE_HOST_DEVICE uint32_t panel_nibbles(const std::byte* group, int64_t t) {
  const auto* const pairs = reinterpret_cast<const uint16_t*>(group);
  return pairs[t] | static_cast<uint32_t>(pairs[t + 4]) << 16;
}

// Bits 0, 4, 8, 12 to bits 0, 8, 16, 24.
NIBBLE_HOST_DEVICE uint32_t spread_bits(uint32_t bits) {
  bits = (bits | bits << 8) & 0x00FF00FFU;
  return (bits | bits << 4) & 0x01010101U;
}

NIBBLE_HOST_DEVICE uint32_t panel_word(uint32_t nibbles) {
  return (nibbles & 0x77777777U) | spread_bits(nibbles >> 3 & 0x1111U) << 7 |
         spread_bits(nibbles >> 19 & 0x1111U) << 3;
}

// The same for NVFP4.
NIBBLE_HOST_DEVICE uint32_t nvfp4_panel_word(uint32_t nibbles) {
  const auto bits_of_four = [&](int32_t bit) {  // of v0 .. v3, or with 16 more of v4 .. v7
    return spread_bits(nibbles >> bit & 0x1111U);
  };
  return bits_of_four(0) << 2 | bits_of_four(1) << 3 | bits_of_four(2) << 4 | bits_of_four(3) << 7 |
         bits_of_four(16) | bits_of_four(17) << 1 | bits_of_four(18) << 6 | bits_of_four(19) << 5;
}

// Exponents of a row's groups that hold a value other than zero.
struct ExponentSpan {
  int32_t min = 255;
  int32_t max = -1;
};
NIBBLE_HOST_DEVICE ExponentSpan join(ExponentSpan a, ExponentSpan b) {
  return {.min = a.min < b.min ? a.min : b.min, .max = a.max > b.max ? a.max : b.max};
}

// What lane t sees of the piece's row `row`, group `group`.
NIBBLE_HOST_DEVICE const std::byte* stored_group(const RepackArgs& args,
                                                 int64_t row,
                                                 int64_t group) {
  return args.codes + (row * (args.k / kPanelGroup) + group) * kPanelGroupBytes;
}
NIBBLE_HOST_DEVICE int32_t stored_exponent(const RepackArgs& args, int64_t row, int64_t group) {
  return static_cast<int32_t>(args.scales[row * (args.k / kPanelGroup) + group]);
}

// The least exponent that a row's scale bytes stand for, from those of its groups.
NIBBLE_HOST_DEVICE int32_t panel_base(ExponentSpan span) {
  if (span.max < 0) return 127;
  return span.max > kPanelScaleMax ? span.max - kPanelScaleMax : 0;
}
NIBBLE_HOST_DEVICE float panel_multiplier(int32_t base) {
  const int32_t exponent = base + kPanelScaleBias;  // 13 .. 244: a normal number
  return float_of(static_cast<uint32_t>(exponent) << 23);
}

// Writes lane t's word of a group, for t 0 its scale too.
NIBBLE_HOST_DEVICE void pack_panel_group(
    const RepackArgs& args, int64_t row, int64_t group, int64_t t, int32_t base, bool is_zero) {
  const PanelPlace place = panel_place<quant::Format::kMxfp4>(args, row, group);
  *reinterpret_cast<uint32_t*>(args.packed_codes + place.words + t * 16) =
      panel_word(panel_nibbles(stored_group(args, row, group), t));
  if (t != 0) return;
  const int32_t scale = is_zero ? 0 : stored_exponent(args, row, group) - base;
  args.packed_codes[place.scale] = static_cast<std::byte>(scale);
}

// Groups of a row, the last one of NVFP4 maybe half.
NIBBLE_HOST_DEVICE int64_t panel_groups(int64_t k) { return (k + kPanelGroup - 1) / kPanelGroup; }

// Writes lane t's word of a group, for t 0 its scales and, with the row's first group, the row's
// multiplier. Returns what the layout cannot hold, or 0.
NIBBLE_HOST_DEVICE uint32_t pack_nvfp4_group(const RepackArgs& args,
                                             int64_t row,
                                             int64_t group,
                                             int64_t t) {
  constexpr int64_t kScaleGroup = 16;
  const PanelPlace place = panel_place<quant::Format::kNvfp4>(args, row, group);
  const int64_t scales_per_row = args.k / kScaleGroup;
  const auto* const pairs =
      reinterpret_cast<const uint16_t*>(args.codes + row * (args.k / 2) + group * kPanelGroupBytes);
  const auto* const scales = reinterpret_cast<const uint8_t*>(args.scales) + row * scales_per_row;
  uint32_t nibbles = 0, wrong = 0;
  for (int64_t half = 0; half < 2 && group * 2 + half < scales_per_row; ++half) {
    const uint32_t scale = scales[group * 2 + half];
    const uint32_t flips = (scale & 0x80U) != 0 ? 0x8888U : 0;  // scales have no signs here
    nibbles |= (pairs[t + half * 4] ^ flips) << (16 * half);
    if ((scale & 0x7FU) == 0x7FU) wrong = kScaleIsNan;
    if (t == 0) {
      args.packed_codes[place.scale + half * kNvfp4ScaleStride] =
          static_cast<std::byte>(scale & 0x7FU);
    }
  }
  *reinterpret_cast<uint32_t*>(args.packed_codes + place.words + t * 16) =
      nvfp4_panel_word(nibbles);
  if (t == 0 && group == 0) {
    args.packed_global_scales[panel_row(args.order, args.n, args.stack_row + row)] =
        args.global_scale;
  }
  return wrong;
}

// Three bits of |v| and a sign for each stored v + 8; -8 becomes the sign of zero.
NIBBLE_HOST_DEVICE uint32_t int4_sign_magnitude(uint32_t nibbles) {
  uint32_t codes = 0;
  for (int32_t shift = 0; shift < 32; shift += 4) {
    const uint32_t stored = nibbles >> shift & 0xFU;
    const uint32_t code = stored >= 8 ? stored - 8 : ((8 - stored) & 7U) | 8U;
    codes |= code << shift;
  }
  return codes;
}

// The same for INT4 with groups of 32.
NIBBLE_HOST_DEVICE uint32_t pack_int4_group(const RepackArgs& args,
                                            int64_t row,
                                            int64_t group,
                                            int64_t t) {
  const PanelPlace place = panel_place<quant::Format::kInt4Group32>(args, row, group);
  *reinterpret_cast<uint32_t*>(args.packed_codes + place.words + t * 16) =
      panel_word(int4_sign_magnitude(panel_nibbles(stored_group(args, row, group), t)));
  if (t != 0) return 0;
  if (group == 0) {
    args.packed_global_scales[panel_row(args.order, args.n, args.stack_row + row)] = 1.0f;
  }
  const uint32_t scale =
      bits_of(decode_scale(args.scale_dtype, args.scales, row * (args.k / kPanelGroup) + group));
  *reinterpret_cast<uint16_t*>(args.packed_codes + place.scale) =
      static_cast<uint16_t>(scale >> 16);
  if ((scale & 0x7F800000U) == 0x7F800000U) return kScaleIsNan;
  return (scale & 0xFFFFU) != 0 ? kScaleIsNoBf16 : 0;
}

}  // namespace nibble::kernels::cuda
