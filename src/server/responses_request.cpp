#include "server/responses_request.h"

#include <fmt/format.h>

#include <optional>
#include <utility>
#include <vector>

#include "server/chat_messages.h"
#include "server/chat_settings.h"
#include "server/field_reader.h"
#include "server/reply_common.h"
#include "server/response_items.h"

namespace nibble::server {
namespace {

using text::Message;
using text::Role;

// Carry no meaning here.
constexpr const char* kIgnoredFields[] = {"max_tool_calls",
                                          "prompt_cache_retention",
                                          "prompt_cache_options",
                                          "session_id",
                                          "client_metadata"};
// Repeated in the response as they came; strings.
constexpr const char* kEchoedFields[] = {
    "user", "service_tier", "safety_identifier", "prompt_cache_key"};

// --- the conversation

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

// {type: "text"} or {type: "grammar", syntax, definition}, to what holds for the input. A Lark
// grammar is only shown to the model, which the note says.
Result<json::Object> read_input_format(FieldReader& tool, std::string& note) {
  json::Object input = json::make_object({{"type", "string"}});
  TRY_ASSIGN(const json::Object* format, tool.object("format"));
  if (format == nullptr) return input;
  FieldReader reader(*format, tool.param("format."));
  TRY_ASSIGN(const std::string type, reader.required_string("type"));
  if (type == "text") return input;
  if (type != "grammar") return wrong_value(reader.param("type"), "expected text or grammar");
  TRY_ASSIGN(const std::string syntax, reader.required_string("syntax"));
  TRY_ASSIGN(const std::string definition, reader.required_string("definition"));
  if (syntax == "regex") {
    input.set("pattern", fmt::format("^(?:{})$", definition));
  } else if (syntax == "lark") {
    input.set("description", "Text that follows this Lark grammar:\n" + definition);
    note = reader.param("definition") + " is shown to the model, not enforced";
  } else {
    return wrong_value(reader.param("syntax"), "expected lark or regex");
  }
  return input;
}

// {type: "custom", name, description, format}.
Result<json::Object> read_custom_tool(FieldReader& reader, std::string& note) {
  TRY_ASSIGN(json::Object function, read_flat_tool(reader, "parameters"));
  TRY_ASSIGN(json::Object input, read_input_format(reader, note));
  if (input.find("pattern") != nullptr) function.set("strict", true);
  function.set("parameters", custom_tool_schema(std::move(input)));
  return function;
}

Result<void> read_tool(const json::Value& value,
                       const std::string& path,
                       ToolWish& wish,
                       json::Array& taken,
                       ResponsesRequest& request) {
  const json::Object* object = value.as_object();
  if (object == nullptr) return wrong_type(path, "an object", value);
  FieldReader reader(*object, path + ".");
  TRY_ASSIGN(const std::string type, reader.required_string("type"));
  if (type.starts_with("web_search")) {
    request.note = path + ": this server has no web search; the model was not offered it";
    return {};
  }
  if (type != "function" && type != "custom") {
    return unsupported_field(reader.param("type"),
                             "this server runs no tools itself; expected function or custom");
  }
  const bool is_custom = type == "custom";
  TRY_ASSIGN(
      json::Object function,
      is_custom ? read_custom_tool(reader, request.note) : read_flat_tool(reader, "parameters"));
  if (is_custom) request.custom_tools.push_back(*function.find("name")->as_string());
  wish.functions.emplace_back(std::move(function));
  taken.push_back(value);
  return {};
}

// A mode, or {"type": "function" or "custom", "name": ...}.
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
  if (type != "function" && type != "custom") {
    return unsupported_field("tool_choice.type", "expected function or custom");
  }
  TRY_ASSIGN(wish.name, reader.required_string("name"));
  wish.choice = ToolChoice::kNamed;
  return {};
}

Result<void> read_tools_into(FieldReader& reader, ResponsesRequest& request) {
  ToolWish wish;
  json::Array taken;
  TRY_ASSIGN(const json::Array* tools, reader.array("tools"));
  for (size_t i = 0; tools != nullptr && i < tools->size(); ++i) {
    TRY(read_tool((*tools)[i], fmt::format("tools[{}]", i), wish, taken, request));
  }
  request.settings.set("tools", std::move(taken));
  TRY(read_tool_choice(reader, wish, request.settings));
  TRY(reader.read("parallel_tool_calls", wish.parallel));
  request.settings.set("parallel_tool_calls", wish.parallel);
  return apply_tools(std::move(wish), request.chat);
}

// --- output

Result<void> read_format(FieldReader& text, ResponsesRequest& request) {
  TRY_ASSIGN(const json::Object* format, text.object("format"));
  if (format == nullptr) return {};
  FormatWish wish = {.param = "text.format"};
  FieldReader reader(*format, "text.format.");
  TRY_ASSIGN(const std::string type, reader.required_string("type"));
  TRY_ASSIGN(wish.kind, parse_format_kind(type, reader.param("type")));
  if (wish.kind == FormatWish::Kind::kJsonSchema) TRY(read_schema(reader, wish));
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
  request.settings.set("temperature", readable(sampling.temperature));
  request.settings.set("top_p", readable(sampling.top_p));
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
