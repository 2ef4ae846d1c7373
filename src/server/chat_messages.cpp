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

Result<text::ContentPart> read_part(const json::Value& value, const std::string& path) {
  const json::Object* object = value.as_object();
  if (object == nullptr) return wrong_type(path, "an object", value);
  FieldReader reader(*object, path + ".");
  text::ContentPart part;
  TRY(reader.read("type", part.type));
  if (part.type != "text") {
    return unsupported_field(reader.param("type"), "this model reads text only; expected \"text\"");
  }
  std::optional<std::string> text;
  TRY(reader.read("text", text));
  if (!text) return wrong_value(reader.param("text"), "a text part needs its text");
  part.text = *std::move(text);
  return part;
}

// A tool's parts stay apart, because the encoder joins them its own way; those of other roles are
// concatenated.
Result<void> read_parts(const json::Array& parts, const std::string& path, Message& message) {
  for (size_t i = 0; i < parts.size(); ++i) {
    TRY_ASSIGN(text::ContentPart part, read_part(parts[i], fmt::format("{}[{}]", path, i)));
    if (message.role == Role::kTool) {
      message.parts.push_back(std::move(part));
    } else {
      message.content += part.text;
    }
  }
  return {};
}

Result<void> read_content(FieldReader& reader, Message& message) {
  const json::Value* content = reader.any("content");
  const std::string path = reader.param("content");
  if (content == nullptr) {
    const bool may_be_absent = message.role == Role::kAssistant || message.role == Role::kTool;
    if (may_be_absent) return {};
    return wrong_value(path, "expected a string or an array of text parts, found nothing");
  }
  if (const std::string* text = content->as_string()) {
    message.content = *text;
    return {};
  }
  if (!content->is_array()) return wrong_type(path, "a string or an array of text parts", *content);
  return read_parts(*content->as_array(), path, message);
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
