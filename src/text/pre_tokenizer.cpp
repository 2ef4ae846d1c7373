#include "text/pre_tokenizer.h"

#include "base/utf8.h"
#include "text/char_class.h"

namespace nibble::text {

const std::array<std::string_view, kNumPreTokenizerPatterns> kPreTokenizerPatterns = {
    R"(\p{N}{1,3})",
    "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
    "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*"
    "|\\s*[\r\n]+"
    "|\\s+(?!\\S)"
    "|\\s+",
};

namespace {

constexpr int32_t kNumberRunMax = 3;

struct Char {
  char32_t code_point = 0;
  CharClass kind = CharClass::kOther;
  size_t end = 0;  // byte offset behind the character
};

Char char_at(std::string_view text, size_t position) {
  const auto byte = static_cast<uint8_t>(text[position]);
  if (byte < 0x80) return {byte, char_class(byte), position + 1};
  const Utf8Char c = decode_utf8(text.substr(position));
  return {c.code_point, char_class(c.code_point), position + static_cast<size_t>(c.num_bytes)};
}

// The end of the longest run of characters from `position` on that satisfy `accept`.
template <class Predicate>
size_t run_end(std::string_view text, size_t position, Predicate accept) {
  while (position < text.size()) {
    const Char c = char_at(text, position);
    if (!accept(c)) break;
    position = c.end;
  }
  return position;
}

bool is_ascii_letter(const Char& c) { return c.code_point < 0x80 && c.kind == CharClass::kLetter; }
bool is_ascii_symbol(const Char& c) { return c.code_point < 0x80 && c.kind == CharClass::kSymbol; }
bool is_word(const Char& c) { return c.kind == CharClass::kLetter || c.kind == CharClass::kMark; }
bool is_symbol(const Char& c) { return c.kind == CharClass::kSymbol; }
bool is_newline(const Char& c) { return c.kind == CharClass::kNewline; }
bool is_white_space(const Char& c) { return c.kind == CharClass::kSpace || is_newline(c); }

// One character that may stand in front of a word: all but CR, LF, letters, punctuation and
// symbols.
bool may_lead_word(const Char& c) {
  return c.kind != CharClass::kNewline && c.kind != CharClass::kLetter &&
         c.kind != CharClass::kSymbol;
}

// `\s*[\r\n]+|\s+(?!\S)|\s+` at a white-space character: up to the last line break of the run; in a
// run without one, all of it at the end of the text, else all but the last character unless that is
// the only one.
size_t match_white_space(std::string_view text, size_t position) {
  size_t end = position;
  size_t last_begin = position;
  size_t newline_end = position;
  while (end < text.size()) {
    const Char c = char_at(text, end);
    if (!is_white_space(c)) break;
    last_begin = end;
    end = c.end;
    if (is_newline(c)) newline_end = end;
  }
  if (newline_end > position) return newline_end;
  if (end == text.size() || last_begin == position) return end;
  return last_begin;
}

// The end of stage 3's match that starts exactly at `position`, or `position` when none does.
size_t match_third_stage(std::string_view text, size_t position) {
  const Char first = char_at(text, position);
  if (is_ascii_symbol(first)) {
    const size_t end = run_end(text, first.end, is_ascii_letter);
    if (end > first.end) return end;
  }
  if (is_word(first)) return run_end(text, first.end, is_word);
  if (may_lead_word(first)) {
    const size_t end = run_end(text, first.end, is_word);
    if (end > first.end) return end;
  }
  const size_t symbols_begin = first.code_point == ' ' ? first.end : position;
  const size_t symbols_end = run_end(text, symbols_begin, is_symbol);
  if (symbols_end > symbols_begin) return run_end(text, symbols_end, is_newline);
  return is_white_space(first) ? match_white_space(text, position) : position;
}

}  // namespace

// Stages 1 and 2.
void PieceScanner::start_segment() {
  const Char first = char_at(text_, position_);
  is_number_ = first.kind == CharClass::kNumber;
  if (is_number_) {
    int32_t count = 0;
    segment_end_ = run_end(text_, position_, [&](const Char& c) {
      return c.kind == CharClass::kNumber && ++count <= kNumberRunMax;
    });
    return;
  }
  const bool cjk = is_cjk(first.code_point);
  segment_end_ = run_end(text_, first.end, [&](const Char& c) {
    return c.kind != CharClass::kNumber && is_cjk(c.code_point) == cjk;
  });
}

std::string_view PieceScanner::next() {
  if (position_ == segment_end_) {
    if (position_ == text_.size()) return {};
    start_segment();
  }
  if (is_number_) return take_until(segment_end_);
  if (match_end_ > position_) return take_until(match_end_);

  const std::string_view segment = text_.substr(0, segment_end_);
  size_t match_begin = position_;
  while (match_begin < segment_end_) {
    match_end_ = match_third_stage(segment, match_begin);
    if (match_end_ > match_begin) break;
    match_begin = char_at(segment, match_begin).end;
  }
  return take_until(match_begin > position_ ? match_begin : match_end_);
}

std::string_view PieceScanner::take_until(size_t end) {
  const std::string_view piece = text_.substr(position_, end - position_);
  position_ = end;
  return piece;
}

}  // namespace nibble::text
