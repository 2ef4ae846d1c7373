#include "server/chat_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "server/chat_messages.h"
#include "server/chat_request.h"
#include "server/field_reader.h"

namespace nibble::server {
namespace {

using text::Effort;
using text::ThinkingMode;

struct EffortName {
  std::string_view name;
  std::optional<Effort> effort;  // none: chat mode
};
constexpr EffortName kEfforts[] = {{"none", std::nullopt},
                                   {"minimal", Effort::kLow},
                                   {"low", Effort::kLow},
                                   {"medium", Effort::kHigh},
                                   {"high", Effort::kHigh},
                                   {"xhigh", Effort::kMax},
                                   {"max", Effort::kMax}};

bool has_function(const json::Array& functions, const std::string& name) {
  return std::any_of(functions.begin(), functions.end(), [&](const json::Value& function) {
    const json::Value* found = function.find("name");
    return found != nullptr && found->is_string() && *found->as_string() == name;
  });
}

Result<void> check_choice(const ToolWish& wish) {
  const bool is_forced = wish.choice == ToolChoice::kRequired || wish.choice == ToolChoice::kNamed;
  if (!is_forced) return {};
  if (wish.functions.empty()) {
    return wrong_value("tool_choice", "a call can only be demanded together with tools");
  }
  if (wish.choice == ToolChoice::kNamed && !has_function(wish.functions, wish.name)) {
    constexpr size_t kMaxShown = 100;
    return wrong_value("tool_choice",
                       fmt::format("tools holds no function '{}'", wish.name.substr(0, kMaxShown)));
  }
  return {};
}

// The functions that may be called, as the grammar of calls wants them.
grammar::ToolUse tool_use(const ToolWish& wish) {
  grammar::ToolUse use;
  use.is_required = wish.choice == ToolChoice::kRequired || wish.choice == ToolChoice::kNamed;
  use.allows_parallel = wish.parallel;
  for (size_t i = 0; i < wish.functions.size(); ++i) {
    const json::Value& function = wish.functions[i];
    const std::string* name = function.find("name")->as_string();
    if (wish.choice == ToolChoice::kNamed && *name != wish.name) continue;
    grammar::ToolDefinition tool;
    tool.name = *name;
    tool.param = fmt::format("tools[{}]", i);
    const json::Value* parameters = function.find("parameters");
    if (parameters != nullptr && parameters->is_object()) tool.parameters = *parameters;
    const json::Value* strict = function.find("strict");
    tool.is_strict = strict != nullptr && strict->as_bool() != nullptr && *strict->as_bool();
    use.tools.push_back(std::move(tool));
  }
  return use;
}

// Calls are left to the model unless something must hold for them.
bool needs_grammar(const grammar::ToolUse& use) {
  return use.is_required || !use.allows_parallel ||
         std::any_of(use.tools.begin(), use.tools.end(), [](const grammar::ToolDefinition& tool) {
           return tool.is_strict;
         });
}

// Where the encoder renders the schema: the first system message, made when there is none.
void show_schema(const json::Object& schema, std::vector<text::Message>& messages) {
  const bool has_system = messages.front().role == text::Role::kSystem;
  if (!has_system) messages.insert(messages.begin(), text::Message{.role = text::Role::kSystem});
  messages.front().response_format = json::Value(schema);
}

}  // namespace

Result<void> apply_thinking(const ThinkingWish& wish,
                            const ServedModel& model,
                            text::RenderOptions& render) {
  render.generation = model.generation;
  render.effort = text::plain_effort(model.generation);
  render.thinking = model.default_thinking;
  if (wish.effort) {
    const auto* known =
        std::find_if(std::begin(kEfforts), std::end(kEfforts), [&](const EffortName& entry) {
          return entry.name == *wish.effort;
        });
    if (known == std::end(kEfforts)) {
      return wrong_value(wish.effort_param,
                         "expected none, minimal, low, medium, high, xhigh or max");
    }
    render.thinking = known->effort ? ThinkingMode::kThinking : ThinkingMode::kChat;
    render.effort = known->effort.value_or(render.effort);
  }
  if (wish.is_on) render.thinking = *wish.is_on ? ThinkingMode::kThinking : ThinkingMode::kChat;
  return {};
}

Result<ToolChoice> parse_tool_choice(const std::string& name) {
  if (name == "auto") return ToolChoice::kAuto;
  if (name == "none") return ToolChoice::kNone;
  if (name == "required") return ToolChoice::kRequired;
  return wrong_value("tool_choice",
                     "expected \"none\", \"auto\", \"required\" or a named function");
}

Result<void> apply_tools(ToolWish wish, ChatRequest& request) {
  TRY(check_choice(wish));
  if (wish.choice == ToolChoice::kNone || wish.functions.empty()) return {};
  grammar::ToolUse use = tool_use(wish);
  if (needs_grammar(use)) request.constraint.tools = std::move(use);
  attach_tools(request.messages, std::move(wish.functions));
  request.parse_tool_calls = true;
  return {};
}

Result<FormatWish::Kind> parse_format_kind(const std::string& type, const std::string& param) {
  if (type == "text") return FormatWish::Kind::kText;
  if (type == "json_object") return FormatWish::Kind::kJsonObject;
  if (type == "json_schema") return FormatWish::Kind::kJsonSchema;
  return wrong_value(param, "expected text, json_object or json_schema");
}

Result<void> read_schema(FieldReader& reader, FormatWish& wish) {
  TRY(reader.read("strict", wish.strict));
  TRY_ASSIGN(wish.schema, reader.object("schema"));
  if (wish.schema == nullptr) return wrong_value(reader.param("schema"), "is missing");
  return {};
}

Result<void> apply_format(const FormatWish& wish, ChatRequest& request) {
  if (wish.kind == FormatWish::Kind::kText) return {};
  if (wish.kind == FormatWish::Kind::kJsonObject) {
    return set_content(request.constraint, grammar::JsonObject{}, wish.param);
  }
  request.constraint.is_strict = wish.strict;
  TRY(set_content(
      request.constraint, grammar::JsonSchema{json::Value(*wish.schema)}, wish.param + ".schema"));
  show_schema(*wish.schema, request.messages);
  return {};
}

}  // namespace nibble::server
