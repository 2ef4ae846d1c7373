// A small EBNF: rules `name ::= expression`, literals "..." and '...', classes [a-z], groups,
// `|`, `* + ? {m} {m,} {m,n}`, comments from # to the end of the line. The rule "root" is the whole
// text. The dialect of GBNF.
#pragma once

#include <string_view>

#include "base/result.h"
#include "grammar/expression.h"

namespace nibble::grammar {

// kInvalidArgument names the fault and its line.
Result<RuleId> compile_ebnf(std::string_view text, Rules& rules);

}  // namespace nibble::grammar
