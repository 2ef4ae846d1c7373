#include "server/chat_reply.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "server/http_message.h"
#include "text/chat_protocol.h"

namespace nibble::server {
namespace {

// A call that was cut off is never reported as one that can be executed.
const char* finish_reason(engine::FinishReason reason, text::OutputEnd end) {
  if (end == text::OutputEnd::kToolCalls) return "tool_calls";
  if (end == text::OutputEnd::kCutToolCall || reason == engine::FinishReason::kLength)
    return "length";
  return "stop";
}

// How the sequence ended, for the last chunk or the choice of a whole response.
void set_finish(json::Object& choice, const engine::Finish& finish, text::OutputEnd end) {
  choice.set("finish_reason", finish_reason(finish.reason, end));
  choice.set("stop_reason", stop_reason(finish));
  choice.set("matched_stop", stop_reason(finish));
  if (end == text::OutputEnd::kInReasoning) {
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
    : options_(std::move(options)),
      tokenizer_(tokenizer),
      think_end_id_(tokenizer.added_token(text::kThinkClose)) {
  for (int32_t i = 0; i < options_.num_choices; ++i) {
    choices_.emplace_back(options_.parser);
    choices_.back().is_reasoning = options_.parser.thinking == text::ThinkingMode::kThinking;
  }
}

void ChatReply::add(int32_t index, engine::Output&& output, std::string* events) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  CHECK(!choice.finish) << "output after the end";
  count_tokens(choice, output);
  for (const engine::TokenLogprob& logprob : output.logprobs) {
    choice.logprobs.emplace_back(logprob_entry(logprob));
  }
  text::OutputDelta delta = choice.parser.push(output.text);
  if (events != nullptr) append_delta(index, delta, *events);
  if (!output.finish) return;
  delta = choice.parser.finish();
  if (events != nullptr) append_delta(index, delta, *events);
  choice.finish = std::move(output.finish);
  choice.usage.completion_tokens = choice.finish->usage.completion_tokens;
  choice.usage.cached_tokens = choice.finish->usage.cached_tokens;
  ++num_finished_;
  if (events != nullptr) append_finish(index, *events);
}

void ChatReply::count_tokens(Choice& choice, const engine::Output& output) const {
  for (const int32_t id : output.token_ids) {
    ++choice.usage.completion_tokens;
    if (choice.is_reasoning && think_end_id_ == id) choice.is_reasoning = false;
    if (choice.is_reasoning) ++choice.usage.reasoning_tokens;
  }
}

UsageCounts ChatReply::usage() const {
  UsageCounts total;
  total.prompt_tokens = options_.num_prompt_tokens;
  total.cached_tokens = choices_.front().usage.cached_tokens;
  for (const Choice& choice : choices_) {
    total.completion_tokens += choice.usage.completion_tokens;
    total.reasoning_tokens +=
        std::min(choice.usage.reasoning_tokens, choice.usage.completion_tokens);
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
    append_event(events, chunk({std::move(choice)}));
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

void ChatReply::append_delta(int32_t index, const text::OutputDelta& delta, std::string& events) {
  if (!delta.reasoning.empty() && options_.include_reasoning) {
    append_chunk(index, json::make_object({{"reasoning_content", delta.reasoning}}), events);
  }
  if (!delta.content.empty()) {
    append_chunk(index, json::make_object({{"content", delta.content}}), events);
  }
  Choice& choice = choices_[static_cast<size_t>(index)];
  for (const text::OutputDelta::ToolCallDelta& call : delta.tool_calls) {
    const auto append_call = [&](json::Object fragment) {
      append_chunk(
          index, json::make_object({{"tool_calls", json::Array{std::move(fragment)}}}), events);
    };
    if (!call.name.empty()) {
      choice.call_ids.push_back(make_id("call_"));
      append_call(json::make_object(
          {{"index", call.index},
           {"id", choice.call_ids.back()},
           {"type", "function"},
           {"function", json::make_object({{"name", call.name}, {"arguments", ""}})}}));
    }
    if (call.arguments.empty()) continue;
    append_call(json::make_object(
        {{"index", call.index}, {"function", json::make_object({{"arguments", call.arguments}})}}));
  }
}

void ChatReply::append_chunk(int32_t index, json::Object delta, std::string& events) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  json::Object object = json::make_object({{"index", index},
                                           {"delta", std::move(delta)},
                                           {"logprobs", take_logprobs(choice)},
                                           {"finish_reason", nullptr}});
  append_event(events, chunk({std::move(object)}));
}

void ChatReply::append_finish(int32_t index, std::string& events) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  json::Object object = json::make_object(
      {{"index", index}, {"delta", json::Object()}, {"logprobs", take_logprobs(choice)}});
  set_finish(object, *choice.finish, choice.parser.end());
  append_event(events, chunk({std::move(object)}));
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
  return object;
}

json::Object ChatReply::choice_object(int32_t index) const {
  const Choice& choice = choices_[static_cast<size_t>(index)];
  json::Object object = json::make_object({{"index", index}, {"message", message_object(choice)}});
  json::Value logprobs;
  if (options_.wants_logprobs) {
    logprobs = json::make_object({{"content", choice.logprobs}, {"refusal", nullptr}});
  }
  object.set("logprobs", std::move(logprobs));
  set_finish(object, *choice.finish, choice.parser.end());
  return object;
}

// Content is null only beside tool calls: generated tokens never come back as an empty answer
// without a reason.
json::Object ChatReply::message_object(const Choice& choice) const {
  const text::Message& message = choice.parser.message();
  json::Object object = json::make_object({{"role", "assistant"}});
  const bool is_null = message.content.empty() && !message.tool_calls.empty();
  object.set("content", is_null ? json::Value() : json::Value(message.content));
  if (message.reasoning_content && options_.include_reasoning) {
    object.set("reasoning_content", *message.reasoning_content);
  }
  if (message.tool_calls.empty()) return object;
  json::Array calls;
  for (const text::ToolCall& call : message.tool_calls) {
    calls.emplace_back(call_object(make_id("call_"), call));
  }
  object.set("tool_calls", std::move(calls));
  return object;
}

// --- logprobs

json::Object ChatReply::token_entry(int32_t id, float logprob) const {
  json::Array bytes;
  for (const char byte : tokenizer_.token_bytes(id)) {
    bytes.emplace_back(static_cast<int32_t>(static_cast<unsigned char>(byte)));
  }
  return json::make_object({{"token", token_text(tokenizer_, id)},
                            {"logprob", finite_logprob(logprob)},
                            {"bytes", std::move(bytes)}});
}

json::Object ChatReply::logprob_entry(const engine::TokenLogprob& logprob) const {
  json::Object entry = token_entry(logprob.token_id, logprob.logprob);
  json::Array top;
  for (const auto& [id, value] : logprob.top) top.emplace_back(token_entry(id, value));
  entry.set("top_logprobs", std::move(top));
  return entry;
}

}  // namespace nibble::server
