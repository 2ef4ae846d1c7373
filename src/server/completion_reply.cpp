#include "server/completion_reply.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "server/error_response.h"

namespace nibble::server {
namespace {

int64_t count_code_points(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  });
}

const char* finish_reason(engine::FinishReason reason) {
  return reason == engine::FinishReason::kLength ? "length" : "stop";
}

}  // namespace

CompletionReply::CompletionReply(Options options, const text::Tokenizer& tokenizer)
    : options_(std::move(options)),
      tokenizer_(tokenizer),
      choices_(options_.prompts.size() * static_cast<size_t>(options_.n)) {}

const CompletionPrompt& CompletionReply::prompt_of(int32_t choice) const {
  return options_.prompts[static_cast<size_t>(choice / options_.n)];
}

void CompletionReply::add(int32_t index, engine::Output&& output, std::string* events) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  CHECK(!choice.finish) << "output after the end";
  if (options_.wants_prompt_logprobs && !choice.has_begun) {
    choice.prompt_logprobs = prompt_logprobs_array(tokenizer_, output.prompt_logprobs);
  }
  if (options_.echo && !choice.has_begun) add_prompt(index, output.prompt_logprobs);
  choice.has_begun = true;
  if (!options_.is_echo_only) {
    choice.text += output.text;
    if (options_.return_token_ids) {
      choice.token_ids.insert(
          choice.token_ids.end(), output.token_ids.begin(), output.token_ids.end());
    }
    choice.usage.completion_tokens += static_cast<int64_t>(output.token_ids.size());
    for (const engine::TokenLogprob& logprob : output.logprobs) {
      add_logprob(choice, logprob.token_id, &logprob);
    }
  }
  if (output.finish) {
    choice.finish = std::move(output.finish);
    choice.usage.cached_tokens = choice.finish->usage.cached_tokens;
    if (!options_.is_echo_only)
      choice.usage.completion_tokens = choice.finish->usage.completion_tokens;
    ++num_finished_;
  }
  if (events != nullptr && (!choice.text.empty() || choice.finish)) append_chunk(index, *events);
}

// The first prompt token has no probability: nothing precedes it.
void CompletionReply::add_prompt(int32_t index,
                                 const std::vector<engine::TokenLogprob>& prompt_logprobs) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  const CompletionPrompt& prompt = prompt_of(index);
  choice.text += prompt.text;
  if (!options_.wants_logprobs) return;
  add_logprob(choice, prompt.ids.front(), nullptr);
  for (const engine::TokenLogprob& logprob : prompt_logprobs) {
    add_logprob(choice, logprob.token_id, &logprob);
  }
}

void CompletionReply::add_logprob(Choice& choice,
                                  int32_t id,
                                  const engine::TokenLogprob* logprob) const {
  const std::string text = token_text(tokenizer_, id);
  choice.logprobs.tokens.emplace_back(text);
  choice.logprobs.text_offset.emplace_back(choice.offset);
  choice.offset += count_code_points(text);
  if (logprob == nullptr) {
    choice.logprobs.token_logprobs.emplace_back(nullptr);
    choice.logprobs.top_logprobs.emplace_back(nullptr);
    return;
  }
  choice.logprobs.token_logprobs.emplace_back(finite_logprob(logprob->logprob));
  json::Object top;
  for (const auto& [other, value] : logprob->top) {
    // Tokens that are parts of characters may share a text; the likelier one keeps it.
    top.insert(token_text(tokenizer_, other), finite_logprob(value));
  }
  choice.logprobs.top_logprobs.emplace_back(std::move(top));
}

UsageCounts CompletionReply::usage() const {
  UsageCounts total;
  for (const CompletionPrompt& prompt : options_.prompts) {
    total.prompt_tokens += static_cast<int64_t>(prompt.ids.size());
  }
  for (size_t i = 0; i < choices_.size(); ++i) {
    total.completion_tokens += choices_[i].usage.completion_tokens;
    if (i % static_cast<size_t>(options_.n) == 0)
      total.cached_tokens += choices_[i].usage.cached_tokens;
  }
  return total;
}

json::Object CompletionReply::choice_object(int32_t index, Choice&& choice) const {
  json::Value logprobs;
  if (options_.wants_logprobs) {
    logprobs = json::make_object({{"tokens", std::move(choice.logprobs.tokens)},
                                  {"token_logprobs", std::move(choice.logprobs.token_logprobs)},
                                  {"top_logprobs", std::move(choice.logprobs.top_logprobs)},
                                  {"text_offset", std::move(choice.logprobs.text_offset)}});
  }
  json::Object object = json::make_object({{"index", index},
                                           {"text", std::move(choice.text)},
                                           {"logprobs", std::move(logprobs)},
                                           {"finish_reason", nullptr}});
  if (options_.return_token_ids) {
    object.set("prompt_token_ids", id_array(prompt_of(index).ids));
    object.set("token_ids", std::move(choice.token_ids));
  }
  if (options_.wants_prompt_logprobs) {
    object.set("prompt_logprobs", std::move(choice.prompt_logprobs));
  }
  if (!choice.finish) return object;
  object.set("finish_reason", finish_reason(choice.finish->reason));
  object.set("stop_reason", stop_reason(*choice.finish));
  object.set("matched_stop", stop_reason(*choice.finish));
  return object;
}

void CompletionReply::append_chunk(int32_t index, std::string& events) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  Choice sent;
  sent.text = std::exchange(choice.text, {});
  sent.logprobs = std::exchange(choice.logprobs, {});
  sent.token_ids = std::exchange(choice.token_ids, {});
  sent.finish = choice.finish;
  json::Object chunk =
      reply_object(options_.envelope, "text_completion", {choice_object(index, std::move(sent))});
  if (options_.envelope.continuous_usage) {
    chunk.set("usage", usage_object(usage()));
  } else if (options_.envelope.include_usage) {
    chunk.set("usage", nullptr);
  }
  append_event(events, chunk);
}

std::string CompletionReply::end_events() const {
  std::string events;
  if (options_.envelope.include_usage) {
    json::Object last = reply_object(options_.envelope, "text_completion", {});
    last.set("usage", usage_object(usage()));
    append_event(events, last);
  }
  events += kDoneEvent;
  return events;
}

std::string CompletionReply::error_events(const Error& error) const {
  std::string events;
  append_event(events, error_body(http_status(error), error));
  return events;
}

json::Value CompletionReply::body() const {
  CHECK(is_finished());
  json::Array choices;
  for (int32_t i = 0; i < num_choices(); ++i) {
    choices.emplace_back(choice_object(i, Choice(choices_[static_cast<size_t>(i)])));
  }
  json::Object object = reply_object(options_.envelope, "text_completion", std::move(choices));
  object.set("usage", usage_object(usage()));
  return object;
}

}  // namespace nibble::server
