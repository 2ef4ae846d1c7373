// Scalar conversions between F32 and the small formats, exact to the bit. Rounding is to nearest,
// ties to even. Packed 4-bit values: element 2i of a row is the low nibble of byte i, element 2i +
// 1 the high one.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace nibble::quant {

// 2^exponent for exponent in [-126, 127].
constexpr float exp2_int(int32_t exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

// Exponent of the smallest power of two >= a, for normal positive a (the rule of ue8m0 scales).
constexpr int32_t ceil_log2(float a) {
  const auto bits = std::bit_cast<uint32_t>(a);
  return static_cast<int32_t>(bits >> 23) - 127 + ((bits & 0x7FFFFFu) != 0 ? 1 : 0);
}

// --- BF16: the upper half of an F32 ---

constexpr float bf16_to_f32(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// NaN stays NaN (quiet, sign and upper payload kept); overflow gives infinity.
constexpr uint16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

constexpr float round_to_bf16(float value) { return bf16_to_f32(f32_to_bf16(value)); }

// --- F16: 1-5-10, bias 15 ---

constexpr float f16_to_f32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7FFFu;
  if (magnitude >= 0x7C00u) {  // infinity, NaN
    return std::bit_cast<float>(sign | 0x7F800000u | ((magnitude & 0x3FFu) << 13));
  }
  // Placing the bits in the F32 fields gives the value times 2^-112, subnormals included.
  const float scaled = std::bit_cast<float>(magnitude << 13) * exp2_int(112);
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(scaled));
}

// NaN stays NaN; magnitudes of 65520 and above give infinity.
constexpr uint16_t f32_to_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  uint32_t half = 0;
  if (magnitude > 0x7F800000u) {
    half = 0x7E00u | ((magnitude >> 13) & 0x3FFu);
  } else if (magnitude >=
             0x477FF000u) {  // 65520: halfway between the largest finite value and 2^16
    half = 0x7C00u;
  } else if (magnitude <
             0x38800000u) {  // below 2^-14: the sum's last bit is worth 2^-24, so the FPU rounds
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) -
           std::bit_cast<uint32_t>(0.5f);
  } else {
    half = (magnitude + 0xFFFu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}

// --- FP8 ---

namespace internal {

// Value of a minifloat magnitude `code` with `mantissa_bits` and `bias`; no special codes.
constexpr float decode_minifloat(uint32_t code, uint32_t mantissa_bits, int32_t bias) {
  const uint32_t mantissa = code & ((1u << mantissa_bits) - 1);
  const auto exponent = static_cast<int32_t>(code >> mantissa_bits);
  const auto width = static_cast<int32_t>(mantissa_bits);
  if (exponent == 0) return static_cast<float>(mantissa) * exp2_int(1 - bias - width);
  return static_cast<float>(mantissa + (1u << mantissa_bits)) * exp2_int(exponent - bias - width);
}

constexpr std::array<float, 256> make_e4m3_table() {
  std::array<float, 256> table{};
  for (uint32_t code = 0; code < 128; ++code) {
    const float value =
        code == 0x7F ? std::numeric_limits<float>::quiet_NaN() : decode_minifloat(code, 3, 7);
    table[code] = value;
    table[code + 128] = -value;
  }
  return table;
}

}  // namespace internal

inline constexpr float kE4m3Max = 448.0f;
inline constexpr uint8_t kE4m3Nan = 0x7F;  // and 0xFF

// Value of each E4M3 (e4m3fn) code.
inline constexpr std::array<float, 256> kE4m3Table = internal::make_e4m3_table();

constexpr float e4m3_to_f32(uint8_t code) { return kE4m3Table[code]; }
constexpr bool is_e4m3_nan(uint8_t code) { return (code & 0x7F) == kE4m3Nan; }

// Saturates at +-448, infinities included; NaN gives 0x7F or 0xFF.
constexpr uint8_t f32_to_e4m3(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint8_t>(sign | kE4m3Nan);
  if (magnitude >= std::bit_cast<uint32_t>(kE4m3Max)) return static_cast<uint8_t>(sign | 0x7Eu);
  uint32_t code = 0;
  if (magnitude < std::bit_cast<uint32_t>(exp2_int(-6))) {
    // Subnormal codes count 2^-9, which is the last bit of a sum with 2^14: the FPU rounds.
    const float sum = std::bit_cast<float>(magnitude) + exp2_int(14);
    code = std::bit_cast<uint32_t>(sum) - std::bit_cast<uint32_t>(exp2_int(14));
  } else {
    const uint32_t rounded = magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u);
    code = (rounded >> 20) - ((127u - 7u) << 3);
  }
  return static_cast<uint8_t>(sign | code);
}

// E5M2 is the upper byte of an F16.
constexpr float e5m2_to_f32(uint8_t code) { return f16_to_f32(static_cast<uint16_t>(code << 8)); }

// --- E8M0: 2^(b - 127), the scale of MX formats ---

inline constexpr uint8_t kE8m0One = 127;
inline constexpr uint8_t kE8m0Nan = 255;

// Code 0 is 2^-127 (a subnormal F32), not zero; code 255 is NaN.
constexpr float e8m0_to_f32(uint8_t code) {
  if (code == 0) return std::bit_cast<float>(0x00400000u);
  if (code == kE8m0Nan) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(static_cast<uint32_t>(code) << 23);
}

// --- E2M1: 4-bit codes sign-2-1, bias 1 ---

inline constexpr float kE2m1Max = 6.0f;

inline constexpr std::array<float, 16> kE2m1Table = {0.0f,
                                                     0.5f,
                                                     1.0f,
                                                     1.5f,
                                                     2.0f,
                                                     3.0f,
                                                     4.0f,
                                                     6.0f,
                                                     -0.0f,
                                                     -0.5f,
                                                     -1.0f,
                                                     -1.5f,
                                                     -2.0f,
                                                     -3.0f,
                                                     -4.0f,
                                                     -6.0f};

constexpr float e2m1_to_f32(uint8_t nibble) { return kE2m1Table[nibble & 15u]; }

// Saturates at +-6; the format has no NaN, so NaN saturates too.
constexpr uint8_t f32_to_e2m1(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 28) & 8u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude >= std::bit_cast<uint32_t>(kE2m1Max)) return static_cast<uint8_t>(sign | 7u);
  uint32_t code = 0;
  if (magnitude < std::bit_cast<uint32_t>(1.0f)) {
    // Codes 0 to 2 count 0.5, which is the last bit of a sum with 2^22: the FPU rounds.
    const float sum = std::bit_cast<float>(magnitude) + exp2_int(22);
    code = std::bit_cast<uint32_t>(sum) - std::bit_cast<uint32_t>(exp2_int(22));
  } else {
    const uint32_t rounded = magnitude + 0x1FFFFFu + ((magnitude >> 22) & 1u);
    code = (rounded >> 22) - ((127u - 1u) << 1);
  }
  return static_cast<uint8_t>(sign | code);
}

// --- INT4: stored unsigned with offset 8 ---

constexpr int32_t int4_to_int(uint8_t nibble) { return static_cast<int32_t>(nibble & 15u) - 8; }

// Rounds and saturates to [-8, 7].
inline uint8_t f32_to_int4(float value) {
  const float rounded = std::nearbyint(value);
  const float clamped = rounded < -8.0f ? -8.0f : (rounded > 7.0f ? 7.0f : rounded);
  return static_cast<uint8_t>(static_cast<int32_t>(clamped) + 8);
}

// --- packed nibbles ---

// Element `i` of a packed row. INT4 words (I32, little-endian) have the same order as bytes.
constexpr uint8_t packed_nibble(const uint8_t* row, int64_t i) {
  return static_cast<uint8_t>((row[i / 2] >> (i % 2 * 4)) & 15);
}

}  // namespace nibble::quant
