#include "server/output_constraint.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "grammar/schema_source.h"

namespace nibble::server {
namespace {

// An object, a boolean, or the JSON text of one.
Result<void> read_schema(FieldReader& reader, std::string_view key, OutputConstraint& constraint) {
  const json::Value* value = reader.any(key);
  if (value == nullptr) return {};
  json::Value schema = *value;
  if (const std::string* text = value->as_string()) {
    Result<json::Value> parsed = json::parse(*text);
    if (!parsed.ok()) return wrong_value(reader.param(key), parsed.error().message);
    schema = *std::move(parsed);
  }
  if (!schema.is_object() && schema.as_bool() == nullptr) {
    return wrong_type(reader.param(key), "a JSON Schema", schema);
  }
  return set_content(constraint, grammar::JsonSchema{std::move(schema)}, reader.param(key));
}

template <class Form>
Result<void> read_text(FieldReader& reader, std::string_view key, OutputConstraint& constraint) {
  std::optional<std::string> text;
  TRY(reader.read(key, text));
  if (!text) return {};
  return set_content(constraint, Form{*std::move(text)}, reader.param(key));
}

Result<void> read_choice(FieldReader& reader, std::string_view key, OutputConstraint& constraint) {
  TRY_ASSIGN(const json::Array* items, reader.array(key));
  if (items == nullptr) return {};
  grammar::Choice choice;
  for (const json::Value& item : *items) {
    if (!item.is_string()) return wrong_type(reader.param(key), "an array of strings", item);
    choice.options.push_back(*item.as_string());
  }
  return set_content(constraint, std::move(choice), reader.param(key));
}

Result<void> read_structured_outputs(FieldReader& top, OutputConstraint& constraint) {
  TRY_ASSIGN(const json::Object* object, top.object("structured_outputs"));
  if (object == nullptr) return {};
  FieldReader reader(*object, "structured_outputs.");
  TRY(read_schema(reader, "json", constraint));
  TRY(read_text<grammar::Regex>(reader, "regex", constraint));
  TRY(read_choice(reader, "choice", constraint));
  TRY(read_text<grammar::Ebnf>(reader, "grammar", constraint));
  bool is_json_object = false;
  TRY(reader.read("json_object", is_json_object));
  if (is_json_object) {
    TRY(set_content(constraint, grammar::JsonObject{}, reader.param("json_object")));
  }
  TRY(reader.refuse("structural_tag", "is not supported; use json, regex, choice or grammar"));
  TRY(reader.refuse("whitespace_pattern", "white space is fixed; see docs/structured-output.md"));
  for (const char* key : {"disable_fallback", "disable_any_whitespace"}) reader.ignore(key);
  if (reader.num_unknown() == 0) return {};
  return wrong_value("structured_outputs",
                     "expected one of json, json_object, regex, choice and grammar");
}

Error with_param(Error error, const std::string& param) {
  error.message = fmt::format("{}: {}", param, error.message);
  error.param = param;
  if (error.reason.empty()) error.reason = "invalid_value";
  return error;
}

// The schema's `type`, if that alone can be enforced; else any value.
json::Value type_only(const json::Value& schema) {
  const json::Value* type = schema.find("type");
  if (type == nullptr) return json::Value(true);
  json::Object reduced = json::make_object({{"type", *type}});
  const auto types = grammar::declared_types(reduced, {});
  const bool is_known = types.ok() && types->value_or(0) != 0;
  return is_known ? json::Value(std::move(reduced)) : json::Value(true);
}

// For a header of the response.
std::string note_of(const Error& error) {
  constexpr size_t kMaxBytes = 400;
  std::string note = "not enforced, only shown to the model: " + error.message;
  std::replace_if(
      note.begin(), note.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return note.substr(0, kMaxBytes);
}

}  // namespace

Result<void> set_content(OutputConstraint& constraint,
                         grammar::Content content,
                         std::string param) {
  if (!constraint.param.empty()) {
    return wrong_value(std::move(param),
                       fmt::format("\"{}\" constrains the output already", constraint.param));
  }
  constraint.content = std::move(content);
  constraint.param = std::move(param);
  return {};
}

Result<void> read_constraint_fields(FieldReader& reader, OutputConstraint& constraint) {
  TRY(read_structured_outputs(reader, constraint));
  TRY(read_schema(reader, "guided_json", constraint));
  TRY(read_text<grammar::Regex>(reader, "guided_regex", constraint));
  TRY(read_choice(reader, "guided_choice", constraint));
  TRY(read_text<grammar::Ebnf>(reader, "guided_grammar", constraint));
  TRY(read_text<grammar::Regex>(reader, "regex", constraint));
  TRY(read_text<grammar::Ebnf>(reader, "ebnf", constraint));
  TRY(read_schema(reader, "json_schema", constraint));
  reader.ignore("guided_decoding_backend");
  TRY(reader.refuse("guided_whitespace_pattern",
                    "white space is fixed; see docs/structured-output.md"));
  return reader.refuse("structural_tag", "is not supported; use structured_outputs");
}

Result<CompiledConstraint> compile_constraint(const OutputConstraint& constraint,
                                              bool begins_in_reasoning,
                                              grammar::GrammarCache* grammars) {
  if (!constraint.exists()) return CompiledConstraint{};
  if (grammars == nullptr) return unsupported("constraints need a model that generates");
  grammar::Spec spec = {.content = constraint.content,
                        .tools = constraint.tools,
                        .begins_in_reasoning = begins_in_reasoning};
  auto grammar = grammars->get(spec);
  if (grammar.ok()) return CompiledConstraint{.grammar = *std::move(grammar), .note = {}};
  Error error = std::move(grammar).error();
  if (!error.param.empty()) return with_param(error, error.param);
  if (constraint.param.empty()) return with_param(std::move(error), "tools");
  const auto* schema = std::get_if<grammar::JsonSchema>(&constraint.content);
  if (constraint.is_strict || schema == nullptr) {
    return with_param(std::move(error), constraint.param);
  }
  OutputConstraint rest = constraint;
  rest.content = grammar::JsonSchema{type_only(schema->schema)};
  rest.is_strict = true;
  TRY_ASSIGN(CompiledConstraint compiled, compile_constraint(rest, begins_in_reasoning, grammars));
  compiled.note = note_of(with_param(std::move(error), constraint.param));
  return compiled;
}

}  // namespace nibble::server
