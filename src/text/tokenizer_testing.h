// Oracles for tests and fuzz targets of the tokenizer, written to be obviously right: a
// backtracking matcher for the pre-tokenizer's regexes and a quadratic merge. Also a minimal
// tokenizer.json.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/utf8.h"
#include "text/bpe.h"
#include "text/byte_alphabet.h"
#include "text/char_class.h"
#include "text/pre_tokenizer.h"

namespace nibble::text::testing {

// Greedy repetition of one character class.
struct Term {
  std::function<bool(char32_t)> accept;
  size_t min = 1;
  size_t max = 1;
};

struct Alternative {
  std::vector<Term> terms;
  bool is_followed_by_no_text = false;  // (?!\S)
};

using Regex = std::vector<Alternative>;

inline bool is_white_space(char32_t c) {
  return char_class(c) == CharClass::kSpace || char_class(c) == CharClass::kNewline;
}

// The end of the match of `alternative` at `position`, trying longer repetitions first; npos when
// there is none.
inline size_t match_terms(std::u32string_view text,
                          size_t position,
                          const Alternative& alternative,
                          size_t index) {
  if (index == alternative.terms.size()) {
    const bool text_follows = position < text.size() && !is_white_space(text[position]);
    return alternative.is_followed_by_no_text && text_follows ? std::u32string_view::npos
                                                              : position;
  }
  const Term& term = alternative.terms[index];
  size_t count = 0;
  while (count < term.max && position + count < text.size() && term.accept(text[position + count]))
    ++count;
  for (;; --count) {
    if (count < term.min) return std::u32string_view::npos;
    const size_t end = match_terms(text, position + count, alternative, index + 1);
    if (end != std::u32string_view::npos) return end;
    if (count == 0) return std::u32string_view::npos;
  }
}

inline size_t match_regex(std::u32string_view text, size_t position, const Regex& regex) {
  for (const Alternative& alternative : regex) {
    const size_t end = match_terms(text, position, alternative, 0);
    if (end != std::u32string_view::npos) return end;
  }
  return std::u32string_view::npos;
}

// An "isolated" split of every piece: both matches and the text between them stay.
inline std::vector<std::u32string> split(const std::vector<std::u32string>& pieces,
                                         const Regex& regex) {
  std::vector<std::u32string> out;
  for (const std::u32string& piece : pieces) {
    size_t gap = 0;
    size_t position = 0;
    while (position < piece.size()) {
      const size_t end = match_regex(piece, position, regex);
      if (end == std::u32string_view::npos) {
        ++position;
        continue;
      }
      if (gap < position) out.push_back(piece.substr(gap, position - gap));
      out.push_back(piece.substr(position, end - position));
      gap = position = end;
    }
    if (gap < piece.size()) out.push_back(piece.substr(gap));
  }
  return out;
}

inline std::array<Regex, kNumPreTokenizerPatterns> pre_tokenizer_regexes() {
  constexpr size_t kMany = SIZE_MAX;
  const auto is = [](CharClass wanted) {
    return [wanted](char32_t c) { return char_class(c) == wanted; };
  };
  const auto number = is(CharClass::kNumber);
  const auto symbol = is(CharClass::kSymbol);
  const auto newline = is(CharClass::kNewline);
  const auto space = [](char32_t c) { return c == ' '; };
  const auto word = [](char32_t c) {
    return char_class(c) == CharClass::kLetter || char_class(c) == CharClass::kMark;
  };
  const auto lead = [](char32_t c) {
    const CharClass k = char_class(c);
    return k != CharClass::kNewline && k != CharClass::kLetter && k != CharClass::kSymbol;
  };
  const auto ascii_symbol = [](char32_t c) {
    return std::u32string_view(U"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~").find(c) !=
           std::u32string_view::npos;
  };
  const auto ascii_letter = [](char32_t c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
  };
  return {Regex{{{{number, 1, 3}}}},
          Regex{{{{is_cjk, 1, kMany}}}},
          Regex{{{{ascii_symbol, 1, 1}, {ascii_letter, 1, kMany}}},
                {{{lead, 0, 1}, {word, 1, kMany}}},
                {{{space, 0, 1}, {symbol, 1, kMany}, {newline, 0, kMany}}},
                {{{is_white_space, 0, kMany}, {newline, 1, kMany}}},
                {{{is_white_space, 1, kMany}}, true},
                {{{is_white_space, 1, kMany}}}}};
}

inline std::vector<std::string> naive_pieces(std::string_view text) {
  std::u32string code_points;
  while (!text.empty()) {
    const Utf8Char c = decode_utf8(text);
    code_points += c.code_point;
    text.remove_prefix(static_cast<size_t>(c.num_bytes));
  }
  static const auto regexes = pre_tokenizer_regexes();
  std::vector<std::u32string> pieces = {code_points};
  for (const Regex& regex : regexes) pieces = split(pieces, regex);
  std::vector<std::string> out;
  for (const std::u32string& piece : pieces) {
    if (piece.empty()) continue;
    std::string& bytes = out.emplace_back();
    for (const char32_t c : piece) append_utf8(bytes, c);
  }
  return out;
}

inline std::vector<std::string> scanned_pieces(std::string_view text) {
  std::vector<std::string> out;
  PieceScanner scanner(text);
  for (std::string_view piece = scanner.next(); !piece.empty(); piece = scanner.next())
    out.emplace_back(piece);
  return out;
}

// Joins the leftmost pair of lowest rank until no pair can merge.
class NaiveBpe final {
 public:
  NaiveBpe(const std::array<int32_t, 256>& byte_tokens, const std::vector<Merge>& merges)
      : byte_tokens_(byte_tokens) {
    for (size_t rank = 0; rank < merges.size(); ++rank) {
      merges_[{merges[rank].left, merges[rank].right}] = {rank, merges[rank].result};
    }
  }

  std::vector<int32_t> encode(std::string_view piece) const {
    std::vector<int32_t> ids;
    for (const char c : piece) ids.push_back(byte_tokens_[static_cast<uint8_t>(c)]);
    while (true) {
      size_t best_at = 0;
      std::pair<size_t, int32_t> best = {SIZE_MAX, -1};
      for (size_t i = 0; i + 1 < ids.size(); ++i) {
        const auto found = merges_.find({ids[i], ids[i + 1]});
        if (found != merges_.end() && found->second.first < best.first) {
          best = found->second;
          best_at = i;
        }
      }
      if (best.second < 0) return ids;
      ids[best_at] = best.second;
      ids.erase(ids.begin() + static_cast<ptrdiff_t>(best_at + 1));
    }
  }

 private:
  std::array<int32_t, 256> byte_tokens_;
  std::map<std::pair<int32_t, int32_t>, std::pair<size_t, int32_t>> merges_;
};

inline std::string alphabet_spelling(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) append_utf8(out, alphabet_char(static_cast<uint8_t>(c)));
  return out;
}

// A complete small file: byte b has id b, then "ab" 256, "abab" 257, and the added tokens <s> 258,
// <s>> 259 and <n> 260 (normalized, not special).
inline json::Value minimal_tokenizer() {
  json::Object vocab;
  for (int32_t b = 0; b < 256; ++b)
    vocab.insert(alphabet_spelling(std::string(1, static_cast<char>(b))), b);
  vocab.insert("ab", 256);
  vocab.insert("abab", 257);
  const auto added = [](int32_t id, const char* content, bool is_special) {
    return json::Value(json::make_object({{"id", id},
                                          {"content", content},
                                          {"single_word", false},
                                          {"lstrip", false},
                                          {"rstrip", false},
                                          {"normalized", !is_special},
                                          {"special", is_special}}));
  };
  json::Array steps;
  for (const std::string_view regex : kPreTokenizerPatterns) {
    steps.push_back(json::make_object({{"type", "Split"},
                                       {"pattern", json::make_object({{"Regex", regex}})},
                                       {"behavior", "Isolated"},
                                       {"invert", false}}));
  }
  steps.push_back(json::make_object({{"type", "ByteLevel"},
                                     {"add_prefix_space", false},
                                     {"trim_offsets", true},
                                     {"use_regex", false}}));
  return json::make_object(
      {{"version", "1.0"},
       {"truncation", nullptr},
       {"padding", nullptr},
       {"added_tokens",
        json::Array{added(258, "<s>", true), added(259, "<s>>", true), added(260, "<n>", false)}},
       {"normalizer", nullptr},
       {"pre_tokenizer", json::make_object({{"type", "Sequence"}, {"pretokenizers", steps}})},
       {"post_processor", nullptr},
       {"decoder", json::make_object({{"type", "ByteLevel"}})},
       {"model",
        json::make_object({{"type", "BPE"},
                           {"dropout", nullptr},
                           {"unk_token", nullptr},
                           {"continuing_subword_prefix", nullptr},
                           {"end_of_word_suffix", nullptr},
                           {"fuse_unk", false},
                           {"byte_fallback", false},
                           {"ignore_merges", false},
                           {"vocab", vocab},
                           {"merges", json::Array{"a b", json::Array{"ab", "ab"}}}})}});
}

}  // namespace nibble::text::testing
