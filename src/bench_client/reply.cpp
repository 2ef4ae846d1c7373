#include "bench_client/reply.h"

#include <fmt/format.h>

#include <initializer_list>
#include <utility>

#include "base/json.h"
#include "base/utf8.h"

namespace nibble::bench_client {
namespace {

constexpr size_t kMaxMessageBytes = 300;

const json::Value* find_path(const json::Value& value,
                             std::initializer_list<std::string_view> path) {
  const json::Value* current = &value;
  for (const std::string_view key : path) {
    current = current->find(key);
    if (current == nullptr) return nullptr;
  }
  return current;
}

std::optional<int64_t> integer(const json::Value* value) {
  return value == nullptr ? std::nullopt : value->as_int64();
}

std::string_view text_of(const json::Value* value) {
  const std::string* text = value == nullptr ? nullptr : value->as_string();
  return text == nullptr ? std::string_view() : *text;
}

// A name or a piece of arguments of any call.
bool has_tool_call_text(const json::Value* calls) {
  const json::Array* items = calls == nullptr ? nullptr : calls->as_array();
  if (items == nullptr) return false;
  for (const json::Value& call : *items) {
    if (!text_of(find_path(call, {"function", "name"})).empty()) return true;
    if (!text_of(find_path(call, {"function", "arguments"})).empty()) return true;
  }
  return false;
}

std::string shortened(std::string_view text) {
  std::string line = escape_for_display(text.substr(0, kMaxMessageBytes));
  if (text.size() > kMaxMessageBytes) line += "...";
  return line;
}

}  // namespace

std::string error_message(std::string_view body) {
  const Result<json::Value> parsed = json::parse(body);
  if (!parsed.ok()) return shortened(body);
  for (const auto path : {std::initializer_list<std::string_view>{"error", "message"},
                          std::initializer_list<std::string_view>{"message"},
                          std::initializer_list<std::string_view>{"error"},
                          std::initializer_list<std::string_view>{"detail"}}) {
    const std::string_view text = text_of(find_path(*parsed, path));
    if (!text.empty()) return shortened(text);
  }
  return shortened(body);
}

bool ReplyReader::feed(std::string_view bytes, TimePoint now) {
  if (reply_.failure) return false;
  if (is_stream_) {
    if (!events_.feed(bytes, [&](std::string_view data) { take_event(data, now); })) {
      fail("malformed", "an event is larger than 16 MiB");
    }
  } else {
    body_ += bytes;
    if (body_.size() > EventStreamParser::kMaxEventBytes) {
      fail("malformed", "the answer is larger than 16 MiB");
    }
  }
  return !reply_.failure;
}

Reply ReplyReader::finish(TimePoint now) {
  if (!is_stream_ && !reply_.failure) take_object(body_, now);
  const bool has_ended = is_done_ || !reply_.finish_reason.empty();
  if (!has_ended) fail("truncated", "the answer stopped before its end");
  if (reply_.token_times.empty() && reply_.completion_tokens.value_or(0) == 0) {
    fail("empty", "the answer has no token");
  }
  return std::move(reply_);
}

void ReplyReader::take_event(std::string_view data, TimePoint now) {
  if (reply_.failure || is_done_) return;
  if (data == "[DONE]") {
    is_done_ = true;
    return;
  }
  take_object(data, now);
}

// A chunk of a stream, or a whole answer: they differ in "delta" and "message" only.
void ReplyReader::take_object(std::string_view text, TimePoint now) {
  const Result<json::Value> parsed = json::parse(text);
  if (!parsed.ok()) return fail("malformed", shortened(text));
  if (const json::Value* error = parsed->find("error"); error != nullptr && !error->is_null()) {
    return fail("stream_error", error_message(text));
  }
  if (const json::Value* usage = parsed->find("usage"); usage != nullptr && usage->is_object()) {
    if (const auto count = integer(usage->find("prompt_tokens"))) reply_.prompt_tokens = count;
    if (const auto count = integer(usage->find("completion_tokens"))) {
      reply_.completion_tokens = count;
    }
    const json::Value* cached = find_path(*usage, {"prompt_tokens_details", "cached_tokens"});
    if (const auto count = integer(cached)) reply_.cached_tokens = count;
  }
  const json::Value* choices = parsed->find("choices");
  const json::Array* items = choices == nullptr ? nullptr : choices->as_array();
  if (items == nullptr || items->empty()) return;
  const json::Value& choice = items->front();
  const json::Value* message = choice.find("delta");
  if (message == nullptr) message = choice.find("message");
  std::string_view content = text_of(choice.find("text"));
  std::string_view reasoning;
  bool has_call = false;
  if (message != nullptr) {
    content = text_of(message->find("content"));
    reasoning = text_of(message->find("reasoning_content"));
    if (reasoning.empty()) reasoning = text_of(message->find("reasoning"));
    has_call = has_tool_call_text(message->find("tool_calls"));
  }
  reply_.text += content;
  const bool has_tokens = !content.empty() || !reasoning.empty() || has_call;
  if (has_tokens && is_stream_) reply_.token_times.push_back(now);
  const std::string_view reason = text_of(choice.find("finish_reason"));
  if (!reason.empty()) reply_.finish_reason = reason;
}

void ReplyReader::fail(std::string kind, std::string message) {
  if (!reply_.failure) reply_.failure = Failure{std::move(kind), std::move(message)};
}

}  // namespace nibble::bench_client
