#include "base/utf8.h"

#include <algorithm>
#include <cstring>

namespace nibble {
namespace {

uint8_t byte_at(std::string_view bytes, size_t i) { return static_cast<uint8_t>(bytes[i]); }

struct LeadByte {
  int32_t num_bytes = 0;  // 0: not a lead byte
  uint8_t second_min = 0x80;
  uint8_t second_max = 0xBF;
};

// Table 3-7: the second byte's range rules out overlong forms, surrogates and values past U+10FFFF.
LeadByte classify(uint8_t b) {
  if (b < 0x80) return {.num_bytes = 1};
  if (b < 0xC2) return {};
  if (b < 0xE0) return {.num_bytes = 2};
  if (b == 0xE0) return {.num_bytes = 3, .second_min = 0xA0};
  if (b == 0xED) return {.num_bytes = 3, .second_max = 0x9F};
  if (b < 0xF0) return {.num_bytes = 3};
  if (b == 0xF0) return {.num_bytes = 4, .second_min = 0x90};
  if (b < 0xF4) return {.num_bytes = 4};
  if (b == 0xF4) return {.num_bytes = 4, .second_max = 0x8F};
  return {};
}

// Bytes at the front that are ASCII for certain: most text is nothing else.
size_t ascii_prefix(std::string_view bytes) {
  constexpr uint64_t kHighBits = 0x8080808080808080;
  size_t length = 0;
  for (uint64_t word = 0; bytes.size() - length >= sizeof(word); length += sizeof(word)) {
    std::memcpy(&word, bytes.data() + length, sizeof(word));
    if ((word & kHighBits) != 0) return length;
  }
  while (length < bytes.size() && byte_at(bytes, length) < 0x80) ++length;
  return length;
}

void append_hex_escape(std::string& out, uint8_t b) {
  constexpr char kHex[] = "0123456789abcdef";
  out += "\\x";
  out += kHex[b >> 4];
  out += kHex[b & 15];
}

}  // namespace

Utf8Char decode_utf8(std::string_view bytes) {
  const uint8_t first = byte_at(bytes, 0);
  const LeadByte lead = classify(first);
  if (lead.num_bytes == 0) return {};
  if (lead.num_bytes == 1) return {.code_point = first, .num_bytes = 1, .is_valid = true};
  auto code_point = static_cast<char32_t>(first & (0x7F >> lead.num_bytes));
  for (int32_t i = 1; i < lead.num_bytes; ++i) {
    const auto at = static_cast<size_t>(i);
    const uint8_t low = i == 1 ? lead.second_min : 0x80;
    const uint8_t high = i == 1 ? lead.second_max : 0xBF;
    if (at >= bytes.size() || byte_at(bytes, at) < low || byte_at(bytes, at) > high) {
      return {.code_point = 0xFFFD, .num_bytes = i, .is_valid = false};
    }
    code_point = (code_point << 6) | (byte_at(bytes, at) & 0x3FU);
  }
  return {.code_point = code_point, .num_bytes = lead.num_bytes, .is_valid = true};
}

void append_utf8(std::string& out, char32_t code_point) {
  const auto put = [&](uint32_t b) { out += static_cast<char>(b); };
  const uint32_t c = code_point;
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6));
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18));
    put(0x80 | ((c >> 12) & 0x3F));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

bool is_valid_utf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t num_ascii = ascii_prefix(bytes);
    if (num_ascii == bytes.size()) return true;
    bytes.remove_prefix(num_ascii);
    const Utf8Char c = decode_utf8(bytes);
    if (!c.is_valid) return false;
    bytes.remove_prefix(static_cast<size_t>(c.num_bytes));
  }
  return true;
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Char c = decode_utf8(bytes);
    const auto n = static_cast<size_t>(c.num_bytes);
    if (c.is_valid) {
      out += bytes.substr(0, n);
    } else {
      append_utf8(out, 0xFFFD);
    }
    bytes.remove_prefix(n);
  }
  return out;
}

int32_t incomplete_utf8_suffix(std::string_view bytes) {
  const auto longest = std::min<size_t>(3, bytes.size());
  for (size_t n = 1; n <= longest; ++n) {
    const std::string_view tail = bytes.substr(bytes.size() - n);
    const LeadByte lead = classify(byte_at(tail, 0));
    if (lead.num_bytes == 0) continue;  // a continuation byte: the lead is further left
    if (static_cast<size_t>(lead.num_bytes) <= n) return 0;
    return decode_utf8(tail).num_bytes == static_cast<int32_t>(n) ? static_cast<int32_t>(n) : 0;
  }
  return 0;
}

std::string escape_for_display(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Char c = decode_utf8(bytes);
    const auto n = static_cast<size_t>(c.num_bytes);
    const bool is_control = c.code_point < 0x20 || (c.code_point >= 0x7F && c.code_point < 0xA0);
    if (c.is_valid && !is_control) {
      out += bytes.substr(0, n);
    } else {
      for (size_t i = 0; i < n; ++i) append_hex_escape(out, byte_at(bytes, i));
    }
    bytes.remove_prefix(n);
  }
  return out;
}

}  // namespace nibble
