// Element types as stored in safetensors files and in our buffers.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace nibble {

enum class DType : uint8_t {
  kBool,
  kU8,
  kI8,
  kI16,
  kU16,
  kI32,
  kU32,
  kI64,
  kU64,
  kF16,
  kBf16,
  kF32,
  kF64,
  kF8E4m3,  // 1-4-3, bias 7, no infinities, NaN 0x7F and 0xFF
  kF8E5m2,
  kF8E8m0,  // power-of-two scales: 2^(b - 127), NaN 0xFF
};

// Bytes of one element.
int64_t dtype_size(DType dtype);

// The safetensors spelling: "BF16", "F8_E4M3", ...
std::string_view dtype_name(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);

}  // namespace nibble
