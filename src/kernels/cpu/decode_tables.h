// Look-up tables of the SIMD decoders: the BF16 images of small codes, which are exact.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "quant/numeric.h"

namespace nibble::kernels {

// BF16 of each E4M3 magnitude (codes 0 to 127, NaN included), lower and upper bytes apart for byte
// permutes.
struct alignas(64) E4m3Bf16Tables {
  std::array<uint8_t, 128> low{};
  std::array<uint8_t, 128> high{};
};

constexpr E4m3Bf16Tables make_e4m3_bf16_tables() {
  E4m3Bf16Tables tables;
  for (size_t code = 0; code < 128; ++code) {
    const uint16_t bits = quant::f32_to_bf16(quant::e4m3_to_f32(static_cast<uint8_t>(code)));
    tables.low[code] = static_cast<uint8_t>(bits & 0xFF);
    tables.high[code] = static_cast<uint8_t>(bits >> 8);
  }
  return tables;
}
inline constexpr E4m3Bf16Tables kE4m3Bf16Tables = make_e4m3_bf16_tables();

// Twice over, because a 16-bit permute takes five bits of index and a nibble has four.
struct alignas(64) NibbleBf16Table {
  std::array<uint16_t, 32> values{};
};
struct alignas(64) NibbleF32Table {
  std::array<float, 16> values{};
};

constexpr float e2m1_value(uint8_t nibble) { return quant::e2m1_to_f32(nibble); }
constexpr float int4_value(uint8_t nibble) {
  return static_cast<float>(quant::int4_to_int(nibble));
}

template <class Value>
constexpr NibbleBf16Table make_nibble_bf16_table(Value value) {
  NibbleBf16Table table;
  for (size_t i = 0; i < 32; ++i) {
    table.values[i] = quant::f32_to_bf16(value(static_cast<uint8_t>(i % 16)));
  }
  return table;
}
template <class Value>
constexpr NibbleF32Table make_nibble_f32_table(Value value) {
  NibbleF32Table table;
  for (size_t i = 0; i < 16; ++i) table.values[i] = value(static_cast<uint8_t>(i));
  return table;
}
inline constexpr NibbleBf16Table kE2m1Bf16Table = make_nibble_bf16_table(e2m1_value);
inline constexpr NibbleBf16Table kInt4Bf16Table = make_nibble_bf16_table(int4_value);
inline constexpr NibbleF32Table kE2m1F32Table = make_nibble_f32_table(e2m1_value);
inline constexpr NibbleF32Table kInt4F32Table = make_nibble_f32_table(int4_value);

}  // namespace nibble::kernels
