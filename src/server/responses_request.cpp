#include "server/responses_request.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "server/chat_messages.h"
#include "server/chat_settings.h"
#include "server/field_reader.h"

namespace nibble::server {
namespace {

using text::Message;
using text::Role;

constexpr std::string_view kOpaquePrefix = "nibble:";

// Carry no meaning here.
constexpr const char* kIgnoredFields[] = {"max_tool_calls",
                                          "prompt_cache_retention",
                                          "prompt_cache_options",
                                          "session_id",
                                          "rid",
                                          "request_id"};
// Repeated in the response as they came; strings.
constexpr const char* kEchoedFields[] = {
    "user", "service_tier", "safety_identifier", "prompt_cache_key"};

// --- input items

// Text parts joined; other parts are refused.
Result<std::string> read_parts(const json::Array& parts, const std::string& path) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string part_path = fmt::format("{}[{}]", path, i);
    const json::Object* part = parts[i].as_object();
    if (part == nullptr) return wrong_type(part_path, "an object", parts[i]);
    FieldReader reader(*part, part_path + ".");
    TRY_ASSIGN(const std::string type, reader.required_string("type"));
    const bool is_text =
        type == "input_text" || type == "output_text" || type == "text" || type == "reasoning_text";
    if (!is_text && type != "refusal") {
      return unsupported_field(reader.param("type"), "this model reads text only");
    }
    TRY_ASSIGN(const std::string piece, reader.required_string(is_text ? "text" : "refusal"));
    text += piece;
  }
  return text;
}

// A string or parts.
Result<std::string> read_text(FieldReader& reader, std::string_view key) {
  const json::Value* value = reader.any(key);
  if (value == nullptr) return wrong_value(reader.param(key), "is missing");
  if (const std::string* text = value->as_string()) return *text;
  const json::Array* parts = value->as_array();
  if (parts == nullptr) return wrong_type(reader.param(key), "a string or an array", *value);
  return read_parts(*parts, reader.param(key));
}

// Items to messages. What the assistant said in one turn, an item each, becomes one message.
class ItemReader final {
 public:
  explicit ItemReader(std::vector<Message>& messages) : messages_(messages) {}

  Result<void> read(const json::Value& value, const std::string& path) {
    const json::Object* object = value.as_object();
    if (object == nullptr) return wrong_type(path, "an object", value);
    FieldReader reader(*object, path + ".");
    std::string type = "message";
    TRY(reader.read("type", type));
    if (type == "message") return read_message(reader);
    if (type == "reasoning") return read_reasoning(reader);
    if (type == "function_call") return read_call(reader);
    if (type == "function_call_output") return read_call_output(reader);
    constexpr size_t kMaxShown = 40;
    return unsupported_field(reader.param("type"),
                             fmt::format("expected message, reasoning, function_call or "
                                         "function_call_output, found '{}'",
                                         type.substr(0, kMaxShown)));
  }

  void add_system(const std::string& text) {
    const bool continues = !messages_.empty() && messages_.back().role == Role::kSystem;
    if (continues) {
      messages_.back().content += "\n\n" + text;
    } else {
      messages_.push_back({.role = Role::kSystem, .content = text});
    }
  }

 private:
  Result<void> read_message(FieldReader& reader) {
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

  Result<void> read_reasoning(FieldReader& reader) {
    TRY_ASSIGN(const json::Array* parts, reader.array("content"));
    std::optional<std::string> opaque;
    TRY(reader.read("encrypted_content", opaque));
    std::string text;
    if (parts != nullptr && !parts->empty()) {
      TRY_ASSIGN(text, read_parts(*parts, reader.param("content")));
    } else if (opaque) {
      if (!opaque->starts_with(kOpaquePrefix)) {
        return wrong_value(reader.param("encrypted_content"), "was not made by this server");
      }
      text = opaque->substr(kOpaquePrefix.size());
    }
    assistant(is_assistants_turn()).reasoning_content = std::move(text);
    return {};
  }

  Result<void> read_call(FieldReader& reader) {
    text::ToolCall call;
    TRY_ASSIGN(call.id, reader.required_string("call_id"));
    TRY_ASSIGN(call.name, reader.required_string("name"));
    TRY(check_function_name(call.name, reader.param("name")));
    TRY_ASSIGN(call.arguments, reader.required_string("arguments"));
    assistant(false).tool_calls.push_back(std::move(call));
    return {};
  }

  Result<void> read_call_output(FieldReader& reader) {
    Message result = {.role = Role::kTool};
    TRY_ASSIGN(result.tool_call_id, reader.required_string("call_id"));
    TRY_ASSIGN(result.content, read_text(reader, "output"));
    messages_.push_back(std::move(result));
    return {};
  }

  bool is_assistants_turn() const {
    return !messages_.empty() && messages_.back().role == Role::kAssistant;
  }

  Message& assistant(bool begins_anew) {
    if (begins_anew || !is_assistants_turn()) messages_.push_back({.role = Role::kAssistant});
    return messages_.back();
  }

  std::vector<Message>& messages_;
};

Result<void> read_input(FieldReader& reader, ResponsesRequest& request) {
  const json::Value* input = reader.any("input");
  if (input == nullptr) return wrong_value("input", "is missing");
  ItemReader items(request.chat.messages);
  if (const std::string* text = input->as_string()) {
    request.items.emplace_back(
        json::make_object({{"type", "message"}, {"role", "user"}, {"content", *text}}));
    return items.read(request.items.back(), "input");
  }
  const json::Array* array = input->as_array();
  if (array == nullptr) return wrong_type("input", "a string or an array of items", *input);
  for (size_t i = 0; i < array->size(); ++i) {
    TRY(items.read((*array)[i], fmt::format("input[{}]", i)));
    request.items.push_back((*array)[i]);
  }
  return {};
}

Result<void> read_previous(FieldReader& reader,
                           const FindItems& find_items,
                           ResponsesRequest& request) {
  std::optional<std::string> id;
  TRY(reader.read("previous_response_id", id));
  request.settings.set("previous_response_id", id ? json::Value(*id) : json::Value());
  if (!id) return {};
  TRY_ASSIGN(request.items, find_items(*id));
  ItemReader items(request.chat.messages);
  for (const json::Value& item : request.items) TRY(items.read(item, "previous_response_id"));
  return {};
}

Result<void> check_ending(std::vector<Message>& messages) {
  if (messages.empty()) return wrong_value("input", "expected at least one item");
  const Role last = messages.back().role;
  if (last == Role::kAssistant) {
    return wrong_value("input", "the last item is the assistant's; there is nothing to respond to");
  }
  // The format has an answer begin only after a user.
  if (last == Role::kSystem) messages.push_back({.role = Role::kUser});
  return {};
}

// Instructions are of this response alone; they come before all items.
Result<void> read_conversation(FieldReader& reader,
                               const FindItems& find_items,
                               ResponsesRequest& request) {
  std::optional<std::string> instructions;
  TRY(reader.read("instructions", instructions));
  request.settings.set("instructions", instructions ? json::Value(*instructions) : json::Value());
  if (instructions && !instructions->empty()) {
    ItemReader(request.chat.messages).add_system(*instructions);
  }
  TRY(read_previous(reader, find_items, request));
  TRY(read_input(reader, request));
  return check_ending(request.chat.messages);
}

// --- tools

// {type, name, description, parameters, strict} to the function object that the encoder shows.
Result<json::Object> read_function(FieldReader& reader) {
  TRY_ASSIGN(std::string name, reader.required_string("name"));
  TRY(check_function_name(name, reader.param("name")));
  json::Object function = json::make_object({{"name", std::move(name)}});
  std::optional<std::string> description;
  TRY(reader.read("description", description));
  if (description) function.set("description", *std::move(description));
  TRY_ASSIGN(const json::Object* parameters, reader.object("parameters"));
  if (parameters != nullptr) function.set("parameters", *parameters);
  bool strict = false;
  TRY(reader.read("strict", strict));
  if (strict) function.set("strict", true);
  return function;
}

Result<void> read_tool(const json::Value& value,
                       const std::string& path,
                       ToolWish& wish,
                       json::Array& taken,
                       std::string& note) {
  const json::Object* object = value.as_object();
  if (object == nullptr) return wrong_type(path, "an object", value);
  FieldReader reader(*object, path + ".");
  TRY_ASSIGN(const std::string type, reader.required_string("type"));
  if (type.starts_with("web_search")) {
    note = path + ": this server has no web search; the model was not offered it";
    return {};
  }
  if (type != "function") {
    return unsupported_field(reader.param("type"),
                             "this server runs no tools itself; expected \"function\"");
  }
  TRY_ASSIGN(json::Object function, read_function(reader));
  wish.functions.emplace_back(std::move(function));
  taken.push_back(value);
  return {};
}

// A mode, or {"type": "function", "name": ...}.
Result<void> read_tool_choice(FieldReader& top, ToolWish& wish, json::Object& settings) {
  const json::Value* choice = top.any("tool_choice");
  settings.set("tool_choice", choice == nullptr ? json::Value("auto") : *choice);
  if (choice == nullptr) return {};
  if (const std::string* name = choice->as_string()) {
    TRY_ASSIGN(wish.choice, parse_tool_choice(*name));
    return {};
  }
  const json::Object* object = choice->as_object();
  if (object == nullptr) return wrong_type("tool_choice", "a string or an object", *choice);
  FieldReader reader(*object, "tool_choice.");
  TRY_ASSIGN(const std::string type, reader.required_string("type"));
  if (type != "function") return unsupported_field("tool_choice.type", "expected \"function\"");
  TRY_ASSIGN(wish.name, reader.required_string("name"));
  wish.choice = ToolChoice::kNamed;
  return {};
}

Result<void> read_tools_into(FieldReader& reader, ResponsesRequest& request) {
  ToolWish wish;
  json::Array taken;
  TRY_ASSIGN(const json::Array* tools, reader.array("tools"));
  for (size_t i = 0; tools != nullptr && i < tools->size(); ++i) {
    TRY(read_tool((*tools)[i], fmt::format("tools[{}]", i), wish, taken, request.note));
  }
  request.settings.set("tools", std::move(taken));
  TRY(read_tool_choice(reader, wish, request.settings));
  TRY(reader.read("parallel_tool_calls", wish.parallel));
  request.settings.set("parallel_tool_calls", wish.parallel);
  return apply_tools(std::move(wish), request.chat);
}

// --- output

// Without the digits that are noise of the narrower type.
double shown(float value) {
  constexpr double kDigits = 1e6;
  return std::round(static_cast<double>(value) * kDigits) / kDigits;
}

Result<void> read_format(FieldReader& text, ResponsesRequest& request) {
  TRY_ASSIGN(const json::Object* format, text.object("format"));
  if (format == nullptr) return {};
  FormatWish wish = {.param = "text.format"};
  FieldReader reader(*format, "text.format.");
  TRY_ASSIGN(const std::string type, reader.required_string("type"));
  TRY_ASSIGN(wish.kind, parse_format_kind(type, reader.param("type")));
  if (wish.kind == FormatWish::Kind::kJsonSchema) {
    TRY(reader.read("strict", wish.strict));
    TRY_ASSIGN(wish.schema, reader.object("schema"));
    if (wish.schema == nullptr) return wrong_value(reader.param("schema"), "is missing");
  }
  return apply_format(wish, request.chat);
}

Result<void> read_text_config(FieldReader& reader, ResponsesRequest& request) {
  TRY_ASSIGN(const json::Object* text, reader.object("text"));
  json::Object shown = text == nullptr ? json::Object() : *text;
  if (shown.find("format") == nullptr) {
    shown.set("format", json::make_object({{"type", "text"}}));
  }
  request.settings.set("text", std::move(shown));
  if (text == nullptr) return {};
  FieldReader text_reader(*text, "text.");
  return read_format(text_reader, request);
}

Result<void> read_reasoning_config(FieldReader& reader,
                                   const ServedModel& model,
                                   ResponsesRequest& request) {
  TRY_ASSIGN(const json::Object* reasoning, reader.object("reasoning"));
  ThinkingWish wish;
  std::optional<std::string> summary;
  if (reasoning != nullptr) {
    FieldReader fields(*reasoning, "reasoning.");
    TRY(fields.read("effort", wish.effort));
    wish.effort_param = fields.param("effort");
    TRY(fields.read("summary", summary));
  }
  request.settings.set(
      "reasoning",
      json::make_object({{"effort", wish.effort ? json::Value(*wish.effort) : json::Value()},
                         {"summary", summary ? json::Value(*summary) : json::Value()}}));
  return apply_thinking(wish, model, request.chat.render);
}

Result<void> read_include(FieldReader& reader, ResponsesRequest& request) {
  TRY_ASSIGN(const json::Array* include, reader.array("include"));
  for (size_t i = 0; include != nullptr && i < include->size(); ++i) {
    const std::string* what = (*include)[i].as_string();
    if (what == nullptr) return wrong_type("include", "an array of strings", (*include)[i]);
    if (*what == "reasoning.encrypted_content") request.wants_encrypted_reasoning = true;
    if (*what == "message.output_text.logprobs") request.chat.fields.sampling.logprobs = true;
  }
  return {};
}

Result<void> read_truncation(FieldReader& reader, json::Object& settings) {
  std::string truncation = "disabled";
  TRY(reader.read("truncation", truncation));
  if (truncation != "disabled" && truncation != "auto") {
    return wrong_value("truncation", "expected auto or disabled");
  }
  settings.set("truncation", std::move(truncation));
  return {};
}

Result<void> read_keeping(FieldReader& reader, ResponsesRequest& request) {
  TRY(reader.read("store", request.store));
  TRY(reader.read("background", request.background));
  if (request.background && !request.store) {
    return wrong_value("background", "only allowed together with store: true");
  }
  request.settings.set("store", request.store);
  request.settings.set("background", request.background);
  return {};
}

Result<void> read_generation(FieldReader& reader,
                             const ServedModel& model,
                             ResponsesRequest& request) {
  GenerationFields& fields = request.chat.fields;
  engine::SamplingParams& sampling = fields.sampling;
  TRY(read_model(reader, model, fields.model));
  TRY(reader.read("stream", fields.stream));
  TRY(reader.object("stream_options"));
  std::optional<int64_t> max_tokens;
  TRY(reader.read("max_output_tokens", max_tokens, {1, INT32_MAX}));
  if (max_tokens) sampling.max_tokens = static_cast<int32_t>(*max_tokens);
  TRY(read_stop(reader, "stop", sampling.stop));
  TRY(reader.read("top_logprobs", sampling.top_logprobs, {0, kMaxTopLogprobs}));
  if (sampling.top_logprobs > 0) sampling.logprobs = true;
  TRY(read_sampling(reader, model, fields));
  TRY(read_scheduling(reader, fields));
  TRY(read_thinking_budget(reader, "thinking_token_budget", fields));
  request.settings.set("max_output_tokens", max_tokens ? json::Value(*max_tokens) : json::Value());
  request.settings.set("temperature", shown(sampling.temperature));
  request.settings.set("top_p", shown(sampling.top_p));
  request.settings.set("top_logprobs", sampling.top_logprobs);
  return {};
}

Result<void> read_echoed(FieldReader& reader, json::Object& settings) {
  TRY_ASSIGN(const json::Object* metadata, reader.object("metadata"));
  settings.set("metadata", metadata == nullptr ? json::Object() : *metadata);
  for (const char* key : kEchoedFields) {
    std::optional<std::string> text;
    TRY(reader.read(key, text));
    if (text) settings.set(key, *std::move(text));
  }
  return {};
}

Result<void> refuse_unsupported(FieldReader& reader) {
  TRY(refuse_unsupported_fields(reader));
  TRY(reader.refuse("prompt_logprobs", "is not part of a response; use /v1/chat/completions"));
  TRY(reader.refuse("conversation", "is not supported; use previous_response_id"));
  TRY(reader.refuse("prompt", "is not supported; send the text itself"));
  TRY(reader.refuse("context_management", "is not supported"));
  return reader.refuse("moderation", "is not supported");
}

}  // namespace

std::string opaque_reasoning(const std::string& reasoning) {
  return std::string(kOpaquePrefix) + reasoning;
}

Result<ResponsesRequest> parse_responses_request(const json::Value& body,
                                                 const ServedModel& model,
                                                 const FindItems& find_items) {
  const json::Object* object = body.as_object();
  if (object == nullptr) return wrong_type("body", "an object", body);
  FieldReader reader(*object);
  ResponsesRequest request;
  request.chat.fields = default_fields(model);
  TRY(read_generation(reader, model, request));
  TRY(refuse_unsupported(reader));
  TRY(read_keeping(reader, request));
  TRY(read_conversation(reader, find_items, request));
  TRY(read_tools_into(reader, request));
  TRY(read_text_config(reader, request));
  TRY(read_reasoning_config(reader, model, request));
  TRY(read_include(reader, request));
  TRY(read_truncation(reader, request.settings));
  TRY(read_echoed(reader, request.settings));
  for (const char* key : kIgnoredFields) reader.ignore(key);
  request.chat.num_unknown_fields = reader.num_unknown();
  return request;
}

}  // namespace nibble::server
