// The byte alphabet of byte-level BPE files: each byte is spelled as one printable character.
// Source: GPT-2. Bytes 33-126, 161-172 and 174-255 stand for the code point of the same number, the
// other 68 in ascending order for U+0100, U+0101, ...
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nibble::text {

// The character that spells `byte`.
char32_t alphabet_char(uint8_t byte);

// The bytes that a vocabulary entry spells; nullopt when a character is outside the alphabet.
std::optional<std::string> bytes_from_alphabet(std::string_view spelling);

}  // namespace nibble::text
