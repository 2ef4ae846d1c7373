// The chat format around constrained content: reasoning before it, tool calls instead of it or
// behind it. Source: the texts in text/chat_protocol.h, whose inverse is text/output_parser.h.
#pragma once

#include "base/result.h"
#include "grammar/expression.h"
#include "grammar/json_text.h"
#include "grammar/spec.h"
#include "grammar/vocabulary.h"

namespace nibble::grammar {

// Reasoning: anything up to the end-of-thinking token. kUnsupported: the tokenizer has none.
Result<ExprId> reasoning(Rules& rules, const Vocabulary& vocabulary);

// Content without a constraint beside tools: any text in which no tag of the tool markup begins.
ExprId text_without_markup(Rules& rules);

// A block of tool calls, with the empty lines before it. Parameters stand in the order of the
// schema, strings as they are, everything else as JSON. kInvalidArgument: a strict tool's schema,
// with the param of the tool; kUnsupported: the tokenizer lacks the markup.
Result<ExprId> tool_calls(JsonText& text, const ToolUse& use, const Vocabulary& vocabulary);

}  // namespace nibble::grammar
