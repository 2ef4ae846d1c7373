#include "text/byte_alphabet.h"

#include <array>

#include "base/utf8.h"

namespace nibble::text {
namespace {

constexpr size_t kNumShifted = 68;
constexpr char32_t kFirstShifted = 0x100;

constexpr bool stands_for_itself(uint32_t byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

constexpr auto kAlphabet = [] {
  std::array<char32_t, 256> alphabet{};
  char32_t next = kFirstShifted;
  for (uint32_t byte = 0; byte < 256; ++byte)
    alphabet[byte] = stands_for_itself(byte) ? byte : next++;
  return alphabet;
}();

// -1: the character spells no byte.
constexpr auto kByteOfChar = [] {
  std::array<int16_t, kFirstShifted + kNumShifted> bytes{};
  for (int16_t& byte : bytes) byte = -1;
  for (int16_t byte = 0; byte < 256; ++byte) bytes[kAlphabet[static_cast<size_t>(byte)]] = byte;
  return bytes;
}();

}  // namespace

char32_t alphabet_char(uint8_t byte) { return kAlphabet[byte]; }

std::optional<std::string> bytes_from_alphabet(std::string_view spelling) {
  std::string bytes;
  while (!spelling.empty()) {
    const Utf8Char c = decode_utf8(spelling);
    if (c.code_point >= kByteOfChar.size() || kByteOfChar[c.code_point] < 0) return std::nullopt;
    bytes += static_cast<char>(kByteOfChar[c.code_point]);
    spelling.remove_prefix(static_cast<size_t>(c.num_bytes));
  }
  return bytes;
}

}  // namespace nibble::text
