#include "server/generation_planner.h"

#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <utility>

#include "base/log.h"
#include "server/anthropic_request.h"
#include "server/completion_request.h"
#include "server/request_body.h"
#include "server/response_items.h"
#include "server/responses_request.h"
#include "text/chat_protocol.h"

namespace nibble::server {
namespace {

constexpr std::string_view kSamplingNote =
    "temperature and penalties act in thinking mode too; the vendor's API ignores them there";

// What the output parser needs to see of the specials that are otherwise skipped.
std::vector<int32_t> markup_ids(const text::Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (const std::string_view token : {text::kThinkOpen, text::kThinkClose, text::kDsmlToken}) {
    if (const auto id = tokenizer.added_token(token)) ids.push_back(*id);
  }
  return ids;
}

// One engine request per choice. Choices of the same prompt get neighbouring seeds, so that they
// differ and can be reproduced.
void add_sequences(GenerationPlan& plan,
                   const std::string& id,
                   const std::vector<int32_t>& prompt_ids,
                   const GenerationFields& fields,
                   KeyId owner,
                   const std::shared_ptr<const grammar::Grammar>& grammar) {
  plan.client_id = fields.client_id;
  for (int32_t k = 0; k < fields.n; ++k) {
    engine::Request sequence;
    sequence.id = fmt::format("{}-{}", id, plan.sequences.size());
    sequence.prompt_ids = prompt_ids;
    sequence.sampling = fields.sampling;
    sequence.priority = fields.priority;
    sequence.cache_salt = fields.cache_salt;
    if (owner != KeyId{}) sequence.owner = fmt::format("{:016x}", owner.value);
    sequence.grammar = grammar;
    if (sequence.sampling.seed) *sequence.sampling.seed += static_cast<uint64_t>(k);
    plan.sequences.push_back(std::move(sequence));
  }
}

text::OutputParser::Options parser_options(const ChatRequest& chat) {
  const auto thinking =
      chat.starts_in_reasoning() ? text::ThinkingMode::kThinking : text::ThinkingMode::kChat;
  return {.thinking = thinking, .parse_tool_calls = chat.parse_tool_calls};
}

std::optional<std::vector<int32_t>> returned_ids(const GenerationFields& fields,
                                                 const std::vector<int32_t>& prompt_ids) {
  if (!fields.return_token_ids) return std::nullopt;
  return prompt_ids;
}

// Since 1970.
int64_t now_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

}  // namespace

ReplyEnvelope GenerationPlanner::envelope(std::string_view id_prefix,
                                          const GenerationFields& fields) const {
  return {.id = make_id(id_prefix),
          .model = fields.model,
          .created = now_seconds(),
          .system_fingerprint = "nibble-" + version_,
          .include_usage = fields.include_usage,
          .continuous_usage = fields.continuous_usage};
}

Result<void> GenerationPlanner::limit_reasoning(GenerationPlan& plan,
                                                const ChatRequest& chat) const {
  if (!chat.fields.thinking_budget || !chat.starts_in_reasoning()) return {};
  const std::optional<int32_t> end_id = tokenizer_.added_token(text::kThinkClose);
  if (!end_id) {
    return unsupported_field("thinking_token_budget", "the tokenizer has no token for </think>");
  }
  for (engine::Request& sequence : plan.sequences) {
    sequence.reasoning_budget = {.num_tokens = *chat.fields.thinking_budget,
                                 .end_token_id = *end_id};
  }
  return {};
}

Result<void> GenerationPlanner::add_chat_sequences(GenerationPlan& plan,
                                                   ChatRequest& chat,
                                                   const std::vector<int32_t>& prompt_ids,
                                                   KeyId owner) const {
  TRY_ASSIGN(
      const CompiledConstraint constraint,
      compile_constraint(chat.constraint, chat.starts_in_reasoning(), model_.grammars.get()));
  chat.fields.sampling.visible_special_ids = markup_ids(tokenizer_);
  add_sequences(plan, make_id("chat-"), prompt_ids, chat.fields, owner, constraint.grammar);
  TRY(limit_reasoning(plan, chat));
  // All choices have the same prompt: the first tells its logprobs.
  for (size_t k = 1; k < plan.sequences.size(); ++k) {
    plan.sequences[k].sampling.prompt_logprobs.reset();
  }
  if (!constraint.note.empty()) plan.headers.push_back({"x-nibble-note", constraint.note});
  const bool is_thinking = chat.render.thinking == text::ThinkingMode::kThinking;
  if (is_thinking && chat.fields.shapes_sampling) {
    plan.headers.push_back({"x-nibble-note", std::string(kSamplingNote)});
  }
  return {};
}

Result<GenerationPlan> GenerationPlanner::chat(const HttpRequest& request) const {
  TRY_ASSIGN(const json::Value body, parse_body(request, model_.max_context));
  TRY_ASSIGN(ChatRequest chat, parse_chat_request(body, model_));
  metrics_.on_unknown_fields(chat.num_unknown_fields);
  TRY_ASSIGN(const std::vector<int32_t> prompt_ids, encode_chat(chat, tokenizer_));
  ChatReply reply({.envelope = envelope("chatcmpl-", chat.fields),
                   .parser = parser_options(chat),
                   .include_reasoning = chat.include_reasoning,
                   .reasoning_fields = model_.reasoning_fields,
                   .wants_logprobs = chat.fields.sampling.logprobs,
                   .wants_prompt_logprobs = chat.fields.sampling.prompt_logprobs.has_value(),
                   .num_choices = chat.fields.n,
                   .num_prompt_tokens = static_cast<int32_t>(prompt_ids.size()),
                   .prompt_ids = returned_ids(chat.fields, prompt_ids)},
                  tokenizer_);
  GenerationPlan plan{
      .reply = std::move(reply), .prompt_param = "messages", .stream = chat.fields.stream};
  TRY(add_chat_sequences(plan, chat, prompt_ids, request.owner));
  return plan;
}

Result<GenerationPlan> GenerationPlanner::completion(const HttpRequest& request) const {
  TRY_ASSIGN(const json::Value body, parse_body(request, model_.max_context));
  TRY_ASSIGN(CompletionRequest completion, parse_completion_request(body, model_, tokenizer_));
  metrics_.on_unknown_fields(completion.num_unknown_fields);
  CompletionReply reply({.envelope = envelope("cmpl-", completion.fields),
                         .prompts = completion.prompts,
                         .n = completion.fields.n,
                         .echo = completion.echo,
                         .is_echo_only = completion.is_echo_only,
                         .wants_logprobs = completion.wants_logprobs,
                         .wants_prompt_logprobs = completion.wants_prompt_logprobs,
                         .return_token_ids = completion.fields.return_token_ids},
                        tokenizer_);
  GenerationPlan plan{
      .reply = std::move(reply), .prompt_param = "prompt", .stream = completion.fields.stream};
  TRY_ASSIGN(const CompiledConstraint constraint,
             compile_constraint(completion.constraint, false, model_.grammars.get()));
  const std::string id = make_id("completion-");
  for (const CompletionPrompt& prompt : completion.prompts) {
    add_sequences(plan, id, prompt.ids, completion.fields, request.owner, constraint.grammar);
  }
  return plan;
}

Result<json::Array> GenerationPlanner::find_items(KeyId owner,
                                                  const std::string& response_id) const {
  constexpr size_t kMaxShown = 100;
  const std::string shown = response_id.substr(0, kMaxShown);
  const std::shared_ptr<const StoredResponse> stored = responses_.find(owner, response_id);
  if (stored == nullptr) {
    return Error{Errc::kInvalidArgument,
                 fmt::format("previous_response_id: no response '{}' is kept here", shown),
                 "previous_response_not_found",
                 "previous_response_id"};
  }
  TRY_ASSIGN(const json::Value body, stored->parse_body());
  const std::string& status = *body.find("status")->as_string();
  if (status != "completed" && status != "incomplete") {
    return wrong_value("previous_response_id",
                       fmt::format("the response '{}' has not ended well", shown));
  }
  TRY_ASSIGN(json::Array items, stored->parse_input());
  for (const json::Value& item : *body.find("output")->as_array()) items.push_back(item);
  return items;
}

// A response in the background that was deleted meanwhile stays so.
std::function<void(StoredResponse)> GenerationPlanner::keeper(KeyId owner,
                                                              const std::string& response_id,
                                                              bool is_background) const {
  return [&responses = responses_, owner, response_id, is_background, is_first = true](
             StoredResponse response) mutable {
    const bool is_gone =
        is_background && !is_first && responses.find(owner, response_id) == nullptr;
    is_first = false;
    if (is_gone) return;
    if (!responses.takes(response_id, response)) response.events.clear();
    const Result<void> kept = responses.put(owner, response_id, std::move(response));
    if (!kept.ok()) log_warning("{}: {}", response_id, kept.error().message);
  };
}

Result<GenerationPlan> GenerationPlanner::response(const HttpRequest& request) const {
  TRY_ASSIGN(const json::Value body, parse_body(request, model_.max_context));
  TRY_ASSIGN(ResponsesRequest parsed,
             parse_responses_request(body, model_, [&](const std::string& response_id) {
               return find_items(request.owner, response_id);
             }));
  ChatRequest& chat = parsed.chat;
  metrics_.on_unknown_fields(chat.num_unknown_fields);
  TRY_ASSIGN(const std::vector<int32_t> prompt_ids, encode_chat(chat, tokenizer_));
  const std::string id = make_id("resp_");
  name_items(parsed.items);
  ResponsesReply reply({.id = id,
                        .model = chat.fields.model,
                        .created = now_seconds(),
                        .settings = std::move(parsed.settings),
                        .items = std::move(parsed.items),
                        .parser = parser_options(chat),
                        .custom_tools = std::move(parsed.custom_tools),
                        .wants_encrypted_reasoning = parsed.wants_encrypted_reasoning,
                        .wants_logprobs = chat.fields.sampling.logprobs,
                        .num_prompt_tokens = static_cast<int32_t>(prompt_ids.size())},
                       tokenizer_);
  GenerationPlan plan{
      .reply = std::move(reply), .prompt_param = "input", .stream = chat.fields.stream};
  plan.response_id = id;
  plan.is_background = parsed.background;
  if (parsed.store) plan.keep = keeper(request.owner, id, parsed.background);
  TRY(add_chat_sequences(plan, chat, prompt_ids, request.owner));
  if (!parsed.note.empty()) plan.headers.push_back({"x-nibble-note", parsed.note});
  return plan;
}

Result<GenerationPlan> GenerationPlanner::anthropic_message(const HttpRequest& request) const {
  TRY_ASSIGN(const json::Value body, parse_body(request, model_.max_context));
  TRY_ASSIGN(ChatRequest chat, parse_anthropic_request(body, model_, AnthropicPurpose::kMessage));
  metrics_.on_unknown_fields(chat.num_unknown_fields);
  TRY_ASSIGN(const std::vector<int32_t> prompt_ids, encode_chat(chat, tokenizer_));
  AnthropicReply reply({.id = make_id("msg_"),
                        .model = chat.fields.model,
                        .parser = parser_options(chat),
                        .include_reasoning = chat.include_reasoning,
                        .num_prompt_tokens = static_cast<int32_t>(prompt_ids.size())},
                       tokenizer_);
  GenerationPlan plan{
      .reply = std::move(reply), .prompt_param = "messages", .stream = chat.fields.stream};
  plan.headers.push_back({"request-id", request.id});
  plan.ping = AnthropicReply::kPing;
  plan.adapt_error = &to_anthropic_error;
  TRY(add_chat_sequences(plan, chat, prompt_ids, request.owner));
  return plan;
}

Result<int32_t> GenerationPlanner::count_anthropic_tokens(const HttpRequest& request) const {
  TRY_ASSIGN(const json::Value body, parse_body(request, model_.max_context));
  TRY_ASSIGN(const ChatRequest chat,
             parse_anthropic_request(body, model_, AnthropicPurpose::kCountTokens));
  metrics_.on_unknown_fields(chat.num_unknown_fields);
  TRY_ASSIGN(const std::vector<int32_t> prompt_ids, encode_chat(chat, tokenizer_));
  return static_cast<int32_t>(prompt_ids.size());
}

}  // namespace nibble::server
