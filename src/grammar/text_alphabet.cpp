#include "grammar/text_alphabet.h"

#include <vector>

#include "base/json.h"
#include "base/utf8.h"

namespace nibble::grammar {
namespace {

// Every tag of the tool-call markup has this bar behind its "<" or "</".
constexpr char32_t kMarkupBar = 0xFF5C;
constexpr char32_t kLastControl = 0x1F;

const CodePointSet& escaped_in_json() {
  static const CodePointSet set = {{0, kLastControl}, {'"', '"'}, {'\\', '\\'}};
  return set;
}

CodePointSet markup_bar() { return {{kMarkupBar, kMarkupBar}}; }

std::string utf8(char32_t code_point) {
  std::string text;
  append_utf8(text, code_point);
  return text;
}

}  // namespace

ExprId TextAlphabet::one_of(const CodePointSet& set) const {
  if (spelling_ == Spelling::kPlain) return rules_.code_point(set);
  if (spelling_ == Spelling::kParameter) return rules_.code_point(set.without(markup_bar()));
  std::vector<ExprId> options = {rules_.code_point(set.without(escaped_in_json()))};
  const CodePointSet escaped = set.intersection(escaped_in_json());
  for (const CodePointRange& range : escaped.ranges()) {
    for (char32_t c = range.first; c <= range.last; ++c) options.push_back(text(utf8(c)));
  }
  return rules_.choice(options);
}

// \uXXXX stands for any character: surrogates only as pairs.
ExprId TextAlphabet::json_character() const {
  const auto hex_digit = [&](std::string_view digits) {
    std::u32string both;
    for (const char digit : digits) {
      both += static_cast<char32_t>(digit);
      if (digit >= 'A') both += static_cast<char32_t>(digit - 'A' + 'a');
    }
    return rules_.code_point(CodePointSet::of(both));
  };
  const ExprId any = hex_digit("0123456789ABCDEF");
  const ExprId two = rules_.sequence({any, any});
  const ExprId u = rules_.bytes("u");
  const ExprId d = hex_digit("D");
  const ExprId basic = rules_.choice({rules_.sequence({hex_digit("0123456789ABCEF"), any, two}),
                                      rules_.sequence({d, hex_digit("01234567"), two})});
  const ExprId pair =
      rules_.sequence({d, hex_digit("89AB"), two, rules_.bytes("\\u"), d, hex_digit("CDEF"), two});
  const ExprId escape = rules_.choice({rules_.code_point(CodePointSet::of(U"\"\\/bfnrt")),
                                       rules_.sequence({u, rules_.choice({basic, pair})})});
  return rules_.choice({rules_.code_point(escaped_in_json().complement()),
                        rules_.sequence({rules_.bytes("\\"), escape})});
}

ExprId TextAlphabet::any_character() const {
  if (spelling_ == Spelling::kJson) return json_character();
  return one_of(CodePointSet::all());
}

ExprId TextAlphabet::any_text() const {
  if (spelling_ == Spelling::kParameter) return text_without(rules_, U"</\uff5c", rules_.never());
  return rules_.repeat(any_character(), 0, std::nullopt);
}

std::string TextAlphabet::spell(std::string_view text) const {
  if (spelling_ != Spelling::kJson) return std::string(text);
  std::string escaped;
  json::append_escaped(escaped, text);
  return escaped;
}

bool TextAlphabet::can_spell(std::string_view text) const {
  return spelling_ != Spelling::kParameter || text.find(utf8(kMarkupBar)) == std::string_view::npos;
}

ExprId TextAlphabet::text(std::string_view text) const {
  return can_spell(text) ? rules_.bytes(spell(text)) : rules_.never();
}

// One rule for each number of characters of `forbidden` that the text so far ends with.
ExprId text_without(Rules& rules, std::u32string_view forbidden, ExprId neutral) {
  std::vector<RuleId> matched;
  for (size_t i = 0; i < forbidden.size(); ++i) matched.push_back(rules.add_rule("text"));
  const CodePointSet special = CodePointSet::of(forbidden);
  for (size_t i = 0; i < forbidden.size(); ++i) {
    std::vector<ExprId> options = {rules.empty()};
    const auto go_on = [&](ExprId character, size_t next) {
      options.push_back(rules.sequence({character, rules.call(matched[next])}));
    };
    go_on(rules.code_point(special.complement()), 0);
    go_on(neutral, i);
    for (const CodePointRange& range : special.ranges()) {
      for (char32_t c = range.first; c <= range.last; ++c) {
        std::u32string end(forbidden.substr(0, i));
        end += c;
        while (!forbidden.starts_with(end)) end.erase(0, 1);
        if (end.size() < forbidden.size()) go_on(rules.code_point({{c, c}}), end.size());
      }
    }
    rules.define(matched[i], rules.choice(options));
  }
  return rules.call(matched.front());
}

}  // namespace nibble::grammar
