#include "grammar/regex.h"

#include <fmt/format.h>

#include <optional>
#include <utility>
#include <vector>

#include "base/utf8.h"

namespace nibble::grammar {
namespace {

constexpr int32_t kMaxGroupDepth = 100;
constexpr int32_t kMaxCount = 10'000;

const CodePointSet& digits() {
  static const CodePointSet set = {{'0', '9'}};
  return set;
}
const CodePointSet& word_characters() {
  static const CodePointSet set = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  return set;
}
const CodePointSet& ascii_space() {
  static const CodePointSet set = {{'\t', '\r'}, {' ', ' '}};
  return set;
}
// ECMA-262, WhiteSpace and LineTerminator.
const CodePointSet& all_space() {
  static const CodePointSet set = {{'\t', '\r'},
                                   {' ', ' '},
                                   {0xA0, 0xA0},
                                   {0x1680, 0x1680},
                                   {0x2000, 0x200A},
                                   {0x2028, 0x2029},
                                   {0x202F, 0x202F},
                                   {0x205F, 0x205F},
                                   {0x3000, 0x3000},
                                   {0xFEFF, 0xFEFF}};
  return set;
}
const CodePointSet& line_terminators() {
  static const CodePointSet set = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
  return set;
}

std::optional<CodePointSet> class_of_escape(char32_t letter) {
  switch (letter) {
    case 'd':
      return digits();
    case 'D':
      return digits().complement();
    case 'w':
      return word_characters();
    case 'W':
      return word_characters().complement();
    case 's':
      return ascii_space();
    case 'S':
      return all_space().complement();
    default:
      return std::nullopt;
  }
}

std::optional<char32_t> control_of_escape(char32_t letter) {
  switch (letter) {
    case 't':
      return U'\t';
    case 'n':
      return U'\n';
    case 'r':
      return U'\r';
    case 'f':
      return U'\f';
    case 'v':
      return U'\v';
    default:
      return std::nullopt;
  }
}

std::optional<uint32_t> hex_value(char32_t digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
  return std::nullopt;
}

// Recursive descent over the pattern's characters; depth is bounded by kMaxGroupDepth.
class RegexReader final {
 public:
  RegexReader(std::u32string pattern, RegexUse use, const TextAlphabet& alphabet)
      : pattern_(std::move(pattern)), use_(use), alphabet_(alphabet), rules_(alphabet.rules()) {}

  // pattern ::= branch ("|" branch)*      branch ::= "^"? term* "$"?
  Result<ExprId> read() {
    std::vector<ExprId> branches;
    do {
      TRY_ASSIGN(const ExprId branch, read_top_branch());
      branches.push_back(branch);
    } while (take('|'));
    if (!is_at_end()) return fault("a \")\" without its \"(\"");
    return rules_.choice(branches);
  }

 private:
  bool is_at_end() const { return position_ == pattern_.size(); }
  bool is_next(char32_t c) const { return !is_at_end() && pattern_[position_] == c; }
  bool take(char32_t c) {
    if (!is_next(c)) return false;
    ++position_;
    return true;
  }

  Error fault(std::string_view text) const {
    return invalid_argument(fmt::format("{} (at character {})", text, position_));
  }

  Result<ExprId> read_top_branch() {
    const bool is_searched = use_ == RegexUse::kSearch;
    const bool begins = take('^') || !is_searched;
    TRY_ASSIGN(const ExprId body, read_terms());
    const bool ends = take('$') || !is_searched;
    const ExprId any = begins && ends ? rules_.empty() : alphabet_.any_text();
    return rules_.sequence({begins ? rules_.empty() : any, body, ends ? rules_.empty() : any});
  }

  Result<ExprId> read_alternatives() {
    std::vector<ExprId> branches;
    do {
      TRY_ASSIGN(const ExprId branch, read_terms());
      branches.push_back(branch);
    } while (take('|'));
    return rules_.choice(branches);
  }

  Result<ExprId> read_terms() {
    std::vector<ExprId> terms;
    while (!is_at_end() && !is_next('|') && !is_next(')')) {
      if (is_next('$') && is_branch_end(position_ + 1)) break;
      TRY_ASSIGN(const ExprId atom, read_atom());
      TRY_ASSIGN(const ExprId term, read_quantifier(atom));
      terms.push_back(term);
    }
    return rules_.sequence(terms);
  }

  bool is_branch_end(size_t position) const {
    return depth_ == 0 && (position == pattern_.size() || pattern_[position] == '|');
  }

  Result<ExprId> read_atom() {
    switch (pattern_[position_]) {
      case '(':
        return read_group();
      case '[': {
        TRY_ASSIGN(const CodePointSet set, read_class());
        return alphabet_.one_of(set);
      }
      case '.':
        ++position_;
        return alphabet_.one_of(line_terminators().complement());
      case '\\': {
        TRY_ASSIGN(const CodePointSet set, read_escape(false));
        return alphabet_.one_of(set);
      }
      case '^':
      case '$':
        return fault("an anchor that is not at an end of the pattern is not supported");
      case '*':
      case '+':
      case '?':
      case '{':
        return fault("nothing to repeat; a literal needs a backslash");
      case '}':
      case ']':
        return fault("a literal bracket needs a backslash");
      default: {
        const char32_t literal = pattern_[position_++];
        return alphabet_.one_of({{literal, literal}});
      }
    }
  }

  Result<ExprId> read_group() {
    if (++depth_ > kMaxGroupDepth) return fault("groups are nested too deeply");
    ++position_;
    if (take('?')) TRY(read_group_kind());
    TRY_ASSIGN(const ExprId body, read_alternatives());
    if (!take(')')) return fault("a group is not closed");
    --depth_;
    return body;
  }

  // Behind "(?": only groups that do not look around. Names do not matter.
  Result<void> read_group_kind() {
    if (take(':')) return {};
    take('P');
    if (!take('<') || is_next('=') || is_next('!')) {
      return fault("look-around and group flags are not supported");
    }
    while (!is_at_end() && !is_next('>')) ++position_;
    if (!take('>')) return fault("a group's name is not closed");
    return {};
  }

  Result<ExprId> read_quantifier(ExprId atom) {
    int32_t min = 1;
    std::optional<int32_t> max = 1;
    if (take('*')) {
      min = 0;
      max.reset();
    } else if (take('+')) {
      max.reset();
    } else if (take('?')) {
      min = 0;
    } else if (take('{')) {
      TRY_ASSIGN(min, read_count());
      max = min;
      if (take(',')) {
        max.reset();
        if (!is_next('}')) {
          TRY_ASSIGN(max, read_count());
        }
      }
      if (!take('}')) return fault("a repetition count is not closed");
      if (max && *max < min) return fault("the second repetition count is below the first");
    } else {
      return atom;
    }
    take('?');  // lazy: the same texts
    if (is_next('+')) return fault("possessive repetition is not supported");
    if (is_next('*') || is_next('?') || is_next('{')) return fault("a repetition is repeated");
    return rules_.repeat(atom, min, max);
  }

  Result<int32_t> read_count() {
    int32_t count = 0;
    bool has_digit = false;
    for (; !is_at_end() && digits().contains(pattern_[position_]); ++position_) {
      count = count * 10 + static_cast<int32_t>(pattern_[position_] - '0');
      has_digit = true;
      if (count > kMaxCount) return fault(fmt::format("a count is above {}", kMaxCount));
    }
    if (!has_digit) return fault("expected a repetition count");
    return count;
  }

  Result<CodePointSet> read_class() {
    ++position_;
    const bool is_negated = take('^');
    CodePointSet set;
    while (!is_next(']')) {
      if (is_at_end()) return fault("a class is not closed");
      TRY_ASSIGN(const CodePointSet first, read_class_member());
      const bool is_range =
          is_next('-') && position_ + 1 < pattern_.size() && pattern_[position_ + 1] != ']';
      if (!is_range) {
        set.add(first);
        continue;
      }
      ++position_;
      TRY_ASSIGN(const CodePointSet last, read_class_member());
      TRY_ASSIGN(const char32_t from, single(first));
      TRY_ASSIGN(const char32_t to, single(last));
      if (from > to) return fault("a range in a class is reversed");
      set.add(CodePointRange{from, to});
    }
    ++position_;
    return is_negated ? set.complement() : set;
  }

  Result<char32_t> single(const CodePointSet& set) const {
    const auto ranges = set.ranges();
    if (ranges.size() == 1 && ranges[0].first == ranges[0].last) return ranges[0].first;
    return fault("a range in a class needs single characters as its ends");
  }

  Result<CodePointSet> read_class_member() {
    if (is_next('\\')) return read_escape(true);
    if (is_next('[')) return fault("a literal \"[\" in a class needs a backslash");
    if (is_at_end()) return fault("a class is not closed");
    const char32_t literal = pattern_[position_++];
    return CodePointSet{{literal, literal}};
  }

  Result<CodePointSet> read_escape(bool is_in_class) {
    ++position_;
    if (is_at_end()) return fault("a backslash at the end");
    const char32_t letter = pattern_[position_++];
    if (auto set = class_of_escape(letter)) return *std::move(set);
    if (const auto control = control_of_escape(letter)) return CodePointSet{{*control, *control}};
    if (letter == 'b' && is_in_class) return CodePointSet{{'\b', '\b'}};
    if (letter == 'x') return read_hex(2);
    if (letter == 'u') return read_unicode();
    if (letter == '0' && (is_at_end() || !digits().contains(pattern_[position_]))) {
      return CodePointSet{{0, 0}};
    }
    if (word_characters().contains(letter)) {
      --position_;
      return fault("this escape (a backreference, boundary or property) is not supported");
    }
    return CodePointSet{{letter, letter}};
  }

  Result<CodePointSet> read_hex(int32_t num_digits) {
    char32_t value = 0;
    for (int32_t i = 0; i < num_digits; ++i) {
      const auto digit = is_at_end() ? std::nullopt : hex_value(pattern_[position_]);
      if (!digit) return fault("expected a hexadecimal digit");
      value = value * 16 + *digit;
      ++position_;
    }
    return CodePointSet{{value, value}};
  }

  Result<CodePointSet> read_unicode() {
    constexpr int32_t kNumDigits = 4;
    if (!take('{')) return read_hex(kNumDigits);
    char32_t value = 0;
    while (!is_next('}')) {
      const auto digit = is_at_end() ? std::nullopt : hex_value(pattern_[position_]);
      if (!digit) return fault("expected a hexadecimal digit");
      value = value * 16 + *digit;
      if (value > kLastCodePoint) return fault("a code point beyond U+10FFFF");
      ++position_;
    }
    ++position_;
    return CodePointSet{{value, value}};
  }

  const std::u32string pattern_;
  const RegexUse use_;
  const TextAlphabet& alphabet_;
  Rules& rules_;
  size_t position_ = 0;
  int32_t depth_ = 0;
};

}  // namespace

Result<ExprId> compile_regex(std::string_view pattern, RegexUse use, const TextAlphabet& alphabet) {
  std::u32string characters;
  while (!pattern.empty()) {
    const Utf8Char character = decode_utf8(pattern);
    if (!character.is_valid) return invalid_argument("it is not valid UTF-8");
    characters += character.code_point;
    pattern.remove_prefix(static_cast<size_t>(character.num_bytes));
  }
  return RegexReader(std::move(characters), use, alphabet).read();
}

}  // namespace nibble::grammar
