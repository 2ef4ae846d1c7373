#include "server/response_items.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "server/chat_messages.h"
#include "server/http_message.h"

namespace nibble::server {
namespace {

using text::Message;
using text::Role;

constexpr std::string_view kOpaquePrefix = "nibble:";
constexpr const char* kInput = "input";  // the one argument of a custom tool

std::string string_or_empty(const json::Value& value, std::string_view key) {
  const json::Value* member = value.find(key);
  return member != nullptr && member->is_string() ? *member->as_string() : std::string();
}

// A string or parts, which are joined.
Result<std::string> read_text(FieldReader& reader, std::string_view key) {
  const json::Value* value = reader.any(key);
  if (value == nullptr) return wrong_value(reader.param(key), "is missing");
  TRY_ASSIGN(
      const std::vector<std::string> texts,
      read_texts(
          *value,
          reader.param(key),
          {{"input_text"}, {"output_text"}, {"text"}, {"reasoning_text"}, {"refusal", "refusal"}}));
  std::string text;
  for (const std::string& piece : texts) text += piece;
  return text;
}

std::string_view id_prefix(std::string_view type) {
  if (type == "function_call") return "fc_";
  if (type == "function_call_output") return "fco_";
  if (type == "custom_tool_call") return "ctc_";
  if (type == "custom_tool_call_output") return "ctco_";
  return type == "reasoning" ? "rs_" : "msg_";
}

std::string type_of(const json::Value& item) {
  std::string type = string_or_empty(item, "type");
  return type.empty() ? "message" : type;
}

// A message's text as the one part that it stands for.
json::Array text_parts(const json::Value& message, const std::string& text) {
  const bool is_answer = string_or_empty(message, "role") == "assistant";
  json::Object part =
      json::make_object({{"type", is_answer ? "output_text" : "input_text"}, {"text", text}});
  if (is_answer) part.set("annotations", json::Array());
  return {std::move(part)};
}

json::Object shown_item(const json::Value& item) {
  json::Object shown = *item.as_object();
  shown.set("type", type_of(item));
  if (shown.find("status") == nullptr) shown.set("status", "completed");
  const json::Value* content = item.find("content");
  if (content != nullptr && content->is_string()) {
    shown.set("content", text_parts(item, *content->as_string()));
  }
  return shown;
}

// The index of the first item of the page.
Result<size_t> page_begin(const json::Array& items, const std::string& after) {
  if (after.empty()) return size_t{0};
  for (size_t i = 0; i < items.size(); ++i) {
    if (string_or_empty(items[i], "id") == after) return i + 1;
  }
  return wrong_value("after", "no item has this id");
}

}  // namespace

// --- to messages

Result<void> ItemReader::read(const json::Value& item, const std::string& path) {
  const json::Object* object = item.as_object();
  if (object == nullptr) return wrong_type(path, "an object", item);
  FieldReader reader(*object, path + ".");
  std::string type = "message";
  TRY(reader.read("type", type));
  if (type == "message") return read_message(reader);
  if (type == "reasoning") return read_reasoning(reader);
  if (type == "function_call") return read_call(reader);
  if (type == "custom_tool_call") return read_custom_call(reader);
  if (type == "function_call_output" || type == "custom_tool_call_output") {
    return read_output(reader);
  }
  constexpr size_t kMaxShown = 40;
  return unsupported_field(reader.param("type"),
                           fmt::format("expected message, reasoning, function_call, "
                                       "custom_tool_call or the output of one, found '{}'",
                                       type.substr(0, kMaxShown)));
}

void ItemReader::add_system(const std::string& text) {
  const bool continues = !messages_.empty() && messages_.back().role == Role::kSystem;
  if (continues) {
    messages_.back().content += "\n\n" + text;
  } else {
    messages_.push_back({.role = Role::kSystem, .content = text});
  }
}

Result<void> ItemReader::read_message(FieldReader& reader) {
  TRY_ASSIGN(const std::string role, reader.required_string("role"));
  TRY_ASSIGN(std::string text, read_text(reader, "content"));
  if (role == "user") {
    messages_.push_back({.role = Role::kUser, .content = std::move(text)});
  } else if (role == "system" || role == "developer") {
    add_system(text);
  } else if (role == "assistant") {
    const bool has_spoken = is_assistants_turn() && !messages_.back().content.empty();
    assistant(has_spoken).content += text;
  } else {
    return wrong_value(reader.param("role"), "expected user, assistant, system or developer");
  }
  return {};
}

Result<void> ItemReader::read_reasoning(FieldReader& reader) {
  TRY_ASSIGN(const json::Array* parts, reader.array("content"));
  std::optional<std::string> opaque;
  TRY(reader.read("encrypted_content", opaque));
  std::string text;
  if (parts != nullptr && !parts->empty()) {
    TRY_ASSIGN(const std::vector<std::string> texts,
               read_texts(*parts, reader.param("content"), {{"reasoning_text"}, {"text"}}));
    for (const std::string& piece : texts) text += piece;
  } else if (opaque) {
    if (!opaque->starts_with(kOpaquePrefix)) {
      return wrong_value(reader.param("encrypted_content"), "was not made by this server");
    }
    text = opaque->substr(kOpaquePrefix.size());
  }
  assistant(is_assistants_turn()).reasoning_content = std::move(text);
  return {};
}

Result<void> ItemReader::read_call(FieldReader& reader) {
  text::ToolCall call;
  TRY_ASSIGN(call.id, reader.required_string("call_id"));
  TRY_ASSIGN(call.name, reader.required_string("name"));
  TRY(check_function_name(call.name, reader.param("name")));
  TRY_ASSIGN(call.arguments, reader.required_string("arguments"));
  assistant(false).tool_calls.push_back(std::move(call));
  return {};
}

Result<void> ItemReader::read_custom_call(FieldReader& reader) {
  text::ToolCall call;
  TRY_ASSIGN(call.id, reader.required_string("call_id"));
  TRY_ASSIGN(call.name, reader.required_string("name"));
  TRY(check_function_name(call.name, reader.param("name")));
  TRY_ASSIGN(const std::string input, reader.required_string("input"));
  call.arguments = custom_tool_arguments(input);
  assistant(false).tool_calls.push_back(std::move(call));
  return {};
}

Result<void> ItemReader::read_output(FieldReader& reader) {
  Message result = {.role = Role::kTool};
  TRY_ASSIGN(result.tool_call_id, reader.required_string("call_id"));
  TRY_ASSIGN(result.content, read_text(reader, "output"));
  messages_.push_back(std::move(result));
  return {};
}

bool ItemReader::is_assistants_turn() const {
  return !messages_.empty() && messages_.back().role == Role::kAssistant;
}

Message& ItemReader::assistant(bool begins_anew) {
  if (begins_anew) messages_.push_back({.role = Role::kAssistant});
  return open_turn_of_assistant(messages_);
}

std::string opaque_reasoning(const std::string& reasoning) {
  return std::string(kOpaquePrefix) + reasoning;
}

// --- custom tools

json::Object custom_tool_schema(json::Object input) {
  json::Object properties;
  properties.set(kInput, std::move(input));
  return json::make_object({{"type", "object"},
                            {"properties", std::move(properties)},
                            {"required", json::Array{json::Value(kInput)}},
                            {"additionalProperties", false}});
}

std::string custom_tool_arguments(const std::string& input) {
  return json::dump(json::make_object({{kInput, input}}), json::Style::kPython);
}

std::string custom_tool_input(const std::string& arguments) {
  const Result<json::Value> parsed = json::parse(arguments);
  const json::Value* input = parsed.ok() ? parsed->find(kInput) : nullptr;
  return input != nullptr && input->is_string() ? *input->as_string() : arguments;
}

// --- lists

void name_items(json::Array& items) {
  for (json::Value& item : items) {
    json::Object* object = item.as_object();
    if (object == nullptr || !string_or_empty(item, "id").empty()) continue;
    object->set("id", make_id(id_prefix(type_of(item))));
  }
}

Result<json::Object> list_items(json::Array items, const ItemPage& page) {
  if (page.newest_first) std::reverse(items.begin(), items.end());
  TRY_ASSIGN(const size_t begin, page_begin(items, page.after));
  const size_t end = std::min(items.size(), begin + static_cast<size_t>(page.limit));
  json::Array data;
  for (size_t i = begin; i < end; ++i) data.emplace_back(shown_item(items[i]));
  json::Value first_id;
  json::Value last_id;
  if (!data.empty()) {
    first_id = string_or_empty(data.front(), "id");
    last_id = string_or_empty(data.back(), "id");
  }
  return json::make_object({{"object", "list"},
                            {"data", std::move(data)},
                            {"first_id", std::move(first_id)},
                            {"last_id", std::move(last_id)},
                            {"has_more", end < items.size()}});
}

}  // namespace nibble::server
