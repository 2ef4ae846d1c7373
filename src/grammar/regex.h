// Regular expressions, the part that is regular: literals, classes, groups, alternation, counted
// repetition, anchors at the ends. Syntax of ECMA-262 with the u flag. Everything else
// (backreferences, look-around, word boundaries, \p) is refused. Matching never backtracks.
#pragma once

#include <string_view>

#include "base/result.h"
#include "grammar/expression.h"
#include "grammar/text_alphabet.h"

namespace nibble::grammar {

enum class RegexUse {
  kWhole,   // the whole text matches; anchors change nothing
  kSearch,  // some part of the text matches, as JSON Schema's `pattern` has it
};

// \d, \w and \s stand for their ASCII members, their complements exclude all of ECMA-262's. `.` is
// any character but a line terminator. kInvalidArgument names the fault and its character.
Result<ExprId> compile_regex(std::string_view pattern, RegexUse use, const TextAlphabet& alphabet);

}  // namespace nibble::grammar
