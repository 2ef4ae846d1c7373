// The first bytes of a safetensors file: the length of its JSON header, 64-bit little endian.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace nibble::hub {

inline constexpr int64_t kHeaderLengthBytes = 8;
// The reference client's cap; longer headers are refused before they are read.
inline constexpr int64_t kMaxHeaderBytes = 25'000'000;

// `bytes` holds at least the length. Values beyond int64_t come out as its maximum.
inline int64_t read_header_length(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < static_cast<size_t>(kHeaderLengthBytes); ++i) {
    value |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return static_cast<int64_t>(std::min<uint64_t>(value, INT64_MAX));
}

}  // namespace nibble::hub
