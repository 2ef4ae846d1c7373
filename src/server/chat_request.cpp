#include "server/chat_request.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "server/chat_messages.h"
#include "server/chat_settings.h"
#include "server/field_reader.h"

namespace nibble::server {
namespace {

using text::ThinkingMode;

Result<void> read_optional_bool(FieldReader& reader,
                                std::string_view key,
                                std::optional<bool>& target) {
  const json::Value* value = reader.any(key);
  if (value == nullptr) return {};
  if (value->as_bool() == nullptr) return wrong_type(reader.param(key), "a boolean", *value);
  target = *value->as_bool();
  return {};
}

Result<int64_t> read_template_kwargs(FieldReader& top, ThinkingWish& wish) {
  TRY_ASSIGN(const json::Object* kwargs, top.object("chat_template_kwargs"));
  if (kwargs == nullptr) return int64_t{0};
  FieldReader reader(*kwargs, "chat_template_kwargs.");
  TRY(reader.read("reasoning_effort", wish.effort));
  if (wish.effort) wish.effort_param = reader.param("reasoning_effort");
  TRY(read_optional_bool(reader, "enable_thinking", wish.is_on));
  TRY(read_optional_bool(reader, "thinking", wish.is_on));
  return reader.num_unknown();
}

// The vendor's form: thinking: {"type": "enabled" | "disabled"}; others add budget_tokens.
Result<void> read_vendor_thinking(FieldReader& top, ThinkingWish& wish, GenerationFields& fields) {
  TRY_ASSIGN(const json::Object* object, top.object("thinking"));
  if (object == nullptr) return {};
  FieldReader reader(*object, "thinking.");
  std::string type;
  TRY(reader.read("type", type));
  if (type != "enabled" && type != "disabled") {
    return wrong_value("thinking.type", "expected \"enabled\" or \"disabled\"");
  }
  wish.is_on = type == "enabled";
  return read_thinking_budget(reader, "budget_tokens", fields);
}

// From the weakest to the strongest voice.
Result<int64_t> read_thinking(FieldReader& reader, const ServedModel& model, ChatRequest& request) {
  ThinkingWish wish;
  TRY_ASSIGN(const int64_t num_unknown, read_template_kwargs(reader, wish));
  std::optional<std::string> effort;
  TRY(reader.read("reasoning_effort", effort));
  if (effort) {
    wish.effort = std::move(effort);
    wish.effort_param = "reasoning_effort";
  }
  TRY(read_vendor_thinking(reader, wish, request.fields));
  TRY(read_thinking_budget(reader, "thinking_token_budget", request.fields));
  TRY(apply_thinking(wish, model, request.render));
  return num_unknown;
}

// {"type": "function", "function": {"name": ...}}.
Result<void> read_named_choice(const json::Object& choice, ToolWish& wish) {
  FieldReader reader(choice, "tool_choice.");
  std::string type;
  TRY(reader.read("type", type));
  if (type != "function") return unsupported_field("tool_choice.type", "expected \"function\"");
  TRY_ASSIGN(const json::Object* function, reader.object("function"));
  if (function == nullptr) return wrong_value("tool_choice.function", "is missing");
  FieldReader function_reader(*function, "tool_choice.function.");
  std::optional<std::string> name;
  TRY(function_reader.read("name", name));
  if (!name) return wrong_value("tool_choice.function.name", "is missing");
  wish.choice = ToolChoice::kNamed;
  wish.name = *std::move(name);
  return {};
}

Result<void> read_tool_choice(FieldReader& reader, ToolWish& wish) {
  const json::Value* choice = reader.any("tool_choice");
  if (choice == nullptr) return {};
  if (choice->is_object()) return read_named_choice(*choice->as_object(), wish);
  const std::string* name = choice->as_string();
  if (name == nullptr) return wrong_type("tool_choice", "a string or an object", *choice);
  TRY_ASSIGN(wish.choice, parse_tool_choice(*name));
  return {};
}

Result<void> read_tools_into(FieldReader& reader, ChatRequest& request) {
  ToolWish wish;
  TRY_ASSIGN(const json::Array* tools, reader.array("tools"));
  TRY(read_tool_choice(reader, wish));
  TRY(reader.read("parallel_tool_calls", wish.parallel));
  TRY(reader.refuse("functions", "is superseded by tools"));
  TRY(reader.refuse("function_call", "is superseded by tool_choice"));
  if (tools != nullptr) {
    TRY_ASSIGN(wish.functions, read_tools(*tools));
  }
  return apply_tools(std::move(wish), request);
}

Result<void> read_response_format(FieldReader& top, ChatRequest& request) {
  TRY_ASSIGN(const json::Object* format, top.object("response_format"));
  if (format == nullptr) return {};
  FieldReader reader(*format, "response_format.");
  std::string type;
  TRY(reader.read("type", type));
  FormatWish wish = {.param = "response_format"};
  TRY_ASSIGN(wish.kind, parse_format_kind(type, "response_format.type"));
  if (wish.kind != FormatWish::Kind::kJsonSchema) return apply_format(wish, request);
  wish.param = "response_format.json_schema";
  TRY_ASSIGN(const json::Object* wrapper, reader.object("json_schema"));
  if (wrapper == nullptr) return wrong_value(wish.param, "is missing");
  FieldReader wrapped(*wrapper, wish.param + ".");
  TRY(read_schema(wrapped, wish));
  return apply_format(wish, request);
}

Result<void> read_logprobs(FieldReader& reader, engine::SamplingParams& sampling) {
  TRY(reader.read("logprobs", sampling.logprobs));
  TRY(reader.read("top_logprobs", sampling.top_logprobs, {0, kMaxTopLogprobs}));
  if (sampling.top_logprobs > 0 && !sampling.logprobs) {
    return wrong_value("top_logprobs", "only allowed together with logprobs: true");
  }
  return {};
}

Result<void> read_reasoning_output(FieldReader& reader, ChatRequest& request) {
  TRY(reader.read("include_reasoning", request.include_reasoning));
  bool separate_reasoning = true;
  TRY(reader.read("separate_reasoning", separate_reasoning));
  if (!separate_reasoning) {
    return unsupported_field("separate_reasoning", "reasoning is always kept apart from content");
  }
  return {};
}

Result<void> refuse_other_media(FieldReader& reader) {
  TRY(reader.refuse("audio", "this model writes text only"));
  TRY_ASSIGN(const json::Array* modalities, reader.array("modalities"));
  for (size_t i = 0; modalities != nullptr && i < modalities->size(); ++i) {
    const std::string* name = (*modalities)[i].as_string();
    if (name == nullptr || *name != "text") {
      return unsupported_field("modalities", "this model writes text only");
    }
  }
  return {};
}

// The template's switches: whether the last message goes on or a new answer begins.
Result<bool> read_continuation(FieldReader& reader) {
  bool continue_last = false;
  TRY(reader.read("continue_final_message", continue_last));
  bool begin_answer = !continue_last;
  TRY(reader.read("add_generation_prompt", begin_answer));
  if (begin_answer != continue_last) return continue_last;
  return wrong_value("add_generation_prompt", "expected the opposite of continue_final_message");
}

// A prompt that ends with a system message or reminder gets an empty user turn: the format has an
// answer begin only after a user.
void close_user_turn(std::vector<text::Message>& messages) {
  const text::Role last = messages.back().role;
  if (last == text::Role::kSystem || last == text::Role::kLatestReminder) {
    messages.push_back(text::Message{.role = text::Role::kUser});
  }
}

}  // namespace

bool ChatRequest::starts_in_reasoning() const {
  return render.thinking == ThinkingMode::kThinking && !messages.back().without_eos;
}

Result<ChatRequest> parse_chat_request(const json::Value& body, const ServedModel& model) {
  const json::Object* object = body.as_object();
  if (object == nullptr) return wrong_type("body", "an object", body);
  FieldReader reader(*object);
  ChatRequest request;
  TRY_ASSIGN(request.fields, read_generation_fields(reader, model, {}));
  TRY(refuse_unsupported_fields(reader));
  TRY(refuse_other_media(reader));
  TRY(read_logprobs(reader, request.fields.sampling));
  TRY(read_prompt_logprobs(reader, request.fields));
  const json::Value* messages = reader.any("messages");
  if (messages == nullptr) return wrong_value("messages", "is missing");
  if (!messages->is_array()) return wrong_type("messages", "an array", *messages);
  TRY_ASSIGN(const bool continue_last, read_continuation(reader));
  TRY_ASSIGN(request.messages, read_messages(*messages->as_array(), continue_last));
  close_user_turn(request.messages);
  TRY_ASSIGN(const int64_t num_unknown_kwargs, read_thinking(reader, model, request));
  TRY(read_tools_into(reader, request));
  TRY(read_response_format(reader, request));
  TRY(read_constraint_fields(reader, request.constraint));
  TRY(read_reasoning_output(reader, request));
  request.num_unknown_fields = reader.num_unknown() + num_unknown_kwargs;
  return request;
}

Result<std::vector<int32_t>> encode_chat(const ChatRequest& request,
                                         const text::Tokenizer& tokenizer) {
  TRY_ASSIGN(const text::Prompt prompt, text::render_chat(request.messages, request.render));
  return text::encode_prompt(prompt, tokenizer);
}

}  // namespace nibble::server
