// What a request says about the form of its answer, in the spellings of all protocols, and the
// grammar that it becomes. Pure functions; any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/json.h"
#include "base/result.h"
#include "grammar/grammar.h"
#include "grammar/grammar_cache.h"
#include "server/field_reader.h"

namespace nibble::server {

struct OutputConstraint {
  grammar::Content content;
  std::string param;  // the field that the content's form comes from; empty: none
  // A schema that cannot be enforced is an error. Without it, the answer is JSON of the schema's
  // `type`, and the schema stays what the prompt shows.
  bool is_strict = true;
  std::optional<grammar::ToolUse> tools;

  bool exists() const { return !param.empty() || tools.has_value(); }
};

// kInvalidArgument when another field has said so already.
Result<void> set_content(OutputConstraint& constraint, grammar::Content content, std::string param);

// structured_outputs {json, json_object, regex, choice, grammar}, the older guided_json,
// guided_regex, guided_choice and guided_grammar, and regex, ebnf and json_schema.
Result<void> read_constraint_fields(FieldReader& reader, OutputConstraint& constraint);

struct CompiledConstraint {
  std::shared_ptr<const grammar::Grammar> grammar;  // null without a constraint
  std::string note;  // what is not enforced and why, printable ASCII; empty: all is
};

// Errors name the field; kUnsupported: no cache, as where nothing is generated.
Result<CompiledConstraint> compile_constraint(const OutputConstraint& constraint,
                                              bool begins_in_reasoning,
                                              grammar::GrammarCache* grammars);

}  // namespace nibble::server
