#include "server/chat_reply.h"

#include <utility>

#include "base/check.h"
#include "server/error_response.h"

namespace nibble::server {
namespace {

const char* finish_reason(TurnEnd end) {
  switch (end) {
    case TurnEnd::kStop:
      return "stop";
    case TurnEnd::kLength:
      return "length";
    case TurnEnd::kToolCalls:
      return "tool_calls";
  }
  return "stop";
}

// How the sequence ended, for the last chunk or the choice of a whole response.
void set_finish(json::Object& choice, const AssistantTurn& turn) {
  choice.set("finish_reason", finish_reason(turn.end()));
  choice.set("stop_reason", stop_reason(turn.finish()));
  choice.set("matched_stop", stop_reason(turn.finish()));
  if (turn.ended_in_reasoning()) {
    choice.set("finish_details", json::make_object({{"ended_in", "reasoning"}}));
  }
}

json::Object call_object(const std::string& id, const text::ToolCall& call) {
  return json::make_object(
      {{"id", id},
       {"type", "function"},
       {"function", json::make_object({{"name", call.name}, {"arguments", call.arguments}})}});
}

}  // namespace

ChatReply::ChatReply(Options options, const text::Tokenizer& tokenizer)
    : options_(std::move(options)), tokenizer_(tokenizer) {
  for (int32_t i = 0; i < options_.num_choices; ++i) {
    choices_.push_back({.turn = AssistantTurn(options_.parser, "call_", tokenizer),
                        .logprobs = {},
                        .token_ids = {}});
  }
}

void ChatReply::add(int32_t index, engine::Output&& output, std::string* events) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  for (const engine::TokenLogprob& logprob : output.logprobs) {
    choice.logprobs.emplace_back(logprob_entry(tokenizer_, logprob));
  }
  if (index == 0 && options_.wants_prompt_logprobs && prompt_logprobs_.is_null()) {
    prompt_logprobs_ = prompt_logprobs_array(tokenizer_, output.prompt_logprobs);
  }
  if (options_.prompt_ids) {
    choice.token_ids.insert(
        choice.token_ids.end(), output.token_ids.begin(), output.token_ids.end());
  }
  const std::vector<TurnPiece> pieces = choice.turn.add(std::move(output));
  if (choice.turn.is_finished()) ++num_finished_;
  if (events == nullptr) return;
  for (const TurnPiece& piece : pieces) append_piece(index, piece, *events);
  if (choice.turn.is_finished()) append_finish(index, *events);
}

UsageCounts ChatReply::usage() const {
  UsageCounts total;
  total.prompt_tokens = options_.num_prompt_tokens;
  total.cached_tokens = choices_.front().turn.usage().cached_tokens;
  for (const Choice& choice : choices_) {
    total.completion_tokens += choice.turn.usage().completion_tokens;
    total.reasoning_tokens += choice.turn.usage().reasoning_tokens;
  }
  return total;
}

// --- streaming

std::string ChatReply::begin_events() const {
  std::string events;
  for (int32_t i = 0; i < options_.num_choices; ++i) {
    json::Object delta = json::make_object({{"role", "assistant"}, {"content", ""}});
    json::Object choice = json::make_object({{"index", i},
                                             {"delta", std::move(delta)},
                                             {"logprobs", nullptr},
                                             {"finish_reason", nullptr}});
    json::Object first = chunk({std::move(choice)});
    if (options_.prompt_ids) first.set("prompt_token_ids", id_array(*options_.prompt_ids));
    append_event(events, first);
  }
  return events;
}

std::string ChatReply::end_events() const {
  std::string events;
  if (options_.envelope.include_usage) {
    json::Object last = chunk({});
    last.set("usage", usage_object(usage()));
    append_event(events, last);
  }
  events += kDoneEvent;
  return events;
}

std::string ChatReply::error_events(const Error& error) const {
  std::string events;
  append_event(events, error_body(http_status(error), error));
  return events;
}

void ChatReply::append_piece(int32_t index, const TurnPiece& piece, std::string& events) {
  const auto append_call = [&](json::Object fragment) {
    append_chunk(
        index, json::make_object({{"tool_calls", json::Array{std::move(fragment)}}}), events);
  };
  json::Object delta;
  switch (piece.kind) {
    case TurnPiece::Kind::kReasoning:
      if (!options_.include_reasoning) return;
      set_reasoning(delta, piece.text);
      return append_chunk(index, std::move(delta), events);
    case TurnPiece::Kind::kContent:
      return append_chunk(index, json::make_object({{"content", piece.text}}), events);
    case TurnPiece::Kind::kCallBegin:
      return append_call(json::make_object(
          {{"index", piece.call},
           {"id", piece.call_id},
           {"type", "function"},
           {"function", json::make_object({{"name", piece.text}, {"arguments", ""}})}}));
    case TurnPiece::Kind::kCallArguments:
      return append_call(json::make_object(
          {{"index", piece.call}, {"function", json::make_object({{"arguments", piece.text}})}}));
  }
}

void ChatReply::append_chunk(int32_t index, json::Object delta, std::string& events) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  json::Object object = json::make_object({{"index", index},
                                           {"delta", std::move(delta)},
                                           {"logprobs", take_logprobs(choice)},
                                           {"finish_reason", nullptr}});
  set_token_ids(object, std::exchange(choice.token_ids, {}));
  append_event(events, chunk({std::move(object)}));
}

void ChatReply::append_finish(int32_t index, std::string& events) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  json::Object object = json::make_object(
      {{"index", index}, {"delta", json::Object()}, {"logprobs", take_logprobs(choice)}});
  set_token_ids(object, std::exchange(choice.token_ids, {}));
  set_finish(object, choice.turn);
  append_event(events, chunk({std::move(object)}));
}

void ChatReply::set_token_ids(json::Object& choice, json::Array token_ids) const {
  if (options_.prompt_ids) choice.set("token_ids", std::move(token_ids));
}

void ChatReply::set_reasoning(json::Object& message, const std::string& text) const {
  for (const std::string& field : options_.reasoning_fields) message.set(field, text);
}

json::Object ChatReply::chunk(json::Array choices) const {
  json::Object object =
      reply_object(options_.envelope, "chat.completion.chunk", std::move(choices));
  if (options_.envelope.continuous_usage) {
    object.set("usage", usage_object(usage()));
  } else if (options_.envelope.include_usage) {
    object.set("usage", nullptr);
  }
  return object;
}

// Moves what has gathered since the last chunk, so that streams stay small.
json::Value ChatReply::take_logprobs(Choice& choice) const {
  if (!options_.wants_logprobs || choice.logprobs.empty()) return {};
  return json::make_object({{"content", std::exchange(choice.logprobs, {})}, {"refusal", nullptr}});
}

// --- the whole response

json::Value ChatReply::body() const {
  CHECK(is_finished());
  json::Array choices;
  for (int32_t i = 0; i < options_.num_choices; ++i) choices.emplace_back(choice_object(i));
  json::Object object = reply_object(options_.envelope, "chat.completion", std::move(choices));
  object.set("usage", usage_object(usage()));
  if (options_.prompt_ids) object.set("prompt_token_ids", id_array(*options_.prompt_ids));
  if (options_.wants_prompt_logprobs) object.set("prompt_logprobs", prompt_logprobs_);
  return object;
}

json::Object ChatReply::choice_object(int32_t index) const {
  const Choice& choice = choices_[static_cast<size_t>(index)];
  json::Object object =
      json::make_object({{"index", index}, {"message", message_object(choice.turn)}});
  json::Value logprobs;
  if (options_.wants_logprobs) {
    logprobs = json::make_object({{"content", choice.logprobs}, {"refusal", nullptr}});
  }
  object.set("logprobs", std::move(logprobs));
  set_token_ids(object, choice.token_ids);
  set_finish(object, choice.turn);
  return object;
}

// Content is null only beside tool calls: generated tokens never come back as an empty answer
// without a reason.
json::Object ChatReply::message_object(const AssistantTurn& turn) const {
  const text::Message& message = turn.message();
  json::Object object = json::make_object({{"role", "assistant"}});
  const bool is_null = message.content.empty() && !message.tool_calls.empty();
  object.set("content", is_null ? json::Value() : json::Value(message.content));
  if (message.reasoning_content && options_.include_reasoning) {
    set_reasoning(object, *message.reasoning_content);
  }
  if (message.tool_calls.empty()) return object;
  json::Array calls;
  for (size_t i = 0; i < message.tool_calls.size(); ++i) {
    calls.emplace_back(call_object(turn.call_ids()[i], message.tool_calls[i]));
  }
  object.set("tool_calls", std::move(calls));
  return object;
}

}  // namespace nibble::server
