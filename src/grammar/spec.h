// What generated text must look like, as a request says it. Values without behaviour.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/json.h"

namespace nibble::grammar {

struct FreeText {};
// The declared subset is in docs/structured-output.md.
struct JsonSchema {
  json::Value schema;
};
struct JsonObject {};  // any JSON object
struct Regex {
  std::string pattern;  // of the whole text
};
struct Choice {
  std::vector<std::string> options;
};
struct Ebnf {
  std::string text;  // the rule "root" is the whole text
};
using Content = std::variant<FreeText, JsonSchema, JsonObject, Regex, Choice, Ebnf>;

struct ToolDefinition {
  std::string name;
  std::string param;                      // the request field, for errors
  std::optional<json::Value> parameters;  // a JSON Schema of an object
  // A schema outside the declared subset is an error; without it, such a tool's parameters may
  // have any values.
  bool is_strict = false;
};

struct ToolUse {
  std::vector<ToolDefinition> tools;
  bool is_required = false;     // otherwise the content may stand alone
  bool allows_parallel = true;  // more than one call
};

struct Spec {
  Content content;
  std::optional<ToolUse> tools;
  // The text starts inside the reasoning; everything else holds behind its end.
  bool begins_in_reasoning = false;
};

// Equal exactly for specs that mean the same.
std::string cache_key(const Spec& spec);

}  // namespace nibble::grammar
