// UTF-8 primitives: decoding, validation, escaping. Source: Unicode 15, section 3.9, table 3-7.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace nibble {

struct Utf8Char {
  char32_t code_point = 0xFFFD;
  int32_t num_bytes = 1;  // bytes consumed; for an ill-formed sequence its maximal subpart
  bool is_valid = false;
};

// Decodes the sequence at the start of `bytes`, which must not be empty. Ill-formed parts give
// U+FFFD.
Utf8Char decode_utf8(std::string_view bytes);

void append_utf8(std::string& out, char32_t code_point);

bool is_valid_utf8(std::string_view bytes);

// Ill-formed parts become U+FFFD, one per maximal subpart.
std::string replace_invalid_utf8(std::string_view bytes);

// Number of bytes at the end of `bytes` that begin a well-formed but unfinished sequence (0 to 3).
int32_t incomplete_utf8_suffix(std::string_view bytes);

// One printable line: control characters (C0, DEL, C1) and ill-formed bytes come out as \xNN,
// backslash stays.
std::string escape_for_display(std::string_view bytes);

}  // namespace nibble
