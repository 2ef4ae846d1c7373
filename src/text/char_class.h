// Character classes that the pre-tokenizer distinguishes, from Unicode general categories.
// Source: Unicode 15.0 (UnicodeData general categories, PropList White_Space).
#pragma once

#include <array>
#include <cstdint>

namespace nibble::text {

enum class CharClass : uint8_t {
  kOther,    // controls other than white space, format characters, unassigned, private use
  kLetter,   // \p{L}
  kMark,     // \p{M}
  kNumber,   // \p{N}
  kSymbol,   // \p{P} or \p{S}: no rule tells them apart
  kSpace,    // White_Space except the next
  kNewline,  // CR, LF
};

namespace internal {
CharClass lookup_char_class(char32_t code_point);
constexpr CharClass ascii_char_class(char32_t c) {
  if (c == '\r' || c == '\n') return CharClass::kNewline;
  if (c == ' ' || (c >= '\t' && c <= '\f')) return CharClass::kSpace;
  if (c < ' ' || c == 0x7F) return CharClass::kOther;
  if (c >= '0' && c <= '9') return CharClass::kNumber;
  if ((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')) return CharClass::kLetter;
  return CharClass::kSymbol;
}
inline constexpr auto kAsciiCharClass = [] {
  std::array<CharClass, 128> table{};
  for (char32_t c = 0; c < 128; ++c) table[c] = ascii_char_class(c);
  return table;
}();
}  // namespace internal

inline CharClass char_class(char32_t code_point) {
  return code_point < 128 ? internal::kAsciiCharClass[code_point]
                          : internal::lookup_char_class(code_point);
}

// The ranges that the second stage of the pre-tokenizer isolates: CJK ideographs, hiragana,
// katakana.
constexpr bool is_cjk(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF);
}

}  // namespace nibble::text
