#include "grammar/ebnf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/utf8.h"
#include "grammar/regex.h"
#include "grammar/text_alphabet.h"

namespace nibble::grammar {
namespace {

constexpr int32_t kMaxGroupDepth = 100;
constexpr int32_t kMaxCount = 10'000;
constexpr std::string_view kDefines = "::=";

bool is_name_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-';
}

// Recursive descent; depth is bounded by kMaxGroupDepth.
class EbnfReader final {
 public:
  EbnfReader(std::string_view text, Rules& rules)
      : text_(text), rules_(rules), alphabet_(rules, Spelling::kPlain) {}

  // grammar ::= (name "::=" alternatives)+
  Result<RuleId> read() {
    skip_space();
    while (!is_at_end()) TRY(read_rule());
    for (const auto& [name, entry] : entries_) {
      if (!entry.is_defined) {
        return fault_at(entry.mentioned_at, fmt::format("rule '{}' is missing", name));
      }
    }
    const auto root = entries_.find("root");
    if (root == entries_.end()) return fault("rule 'root' is missing");
    return root->second.rule;
  }

 private:
  struct Entry {
    RuleId rule;
    bool is_defined = false;
    size_t mentioned_at = 0;  // first
  };

  bool is_at_end() const { return position_ == text_.size(); }
  char peek() const { return is_at_end() ? '\0' : text_[position_]; }
  std::string_view rest() const { return text_.substr(position_); }
  bool take(char c) {
    if (is_at_end() || text_[position_] != c) return false;
    ++position_;
    return true;
  }

  Error fault(std::string_view what) const { return fault_at(position_, what); }
  Error fault_at(size_t position, std::string_view what) const {
    const std::string_view before = text_.substr(0, position);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    return invalid_argument(fmt::format("line {}: {}", line, what));
  }

  void skip_space() {
    while (!is_at_end()) {
      if (peek() == '#') {
        position_ = std::min(text_.find('\n', position_), text_.size());
      } else if (std::isspace(static_cast<unsigned char>(peek())) != 0) {
        ++position_;
      } else {
        return;
      }
    }
  }

  std::string_view read_name() {
    const size_t begin = position_;
    while (!is_at_end() && is_name_character(peek())) ++position_;
    const std::string_view name = text_.substr(begin, position_ - begin);
    skip_space();
    return name;
  }

  // A name followed by "::=" begins the next rule.
  bool is_at_rule() {
    const size_t begin = position_;
    const bool has_name = !read_name().empty();
    const bool is_rule = has_name && rest().starts_with(kDefines);
    position_ = begin;
    return is_rule;
  }

  Entry& entry(std::string_view name) {
    const auto [place, is_new] = entries_.try_emplace(std::string(name));
    if (is_new) {
      place->second.rule = rules_.add_rule(std::string(name));
      place->second.mentioned_at = position_;
    }
    return place->second;
  }

  Result<void> read_rule() {
    if (!is_at_rule()) return fault("expected a rule: name ::= expression");
    const std::string_view name = read_name();
    position_ += kDefines.size();
    if (entry(name).is_defined) return fault(fmt::format("rule '{}' is defined twice", name));
    entry(name).is_defined = true;
    TRY_ASSIGN(const ExprId body, read_alternatives());
    rules_.define(entry(name).rule, body);
    return {};
  }

  Result<ExprId> read_alternatives() {
    std::vector<ExprId> options;
    do {
      skip_space();
      TRY_ASSIGN(const ExprId option, read_terms());
      options.push_back(option);
    } while (take('|'));
    return rules_.choice(options);
  }

  Result<ExprId> read_terms() {
    std::vector<ExprId> terms;
    while (!is_at_end() && peek() != '|' && peek() != ')' && !is_at_rule()) {
      TRY_ASSIGN(const ExprId atom, read_atom());
      TRY_ASSIGN(const ExprId term, read_quantifier(atom));
      terms.push_back(term);
      skip_space();
    }
    return rules_.sequence(terms);
  }

  Result<ExprId> read_atom() {
    const char c = peek();
    if (c == '"' || c == '\'') return read_literal();
    if (c == '[') return read_class();
    if (c == '.') {
      ++position_;
      return alphabet_.one_of(CodePointSet::all());
    }
    if (c == '(') return read_group();
    if (!is_name_character(c))
      return fault(fmt::format("unexpected '{}'", escape_for_display(rest().substr(0, 1))));
    return rules_.call(entry(read_name()).rule);
  }

  Result<ExprId> read_group() {
    if (++depth_ > kMaxGroupDepth) return fault("groups are nested too deeply");
    ++position_;
    TRY_ASSIGN(const ExprId body, read_alternatives());
    if (!take(')')) return fault("a group is not closed");
    --depth_;
    return body;
  }

  // Literals and classes have the escapes of regular expressions; what the quotes hold is one
  // pattern after the other.
  Result<ExprId> read_literal() {
    const char quote = text_[position_++];
    std::vector<ExprId> characters;
    while (!take(quote)) {
      if (is_at_end() || peek() == '\n') return fault("a literal is not closed");
      const size_t begin = position_;
      TRY(skip_character());
      const std::string_view spelled = text_.substr(begin, position_ - begin);
      if (spelled.size() == 2 && spelled[0] == '\\' && (spelled[1] == '"' || spelled[1] == '\'')) {
        characters.push_back(rules_.bytes(spelled.substr(1)));
      } else if (spelled[0] != '\\') {
        characters.push_back(rules_.bytes(spelled));
      } else {
        TRY_ASSIGN(const ExprId escaped, pattern(spelled));
        characters.push_back(escaped);
      }
    }
    return rules_.sequence(characters);
  }

  Result<ExprId> read_class() {
    const size_t begin = position_++;
    while (!take(']')) {
      if (is_at_end() || peek() == '\n') return fault("a class is not closed");
      TRY(skip_character());
    }
    return pattern(text_.substr(begin, position_ - begin));
  }

  Result<ExprId> pattern(std::string_view source) const {
    Result<ExprId> compiled = compile_regex(source, RegexUse::kWhole, alphabet_);
    if (!compiled.ok()) return fault(compiled.error().message);
    return compiled;
  }

  // One character, or one escape as a whole.
  Result<void> skip_character() {
    const bool is_escape = take('\\');
    if (is_at_end()) return fault("a backslash at the end");
    const Utf8Char character = decode_utf8(rest());
    if (!character.is_valid) return fault("it is not valid UTF-8");
    position_ += static_cast<size_t>(character.num_bytes);
    if (!is_escape) return {};
    const char letter = static_cast<char>(character.code_point);
    size_t num_digits = letter == 'x' ? 2 : 0;
    if (letter == 'u') num_digits = peek() == '{' ? rest().find('}') + 1 : 4;
    position_ = std::min(position_ + num_digits, text_.size());
    return {};
  }

  Result<ExprId> read_quantifier(ExprId atom) {
    if (take('*')) return rules_.repeat(atom, 0, std::nullopt);
    if (take('+')) return rules_.repeat(atom, 1, std::nullopt);
    if (take('?')) return rules_.repeat(atom, 0, 1);
    if (!take('{')) return atom;
    TRY_ASSIGN(const int32_t min, read_count());
    std::optional<int32_t> max = min;
    if (take(',')) {
      max.reset();
      skip_space();
      if (peek() != '}') {
        TRY_ASSIGN(max, read_count());
      }
    }
    if (!take('}')) return fault("a repetition count is not closed");
    if (max && *max < min) return fault("the second repetition count is below the first");
    return rules_.repeat(atom, min, max);
  }

  Result<int32_t> read_count() {
    skip_space();
    int32_t count = 0;
    const size_t begin = position_;
    for (; std::isdigit(static_cast<unsigned char>(peek())) != 0; ++position_) {
      count = count * 10 + (peek() - '0');
      if (count > kMaxCount) return fault(fmt::format("a count is above {}", kMaxCount));
    }
    if (begin == position_) return fault("expected a repetition count");
    skip_space();
    return count;
  }

  const std::string_view text_;
  Rules& rules_;
  const TextAlphabet alphabet_;
  std::unordered_map<std::string, Entry> entries_;
  size_t position_ = 0;
  int32_t depth_ = 0;
};

}  // namespace

Result<RuleId> compile_ebnf(std::string_view text, Rules& rules) {
  return EbnfReader(text, rules).read();
}

}  // namespace nibble::grammar
