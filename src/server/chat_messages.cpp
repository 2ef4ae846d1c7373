#include "server/chat_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "server/field_reader.h"

namespace nibble::server {
namespace {

using text::Message;
using text::Role;

struct RoleName {
  std::string_view name;
  Role role;
};
constexpr RoleName kRoles[] = {{"system", Role::kSystem},
                               {"developer", Role::kSystem},
                               {"user", Role::kUser},
                               {"assistant", Role::kAssistant},
                               {"tool", Role::kTool},
                               {"function", Role::kTool},
                               {"latest_reminder", Role::kLatestReminder}};

Result<Role> read_role(FieldReader& reader) {
  std::string name;
  TRY(reader.read("role", name));
  for (const RoleName& known : kRoles) {
    if (known.name == name) return known.role;
  }
  constexpr size_t kMaxShown = 40;
  return wrong_value(reader.param("role"),
                     fmt::format("expected system, developer, user, assistant, tool, function or "
                                 "latest_reminder, found '{}'",
                                 name.substr(0, kMaxShown)));
}

// A tool's parts stay apart, because the encoder joins them its own way; those of other roles are
// concatenated.
Result<void> read_content(FieldReader& reader, Message& message) {
  const json::Value* content = reader.any("content");
  const std::string path = reader.param("content");
  if (content == nullptr) {
    const bool may_be_absent = message.role == Role::kAssistant || message.role == Role::kTool;
    if (may_be_absent) return {};
    return wrong_value(path, "expected a string or an array of text parts, found nothing");
  }
  TRY_ASSIGN(std::vector<std::string> texts, read_texts(*content, path, {{"text"}}));
  const bool keeps_parts = message.role == Role::kTool && content->is_array();
  for (std::string& text : texts) {
    if (keeps_parts) {
      message.parts.push_back({.type = "text", .text = std::move(text)});
    } else {
      message.content += text;
    }
  }
  return {};
}

// Arguments are JSON text; clients that send the object itself are understood too.
Result<void> read_arguments(FieldReader& reader, std::string& target) {
  const json::Value* arguments = reader.any("arguments");
  if (arguments == nullptr) {
    target = "{}";
    return {};
  }
  if (arguments->is_object()) {
    target = json::dump(*arguments, json::Style::kPython);
    return {};
  }
  if (!arguments->is_string()) {
    return wrong_type(reader.param("arguments"), "a string of JSON text", *arguments);
  }
  target = *arguments->as_string();
  return {};
}

Result<text::ToolCall> read_function_call(const json::Object& function, const std::string& path) {
  FieldReader reader(function, path + ".");
  text::ToolCall call;
  TRY(reader.read("name", call.name));
  TRY(check_function_name(call.name, reader.param("name")));
  TRY(read_arguments(reader, call.arguments));
  return call;
}

Result<text::ToolCall> read_tool_call(const json::Value& value, const std::string& path) {
  const json::Object* object = value.as_object();
  if (object == nullptr) return wrong_type(path, "an object", value);
  FieldReader reader(*object, path + ".");
  std::string id;
  TRY(reader.read("id", id));
  TRY_ASSIGN(const json::Object* function, reader.object("function"));
  if (function == nullptr)
    return wrong_value(reader.param("function"), "a tool call needs its function");
  TRY_ASSIGN(text::ToolCall call, read_function_call(*function, reader.param("function")));
  call.id = std::move(id);
  return call;
}

Result<void> read_assistant(FieldReader& reader, Message& message) {
  TRY(reader.read("reasoning", message.reasoning_content));
  TRY(reader.read("reasoning_content", message.reasoning_content));
  TRY_ASSIGN(const json::Array* calls, reader.array("tool_calls"));
  for (size_t i = 0; calls != nullptr && i < calls->size(); ++i) {
    TRY_ASSIGN(text::ToolCall call,
               read_tool_call((*calls)[i], fmt::format("{}[{}]", reader.param("tool_calls"), i)));
    message.tool_calls.push_back(std::move(call));
  }
  TRY_ASSIGN(const json::Object* legacy, reader.object("function_call"));
  if (legacy != nullptr) {
    TRY_ASSIGN(text::ToolCall call, read_function_call(*legacy, reader.param("function_call")));
    message.tool_calls.push_back(std::move(call));
  }
  return reader.read("prefix", message.without_eos);
}

Result<Message> read_message(const json::Value& value, const std::string& path) {
  const json::Object* object = value.as_object();
  if (object == nullptr) return wrong_type(path, "an object", value);
  FieldReader reader(*object, path + ".");
  Message message;
  TRY_ASSIGN(message.role, read_role(reader));
  TRY(read_content(reader, message));
  if (message.role == Role::kAssistant) TRY(read_assistant(reader, message));
  if (message.role == Role::kTool) TRY(reader.read("tool_call_id", message.tool_call_id));
  return message;
}

// Only the last message may be left open, and only if it is the assistant's.
Result<void> check_ending(const std::vector<Message>& messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    const bool is_last = i + 1 == messages.size();
    if (messages[i].without_eos && !is_last) {
      return wrong_value(fmt::format("messages[{}].prefix", i),
                         "only the last message can be continued");
    }
  }
  if (messages.back().role == Role::kAssistant && !messages.back().without_eos) {
    return wrong_value(
        fmt::format("messages[{}].role", messages.size() - 1),
        "the last message is the assistant's; set \"prefix\": true to have it continued");
  }
  return {};
}

}  // namespace

Result<std::vector<Message>> read_messages(const json::Array& messages, bool continue_last) {
  if (messages.empty()) return wrong_value("messages", "expected at least one message");
  std::vector<Message> result;
  result.reserve(messages.size());
  for (size_t i = 0; i < messages.size(); ++i) {
    TRY_ASSIGN(Message message, read_message(messages[i], fmt::format("messages[{}]", i)));
    result.push_back(std::move(message));
  }
  if (continue_last) {
    if (result.back().role != Role::kAssistant) {
      return wrong_value("continue_final_message", "the last message is not the assistant's");
    }
    result.back().without_eos = true;
  }
  TRY(check_ending(result));
  return result;
}

Result<std::vector<std::string>> read_texts(const json::Value& content,
                                            const std::string& path,
                                            std::initializer_list<TextPart> kinds) {
  if (const std::string* text = content.as_string()) return std::vector<std::string>{*text};
  const json::Array* parts = content.as_array();
  if (parts == nullptr) return wrong_type(path, "a string or an array of text parts", content);
  std::vector<std::string> texts;
  for (size_t i = 0; i < parts->size(); ++i) {
    const std::string part_path = fmt::format("{}[{}]", path, i);
    const json::Object* part = (*parts)[i].as_object();
    if (part == nullptr) return wrong_type(part_path, "an object", (*parts)[i]);
    FieldReader reader(*part, part_path + ".");
    TRY_ASSIGN(const std::string type, reader.required_string("type"));
    const auto kind = std::find_if(
        kinds.begin(), kinds.end(), [&](const TextPart& known) { return known.type == type; });
    if (kind == kinds.end()) {
      return unsupported_field(
          reader.param("type"),
          fmt::format("this model reads text only; expected \"{}\"", kinds.begin()->type));
    }
    TRY_ASSIGN(std::string text, reader.required_string(kind->key));
    texts.push_back(std::move(text));
  }
  return texts;
}

Result<json::Object> read_flat_tool(FieldReader& reader, std::string_view schema_key) {
  TRY_ASSIGN(std::string name, reader.required_string("name"));
  TRY(check_function_name(name, reader.param("name")));
  json::Object function = json::make_object({{"name", std::move(name)}});
  std::optional<std::string> description;
  TRY(reader.read("description", description));
  if (description) function.set("description", *std::move(description));
  TRY_ASSIGN(const json::Object* schema, reader.object(schema_key));
  if (schema != nullptr) function.set("parameters", *schema);
  bool strict = false;
  TRY(reader.read("strict", strict));
  if (strict) function.set("strict", true);
  return function;
}

Message& open_turn_of_assistant(std::vector<Message>& messages) {
  const bool is_open = !messages.empty() && messages.back().role == Role::kAssistant;
  if (!is_open) messages.push_back({.role = Role::kAssistant});
  return messages.back();
}

Result<void> check_function_name(const std::string& name, std::string param) {
  constexpr size_t kMaxNameBytes = 256;
  const bool is_plain = std::none_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) < ' ' || c == '"' || c == '<' || c == '>' || c == '\x7f';
  });
  if (is_plain && !name.empty() && name.size() <= kMaxNameBytes) return {};
  return wrong_value(
      std::move(param),
      fmt::format("expected a name of 1 to {} bytes without quotes and angle brackets",
                  kMaxNameBytes));
}

Result<json::Array> read_tools(const json::Array& tools) {
  json::Array functions;
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string path = fmt::format("tools[{}]", i);
    const json::Object* tool = tools[i].as_object();
    if (tool == nullptr) return wrong_type(path, "an object", tools[i]);
    FieldReader reader(*tool, path + ".");
    std::string type = "function";
    TRY(reader.read("type", type));
    if (type != "function") return unsupported_field(reader.param("type"), "expected \"function\"");
    TRY_ASSIGN(const json::Object* function, reader.object("function"));
    if (function == nullptr)
      return wrong_value(reader.param("function"), "a tool needs its function");
    FieldReader function_reader(*function, path + ".function.");
    std::string name;
    std::string description;
    TRY(function_reader.read("name", name));
    TRY(check_function_name(name, function_reader.param("name")));
    TRY(function_reader.read("description", description));
    TRY(function_reader.object("parameters"));
    functions.emplace_back(*function);
  }
  return functions;
}

void attach_tools(std::vector<Message>& messages, json::Array tools) {
  if (tools.empty()) return;
  auto system = std::find_if(messages.begin(), messages.end(), [](const Message& message) {
    return message.role == Role::kSystem;
  });
  if (system == messages.end())
    system = messages.insert(messages.begin(), Message{.role = Role::kSystem});
  system->tools = std::move(tools);
}

}  // namespace nibble::server
