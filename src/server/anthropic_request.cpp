#include "server/anthropic_request.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/chat_messages.h"
#include "server/chat_settings.h"
#include "server/field_reader.h"

namespace nibble::server {
namespace {

using text::Message;
using text::Role;

// Carry no meaning here: who asks, what to cache (everything is), how urgent it is.
constexpr const char* kIgnoredFields[] = {"metadata",
                                          "service_tier",
                                          "cache_control",
                                          "inference_geo",
                                          "user_profile_id",
                                          "workspace_id",
                                          "diagnostics",
                                          "context_management",
                                          "speed"};

// A client's note for the vendor's billing, in front of the system prompt. It changes with every
// request, so it would make every prompt a new one for the prefix cache.
constexpr std::string_view kBillingHeader = "x-anthropic-billing-header:";

constexpr std::string_view kBlockSeparator = "\n\n";  // as the encoder joins blocks of a turn

void join(std::string& text, std::string_view block) {
  if (!text.empty()) text += kBlockSeparator;
  text += block;
}

// --- content blocks

// The blocks of one message, in order. A user's tool results are messages of their own.
class BlockReader final {
 public:
  BlockReader(Role role, std::string path, std::vector<Message>& messages)
      : role_(role), path_(std::move(path)), messages_(messages) {}

  Result<void> read(const json::Value& content) {
    if (const std::string* text = content.as_string()) {
      add_text(*text);
      return {};
    }
    const json::Array* blocks = content.as_array();
    if (blocks == nullptr) return wrong_type(path_, "a string or an array of blocks", content);
    if (role_ == Role::kAssistant) {
      current();  // an answer may have been empty
    } else if (blocks->empty()) {
      return wrong_value(path_, "expected at least one block");
    }
    for (size_t i = 0; i < blocks->size(); ++i) {
      TRY(read_block((*blocks)[i], fmt::format("{}[{}]", path_, i)));
    }
    return {};
  }

 private:
  Result<void> read_block(const json::Value& value, const std::string& path) {
    const json::Object* object = value.as_object();
    if (object == nullptr) return wrong_type(path, "an object", value);
    FieldReader reader(*object, path + ".");
    TRY_ASSIGN(const std::string type, reader.required_string("type"));
    if (type == "text") {
      TRY_ASSIGN(const std::string text, reader.required_string("text"));
      add_text(text);
      return {};
    }
    const bool is_assistant = role_ == Role::kAssistant;
    if (type == "thinking" && is_assistant) return read_thinking(reader);
    if (type == "redacted_thinking" && is_assistant) return {};
    if (type == "tool_use" && is_assistant) return read_tool_use(reader);
    if (type == "tool_result" && !is_assistant) return read_tool_result(reader);
    constexpr size_t kMaxShown = 40;
    return unsupported_field(
        reader.param("type"),
        fmt::format("expected {}, found '{}'",
                    is_assistant ? "text, thinking or tool_use" : "text or tool_result",
                    type.substr(0, kMaxShown)));
  }

  // What the model wrote was one text; what a user sends are blocks of their own.
  void add_text(std::string_view text) {
    if (role_ == Role::kAssistant) {
      current().content += text;
    } else {
      messages_.push_back({.role = Role::kUser, .content = std::string(text)});
    }
  }

  Result<void> read_thinking(FieldReader& reader) {
    TRY_ASSIGN(const std::string thinking, reader.required_string("thinking"));
    std::string signature;  // of no use: the text itself is here
    TRY(reader.read("signature", signature));
    std::optional<std::string>& reasoning = current().reasoning_content;
    reasoning = reasoning.value_or("") + thinking;
    return {};
  }

  Result<void> read_tool_use(FieldReader& reader) {
    text::ToolCall call;
    TRY_ASSIGN(call.id, reader.required_string("id"));
    TRY_ASSIGN(call.name, reader.required_string("name"));
    TRY(check_function_name(call.name, reader.param("name")));
    TRY_ASSIGN(const json::Object* input, reader.object("input"));
    if (input == nullptr) return wrong_value(reader.param("input"), "is missing");
    call.arguments = json::dump(*input, json::Style::kPython);
    current().tool_calls.push_back(std::move(call));
    return {};
  }

  Result<void> read_tool_result(FieldReader& reader) {
    Message result = {.role = Role::kTool};
    TRY_ASSIGN(result.tool_call_id, reader.required_string("tool_use_id"));
    bool is_error = false;  // the prompt format has no mark for it; the content tells
    TRY(reader.read("is_error", is_error));
    if (const json::Value* content = reader.any("content")) {
      TRY_ASSIGN(std::vector<std::string> texts,
                 read_texts(*content, reader.param("content"), {{"text"}}));
      for (std::string& text : texts) {
        result.parts.push_back({.type = "text", .text = std::move(text)});
      }
    }
    messages_.push_back(std::move(result));
    return {};
  }

  // Consecutive messages of the assistant are one turn.
  Message& current() { return open_turn_of_assistant(messages_); }

  const Role role_;
  const std::string path_;
  std::vector<Message>& messages_;
};

// --- messages

Result<Role> read_role(FieldReader& reader) {
  TRY_ASSIGN(const std::string name, reader.required_string("role"));
  if (name == "user") return Role::kUser;
  if (name == "assistant") return Role::kAssistant;
  constexpr size_t kMaxShown = 40;
  return wrong_value(reader.param("role"),
                     fmt::format("expected user or assistant, found '{}'; the system prompt is "
                                 "the field \"system\"",
                                 name.substr(0, kMaxShown)));
}

Result<void> read_message(const json::Value& value,
                          const std::string& path,
                          std::vector<Message>& messages) {
  const json::Object* object = value.as_object();
  if (object == nullptr) return wrong_type(path, "an object", value);
  FieldReader reader(*object, path + ".");
  TRY_ASSIGN(const Role role, read_role(reader));
  const json::Value* content = reader.any("content");
  if (content == nullptr) return wrong_value(reader.param("content"), "is missing");
  return BlockReader(role, reader.param("content"), messages).read(*content);
}

// An answer begins after a user, or goes on where the assistant's last message ends.
Result<void> open_ending(std::vector<Message>& messages) {
  Message& last = messages.back();
  if (last.role != Role::kAssistant) return {};
  if (!last.tool_calls.empty()) {
    return wrong_value("messages", "the last tool_use has no tool_result");
  }
  last.without_eos = true;
  return {};
}

Result<void> read_messages_field(FieldReader& reader, std::vector<Message>& messages) {
  TRY_ASSIGN(const json::Array* items, reader.array("messages"));
  if (items == nullptr) return wrong_value("messages", "is missing");
  if (items->empty()) return wrong_value("messages", "expected at least one message");
  const size_t num_system = messages.size();
  for (size_t i = 0; i < items->size(); ++i) {
    TRY(read_message((*items)[i], fmt::format("messages[{}]", i), messages));
  }
  if (messages.size() == num_system) {
    return wrong_value("messages", "expected at least one block of content");
  }
  return open_ending(messages);
}

Result<void> read_system(FieldReader& reader, std::vector<Message>& messages) {
  const json::Value* system = reader.any("system");
  if (system == nullptr) return {};
  TRY_ASSIGN(const std::vector<std::string> texts, read_texts(*system, "system", {{"text"}}));
  Message message = {.role = Role::kSystem};
  for (const std::string& text : texts) {
    if (!text.starts_with(kBillingHeader)) join(message.content, text);
  }
  messages.push_back(std::move(message));
  return {};
}

// --- tools

// {name, description, input_schema} to the function object that the encoder shows to the model.
Result<json::Value> read_tool(const json::Value& value, const std::string& path) {
  const json::Object* object = value.as_object();
  if (object == nullptr) return wrong_type(path, "an object", value);
  FieldReader reader(*object, path + ".");
  std::string type = "custom";
  TRY(reader.read("type", type));
  if (type != "custom") {
    return unsupported_field(reader.param("type"),
                             "this server runs no tools itself; expected \"custom\"");
  }
  TRY_ASSIGN(json::Object function, read_flat_tool(reader, "input_schema"));
  if (function.find("parameters") == nullptr) {
    return wrong_value(reader.param("input_schema"), "is missing");
  }
  return json::Value(std::move(function));
}

Result<void> read_tool_choice(FieldReader& top, ToolWish& wish) {
  TRY_ASSIGN(const json::Object* choice, top.object("tool_choice"));
  if (choice == nullptr) return {};
  FieldReader reader(*choice, "tool_choice.");
  TRY_ASSIGN(const std::string type, reader.required_string("type"));
  bool disable_parallel = false;
  TRY(reader.read("disable_parallel_tool_use", disable_parallel));
  wish.parallel = !disable_parallel;
  if (type == "tool") {
    TRY_ASSIGN(wish.name, reader.required_string("name"));
    wish.choice = ToolChoice::kNamed;
  } else if (type == "any") {
    wish.choice = ToolChoice::kRequired;
  } else if (type == "none") {
    wish.choice = ToolChoice::kNone;
  } else if (type != "auto") {
    return wrong_value(reader.param("type"), "expected auto, any, tool or none");
  }
  return {};
}

Result<void> read_tools_into(FieldReader& reader, ChatRequest& request) {
  ToolWish wish;
  TRY_ASSIGN(const json::Array* tools, reader.array("tools"));
  for (size_t i = 0; tools != nullptr && i < tools->size(); ++i) {
    TRY_ASSIGN(json::Value function, read_tool((*tools)[i], fmt::format("tools[{}]", i)));
    wish.functions.push_back(std::move(function));
  }
  TRY(read_tool_choice(reader, wish));
  return apply_tools(std::move(wish), request);
}

// --- thinking and format

// "adaptive" thinks.
Result<void> read_thinking_field(FieldReader& top, ThinkingWish& wish, ChatRequest& request) {
  TRY_ASSIGN(const json::Object* thinking, top.object("thinking"));
  if (thinking == nullptr) return {};
  FieldReader reader(*thinking, "thinking.");
  TRY_ASSIGN(const std::string type, reader.required_string("type"));
  if (type != "enabled" && type != "adaptive" && type != "disabled") {
    return wrong_value(reader.param("type"), "expected enabled, adaptive or disabled");
  }
  wish.is_on = type != "disabled";
  std::optional<int64_t> budget;
  TRY(reader.read("budget_tokens", budget, {1, INT32_MAX}));
  if (budget) request.fields.thinking_budget = static_cast<int32_t>(*budget);
  std::string display = "summarized";
  TRY(reader.read("display", display));
  if (display != "summarized" && display != "omitted") {
    return wrong_value(reader.param("display"), "expected summarized or omitted");
  }
  request.include_reasoning = display == "summarized";
  return {};
}

Result<void> read_format(FieldReader& parent, std::string_view key, ChatRequest& request) {
  TRY_ASSIGN(const json::Object* format, parent.object(key));
  if (format == nullptr) return {};
  FormatWish wish = {.kind = FormatWish::Kind::kJsonSchema, .param = parent.param(key)};
  FieldReader reader(*format, wish.param + ".");
  TRY_ASSIGN(const std::string type, reader.required_string("type"));
  if (type != "json_schema") return wrong_value(reader.param("type"), "expected json_schema");
  TRY(read_schema(reader, wish));
  wish.strict = true;
  return apply_format(wish, request);
}

// {effort, format}; `output_format` is the format's older place.
Result<void> read_output_config(FieldReader& top, ThinkingWish& wish, ChatRequest& request) {
  TRY(read_format(top, "output_format", request));
  TRY_ASSIGN(const json::Object* config, top.object("output_config"));
  if (config == nullptr) return {};
  FieldReader reader(*config, "output_config.");
  TRY(reader.read("effort", wish.effort));
  wish.effort_param = reader.param("effort");
  return read_format(reader, "format", request);
}

// Effort says how hard to think, not whether.
Result<void> read_thinking_and_format(FieldReader& reader,
                                      const ServedModel& model,
                                      ChatRequest& request) {
  ThinkingWish wish;
  wish.is_on = model.default_thinking == text::ThinkingMode::kThinking;
  TRY(read_thinking_field(reader, wish, request));
  TRY(read_output_config(reader, wish, request));
  return apply_thinking(wish, model, request.render);
}

Result<void> read_max_tokens(FieldReader& reader, AnthropicPurpose purpose, int32_t& max_tokens) {
  const bool is_required = purpose == AnthropicPurpose::kMessage;
  if (is_required) max_tokens = 0;
  TRY(reader.read("max_tokens", max_tokens, {1, INT32_MAX}));
  if (is_required && max_tokens == 0) return wrong_value("max_tokens", "is missing");
  return {};
}

Result<void> read_generation(FieldReader& reader,
                             const ServedModel& model,
                             AnthropicPurpose purpose,
                             GenerationFields& fields) {
  TRY(read_model(reader, model, fields.model));
  TRY(read_max_tokens(reader, purpose, fields.sampling.max_tokens));
  TRY(reader.read("stream", fields.stream));
  TRY(read_stop(reader, "stop_sequences", fields.sampling.stop));
  TRY(read_sampling(reader, model, fields));
  return read_scheduling(reader, fields);
}

}  // namespace

Result<ChatRequest> parse_anthropic_request(const json::Value& body,
                                            const ServedModel& model,
                                            AnthropicPurpose purpose) {
  const json::Object* object = body.as_object();
  if (object == nullptr) return wrong_type("body", "an object", body);
  FieldReader reader(*object);
  ChatRequest request;
  request.fields = default_fields(model);
  TRY(read_generation(reader, model, purpose, request.fields));
  TRY(refuse_unsupported_fields(reader));
  TRY(read_thinking_budget(reader, "thinking_token_budget", request.fields));
  TRY(reader.refuse("prompt_logprobs", "is not part of a message; use /v1/chat/completions"));
  TRY(reader.refuse("mcp_servers", "this server calls no other servers"));
  TRY(reader.refuse("container", "this server runs no tools itself"));
  TRY(read_system(reader, request.messages));
  TRY(read_messages_field(reader, request.messages));
  TRY(read_tools_into(reader, request));
  TRY(read_thinking_and_format(reader, model, request));
  for (const char* key : kIgnoredFields) reader.ignore(key);
  request.num_unknown_fields = reader.num_unknown();
  return request;
}

}  // namespace nibble::server
