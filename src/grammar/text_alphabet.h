// How characters of a value are spelled in the generated text.
#pragma once

#include <string>
#include <string_view>

#include "grammar/code_points.h"
#include "grammar/expression.h"

namespace nibble::grammar {

enum class Spelling {
  kPlain,      // UTF-8 as it is
  kJson,       // inside the quotes of a JSON string
  kParameter,  // a string parameter of a tool call: as it is, less what could be its end
};

class TextAlphabet final {
 public:
  TextAlphabet(Rules& rules, Spelling spelling) : rules_(rules), spelling_(spelling) {}

  // One character of the set, in one canonical spelling each.
  ExprId one_of(const CodePointSet& set) const;
  // Any text, in every permitted spelling.
  ExprId any_text() const;
  // Any character in every permitted spelling; of texts whose lengths count.
  ExprId any_character() const;
  // `text`, well-formed UTF-8; never() when it cannot be spelled.
  ExprId text(std::string_view text) const;
  std::string spell(std::string_view text) const;
  bool can_spell(std::string_view text) const;

  Rules& rules() const { return rules_; }
  Spelling spelling() const { return spelling_; }

 private:
  ExprId json_character() const;

  Rules& rules_;
  Spelling spelling_;
};

// Any UTF-8 text that does not contain `forbidden`, with `neutral` anywhere between its characters.
ExprId text_without(Rules& rules, std::u32string_view forbidden, ExprId neutral);

}  // namespace nibble::grammar
