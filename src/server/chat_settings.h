// What the chat protocols say in different words and mean alike: thinking, tools, output format.
// Each protocol reads its own fields into these values; how they act on a request is decided here.
#pragma once

#include <optional>
#include <string>

#include "base/json.h"
#include "base/result.h"
#include "server/field_reader.h"
#include "server/generation_fields.h"
#include "text/chat.h"

namespace nibble::server {

struct ChatRequest;

// Whether and how hard to think. `is_on` outranks `effort`, which by itself turns thinking on or,
// with "none", off.
struct ThinkingWish {
  std::optional<std::string> effort;
  std::string effort_param = "reasoning_effort";
  std::optional<bool> is_on;
};
// kInvalidArgument for an effort that no protocol knows.
Result<void> apply_thinking(const ThinkingWish& wish,
                            const ServedModel& model,
                            text::RenderOptions& render);

enum class ToolChoice { kAuto, kNone, kRequired, kNamed };
// "auto", "none" or "required".
Result<ToolChoice> parse_tool_choice(const std::string& name);

struct ToolWish {
  json::Array functions;  // bare `function` objects: name, description, parameters, strict
  ToolChoice choice = ToolChoice::kAuto;
  std::string name;      // of the function that must be called
  bool parallel = true;  // false: at most one call
};
// Offers the tools to the model. kInvalidArgument with the param "tool_choice" when a call is
// demanded that no tool can answer. Demanded calls, strict functions and "at most one call" become
// part of the request's constraint.
Result<void> apply_tools(ToolWish wish, ChatRequest& request);

struct FormatWish {
  enum class Kind { kText, kJsonObject, kJsonSchema };
  Kind kind = Kind::kText;
  const json::Object* schema = nullptr;  // of kJsonSchema
  // The schema is shown to the model and holds for the answer. Strict: a schema that cannot be
  // enforced is an error instead of only shown.
  bool strict = false;
  std::string param;  // the field, e.g. "response_format"
};
// "text", "json_object" or "json_schema".
Result<FormatWish::Kind> parse_format_kind(const std::string& type, const std::string& param);
// Reads {strict, schema} of a format of kind kJsonSchema.
Result<void> read_schema(FieldReader& reader, FormatWish& wish);
// kInvalidArgument when another field constrains the output already.
Result<void> apply_format(const FormatWish& wish, ChatRequest& request);

}  // namespace nibble::server
