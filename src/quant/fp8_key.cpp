#include "quant/fp8_key.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "quant/activation.h"
#include "quant/numeric.h"

namespace nibble::quant {
namespace {

// f32_to_e4m3 for magnitudes up to 448, without branches, so that loops over it become vectors.
uint8_t small_to_e4m3(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 24) & 0x80U;
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0x1p14F) -
                             std::bit_cast<uint32_t>(0x1p14F);
  const uint32_t normal = ((magnitude + 0x7FFFFU + ((magnitude >> 20) & 1U)) >> 20) - (120U << 3);
  return static_cast<uint8_t>(sign |
                              (magnitude < std::bit_cast<uint32_t>(0x1p-6F) ? subnormal : normal));
}

// The largest magnitude; NaN where a value cannot be stored.
float storable_amax(std::span<const float> values) {
  float amax = 0;
  bool is_storable = true;
  for (const float value : values) {
    const float magnitude = std::fabs(value);
    is_storable &= magnitude <= kLargestFp8Key;  // false for NaN
    amax = std::max(amax, magnitude);
  }
  return is_storable ? amax : std::numeric_limits<float>::quiet_NaN();
}

// Writes the codes of one block and returns their scale.
float encode_block(std::span<const float> values, std::byte* codes) {
  const float amax = storable_amax(values);
  if (std::isnan(amax)) {
    std::memset(codes, 0, values.size());
    return amax;
  }
  const float scale = fp8_activation_scale(amax);
  const float inverse = 1 / scale;  // exact
  for (size_t i = 0; i < values.size(); ++i) {
    codes[i] = static_cast<std::byte>(small_to_e4m3(values[i] * inverse));
  }
  return scale;
}

void decode_block(const std::byte* codes, float scale, std::span<float> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = e4m3_to_f32(static_cast<uint8_t>(codes[i])) * scale;
  }
}

uint8_t e8m0_of(float scale) {
  return std::isnan(scale) ? kE8m0Nan : static_cast<uint8_t>(std::bit_cast<uint32_t>(scale) >> 23);
}

// Calls visit(first element, index of its scale) for every block of codes.
template <class Visit>
void for_each_block(const Fp8KeyLayout& layout, Visit&& visit) {
  CHECK(layout.num_codes % kFp8KeyBlock == 0) << layout.num_codes;
  for (int64_t block = 0; block < layout.num_codes / kFp8KeyBlock; ++block) {
    visit(static_cast<size_t>(block * kFp8KeyBlock), layout.scales_offset() + block);
  }
}

}  // namespace

void encode_fp8_key(std::span<const float> key, const Fp8KeyLayout& layout, std::byte* row) {
  CHECK(static_cast<int64_t>(key.size()) == layout.width()) << key.size();
  const auto codes = static_cast<size_t>(layout.num_codes);
  std::memset(row + layout.scales_offset(),
              0,
              static_cast<size_t>(layout.row_bytes() - layout.scales_offset()));
  for_each_block(layout, [&](size_t first, int64_t scale_offset) {
    const float scale = encode_block(key.subspan(first, size_t{kFp8KeyBlock}), row + first);
    row[scale_offset] = static_cast<std::byte>(e8m0_of(scale));
  });
  auto* const rotary = reinterpret_cast<uint16_t*>(row + codes);
  for (size_t i = codes; i < key.size(); ++i) rotary[i - codes] = f32_to_bf16(key[i]);
}

void decode_fp8_key(const std::byte* row, const Fp8KeyLayout& layout, std::span<float> key) {
  CHECK(static_cast<int64_t>(key.size()) == layout.width()) << key.size();
  const auto codes = static_cast<size_t>(layout.num_codes);
  for_each_block(layout, [&](size_t first, int64_t scale_offset) {
    decode_block(row + first,
                 e8m0_to_f32(static_cast<uint8_t>(row[scale_offset])),
                 key.subspan(first, size_t{kFp8KeyBlock}));
  });
  const auto* const rotary = reinterpret_cast<const uint16_t*>(row + codes);
  for (size_t i = codes; i < key.size(); ++i) key[i] = bf16_to_f32(rotary[i - codes]);
}

void encode_fp8_index_key(std::span<const float> key, std::byte* row) {
  const float scale = encode_block(key, row);
  std::memcpy(row + key.size(), &scale, sizeof(scale));
}

void decode_fp8_index_key(const std::byte* row, std::span<float> key) {
  float scale = 0;
  std::memcpy(&scale, row + key.size(), sizeof(scale));
  decode_block(row, scale, key);
}

}  // namespace nibble::quant
