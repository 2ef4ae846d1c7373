// JSON values as text, with the white space that generated JSON may have: finite everywhere, so
// that a model cannot write blanks without end.
#pragma once

#include <optional>

#include "base/json.h"
#include "grammar/expression.h"
#include "grammar/text_alphabet.h"

namespace nibble::grammar {

// Expressions are made once and shared. The rules must outlive it.
class JsonText final {
 public:
  explicit JsonText(Rules& rules) : rules_(rules), alphabet_(rules, Spelling::kJson) {}

  // Behind brackets, braces and commas: nothing, one blank, or a new line with up to
  // kMaxIndent blanks.
  ExprId space();
  // ":" and an optional blank.
  ExprId colon();
  ExprId comma();  // with space()

  ExprId any_value();
  ExprId any_object();
  ExprId any_array();
  ExprId any_string();
  ExprId any_number();
  ExprId any_integer();
  ExprId boolean();
  ExprId null();
  ExprId character();  // of a string

  ExprId quoted(ExprId text);
  // Exactly this value; objects in the order of their members.
  ExprId constant(const json::Value& value);

  // "[" elements "]" or "{" elements "}".
  ExprId bracketed(char open, ExprId elements, char close);

  Rules& rules() { return rules_; }
  const TextAlphabet& alphabet() const { return alphabet_; }

 private:
  template <class Make>
  ExprId once(RuleId& rule, const char* name, Make make);

  Rules& rules_;
  TextAlphabet alphabet_;
  RuleId space_;
  RuleId colon_;
  RuleId comma_;
  RuleId value_;
  RuleId object_;
  RuleId array_;
  RuleId string_;
  RuleId number_;
  RuleId integer_;
  RuleId character_;
};

inline constexpr int32_t kMaxIndent = 32;

}  // namespace nibble::grammar
