#include "server/chat_request.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "server/chat_messages.h"
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

// What a request says about thinking, from the weakest to the strongest voice.
struct ThinkingFields {
  std::optional<std::string> effort;
  std::optional<bool> is_on;
};

Result<void> read_optional_bool(FieldReader& reader,
                                std::string_view key,
                                std::optional<bool>& target) {
  const json::Value* value = reader.any(key);
  if (value == nullptr) return {};
  if (value->as_bool() == nullptr) return wrong_type(reader.param(key), "a boolean", *value);
  target = *value->as_bool();
  return {};
}

Result<int64_t> read_template_kwargs(FieldReader& top, ThinkingFields& thinking) {
  TRY_ASSIGN(const json::Object* kwargs, top.object("chat_template_kwargs"));
  if (kwargs == nullptr) return int64_t{0};
  FieldReader reader(*kwargs, "chat_template_kwargs.");
  TRY(reader.read("reasoning_effort", thinking.effort));
  TRY(read_optional_bool(reader, "enable_thinking", thinking.is_on));
  TRY(read_optional_bool(reader, "thinking", thinking.is_on));
  return reader.num_unknown();
}

// The vendor's form: thinking: {"type": "enabled" | "disabled"}.
Result<void> read_vendor_thinking(FieldReader& top, ThinkingFields& thinking) {
  TRY_ASSIGN(const json::Object* object, top.object("thinking"));
  if (object == nullptr) return {};
  FieldReader reader(*object, "thinking.");
  std::string type;
  TRY(reader.read("type", type));
  if (type != "enabled" && type != "disabled") {
    return wrong_value("thinking.type", "expected \"enabled\" or \"disabled\"");
  }
  thinking.is_on = type == "enabled";
  return {};
}

// No prefix: plain thinking of that generation.
Effort default_effort(text::Generation generation) {
  return generation == text::Generation::kApril ? Effort::kHigh : Effort::kLow;
}

Result<void> apply_thinking(const ThinkingFields& thinking,
                            const ServedModel& model,
                            text::RenderOptions& render) {
  render.generation = model.generation;
  render.effort = default_effort(model.generation);
  render.thinking = model.default_thinking;
  if (thinking.effort) {
    const auto* known =
        std::find_if(std::begin(kEfforts), std::end(kEfforts), [&](const EffortName& entry) {
          return entry.name == *thinking.effort;
        });
    if (known == std::end(kEfforts)) {
      return wrong_value("reasoning_effort",
                         "expected none, minimal, low, medium, high, xhigh or max");
    }
    render.thinking = known->effort ? ThinkingMode::kThinking : ThinkingMode::kChat;
    render.effort = known->effort.value_or(render.effort);
  }
  if (thinking.is_on) {
    render.thinking = *thinking.is_on ? ThinkingMode::kThinking : ThinkingMode::kChat;
  }
  return {};
}

Result<int64_t> read_thinking(FieldReader& reader,
                              const ServedModel& model,
                              text::RenderOptions& render) {
  ThinkingFields thinking;
  TRY_ASSIGN(const int64_t num_unknown, read_template_kwargs(reader, thinking));
  TRY(reader.read("reasoning_effort", thinking.effort));
  TRY(read_vendor_thinking(reader, thinking));
  TRY(apply_thinking(thinking, model, render));
  return num_unknown;
}

enum class ToolChoice { kNone, kAuto };

Result<ToolChoice> read_tool_choice(FieldReader& reader) {
  constexpr std::string_view kCannotForce = "a call cannot be forced yet; use \"auto\" or \"none\"";
  const json::Value* choice = reader.any("tool_choice");
  if (choice == nullptr) return ToolChoice::kAuto;
  if (choice->is_object()) return unsupported_field("tool_choice", kCannotForce);
  const std::string* name = choice->as_string();
  if (name == nullptr) return wrong_type("tool_choice", "a string or an object", *choice);
  if (*name == "none") return ToolChoice::kNone;
  if (*name == "auto") return ToolChoice::kAuto;
  if (*name == "required") return unsupported_field("tool_choice", kCannotForce);
  return wrong_value("tool_choice",
                     "expected \"none\", \"auto\", \"required\" or a named function");
}

Result<void> read_tools_into(FieldReader& reader, ChatRequest& request) {
  TRY_ASSIGN(const json::Array* tools, reader.array("tools"));
  TRY_ASSIGN(const ToolChoice choice, read_tool_choice(reader));
  bool parallel_tool_calls = true;  // the prompt format has no way to forbid several calls
  TRY(reader.read("parallel_tool_calls", parallel_tool_calls));
  TRY(reader.refuse("functions", "is superseded by tools"));
  TRY(reader.refuse("function_call", "is superseded by tool_choice"));
  if (tools == nullptr) return {};
  TRY_ASSIGN(json::Array functions, read_tools(*tools));
  if (choice == ToolChoice::kNone || functions.empty()) return {};
  attach_tools(request.messages, std::move(functions));
  request.parse_tool_calls = true;
  return {};
}

// A schema without `strict` is shown to the model; a guarantee needs constrained decoding.
Result<void> read_response_format(FieldReader& top, std::vector<text::Message>& messages) {
  TRY_ASSIGN(const json::Object* format, top.object("response_format"));
  if (format == nullptr) return {};
  FieldReader reader(*format, "response_format.");
  std::string type;
  TRY(reader.read("type", type));
  if (type == "text") return {};
  if (type == "json_object") {
    return unsupported_field("response_format.type",
                             "valid JSON cannot be guaranteed yet; ask for it in the prompt");
  }
  if (type != "json_schema") {
    return wrong_value("response_format.type", "expected text, json_object or json_schema");
  }
  TRY_ASSIGN(const json::Object* wrapper, reader.object("json_schema"));
  if (wrapper == nullptr) return wrong_value("response_format.json_schema", "is missing");
  FieldReader wrapped(*wrapper, "response_format.json_schema.");
  bool strict = false;
  TRY(wrapped.read("strict", strict));
  if (strict) {
    return unsupported_field(
        "response_format.json_schema.strict",
        "a schema cannot be enforced yet; without strict it is shown to the model");
  }
  TRY_ASSIGN(const json::Object* schema, wrapped.object("schema"));
  if (schema == nullptr) return wrong_value("response_format.json_schema.schema", "is missing");
  const bool has_system = messages.front().role == text::Role::kSystem;
  if (!has_system) messages.insert(messages.begin(), text::Message{.role = text::Role::kSystem});
  messages.front().response_format = json::Value(*schema);
  return {};
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
  const json::Value* messages = reader.any("messages");
  if (messages == nullptr) return wrong_value("messages", "is missing");
  if (!messages->is_array()) return wrong_type("messages", "an array", *messages);
  TRY_ASSIGN(request.messages, read_messages(*messages->as_array()));
  close_user_turn(request.messages);
  TRY_ASSIGN(const int64_t num_unknown_kwargs, read_thinking(reader, model, request.render));
  TRY(read_tools_into(reader, request));
  TRY(read_response_format(reader, request.messages));
  TRY(read_reasoning_output(reader, request));
  request.num_unknown_fields = reader.num_unknown() + num_unknown_kwargs;
  return request;
}

Result<std::vector<int32_t>> encode_chat(const ChatRequest& request,
                                         const text::Tokenizer& tokenizer) {
  TRY_ASSIGN(const text::Prompt prompt, text::render_chat(request.messages, request.render));
  return tokenizer.encode(prompt.text, prompt.special_ranges);
}

}  // namespace nibble::server
