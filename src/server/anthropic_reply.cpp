#include "server/anthropic_reply.h"

#include <fmt/chrono.h>

#include <utility>

#include "base/check.h"
#include "server/error_response.h"

namespace nibble::server {
namespace {

// The protocol's status of a server that has no room for the request now.
constexpr int kOverloaded = 529;

// The protocol wants one on thinking blocks. Nothing is signed here: clients send the thinking
// itself back.
constexpr std::string_view kSignature = "unsigned";

const char* error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
    case kOverloaded:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

json::Object error_object(int status, std::string_view message) {
  return json::make_object(
      {{"type", "error"},
       {"error", json::make_object({{"type", error_type(status)}, {"message", message}})}});
}

const char* stop_reason_name(const AssistantTurn& turn) {
  switch (turn.end()) {
    case TurnEnd::kToolCalls:
      return "tool_use";
    case TurnEnd::kLength:
      return "max_tokens";
    case TurnEnd::kStop:
      break;
  }
  return turn.finish().matched_stop.empty() ? "end_turn" : "stop_sequence";
}

void set_stop(json::Object& object, const AssistantTurn& turn) {
  const bool is_sequence = turn.end() == TurnEnd::kStop && !turn.finish().matched_stop.empty();
  object.set("stop_reason", stop_reason_name(turn));
  object.set("stop_sequence",
             is_sequence ? json::Value(turn.finish().matched_stop) : json::Value());
}

// The arguments of a complete call are an object, unless it is nested deeper than JSON is read
// here; then their text is passed on under a name of its own.
json::Value tool_input(const std::string& arguments) {
  Result<json::Value> parsed = json::parse(arguments);
  if (parsed.ok() && parsed->is_object()) return *std::move(parsed);
  return json::make_object({{"arguments", arguments}});
}

}  // namespace

AnthropicReply::AnthropicReply(Options options, const text::Tokenizer& tokenizer)
    : options_(std::move(options)), turn_(options_.parser, "toolu_", tokenizer) {}

void AnthropicReply::add(int32_t, engine::Output&& output, std::string* events) {
  for (const TurnPiece& piece : turn_.add(std::move(output))) {
    if (piece.kind == TurnPiece::Kind::kReasoning && !options_.include_reasoning) continue;
    const bool continues = !blocks_.empty() && continues_block(piece, blocks_.back().kind);
    if (!continues) begin_block(piece, events);
    if (piece.kind == TurnPiece::Kind::kCallBegin) continue;
    blocks_.back().text += piece.text;
    if (events != nullptr) append_delta(piece, *events);
  }
}

// Cumulative. What came from the prefix cache does not count as input.
json::Object AnthropicReply::usage_object() const {
  const UsageCounts& counts = turn_.usage();
  return json::make_object({{"input_tokens", options_.num_prompt_tokens - counts.cached_tokens},
                            {"cache_creation_input_tokens", 0},
                            {"cache_read_input_tokens", counts.cached_tokens},
                            {"output_tokens", counts.completion_tokens},
                            {"output_tokens_details",
                             json::make_object({{"thinking_tokens", counts.reasoning_tokens}})}});
}

// As content_block_start announces it.
json::Object AnthropicReply::empty_block(const Block& block) const {
  switch (block.kind) {
    case TurnPiece::Kind::kReasoning:
      return json::make_object({{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
    case TurnPiece::Kind::kContent:
      return json::make_object({{"type", "text"}, {"text", ""}, {"citations", nullptr}});
    case TurnPiece::Kind::kCallBegin:
    case TurnPiece::Kind::kCallArguments:
      break;
  }
  return json::make_object(
      {{"type", "tool_use"}, {"id", block.id}, {"name", block.name}, {"input", json::Object()}});
}

// --- streaming

std::string AnthropicReply::begin_events() const {
  std::string events;
  append_named_event(events,
                     "message_start",
                     json::make_object({{"type", "message_start"}, {"message", message({})}}));
  events += kPing;
  return events;
}

void AnthropicReply::begin_block(const TurnPiece& piece, std::string* events) {
  if (events != nullptr) end_block(*events);
  Block block = {.kind = piece.kind, .text = {}, .name = {}, .id = {}};
  if (piece.kind == TurnPiece::Kind::kCallBegin) {
    block.name = piece.text;
    block.id = piece.call_id;
  }
  blocks_.push_back(std::move(block));
  if (events == nullptr) return;
  is_block_open_ = true;
  append_named_event(*events,
                     "content_block_start",
                     json::make_object({{"type", "content_block_start"},
                                        {"index", last_index()},
                                        {"content_block", empty_block(blocks_.back())}}));
}

void AnthropicReply::append_delta(const TurnPiece& piece, std::string& events) const {
  json::Object delta;
  switch (piece.kind) {
    case TurnPiece::Kind::kReasoning:
      delta = json::make_object({{"type", "thinking_delta"}, {"thinking", piece.text}});
      break;
    case TurnPiece::Kind::kContent:
      delta = json::make_object({{"type", "text_delta"}, {"text", piece.text}});
      break;
    case TurnPiece::Kind::kCallBegin:
    case TurnPiece::Kind::kCallArguments:
      delta = json::make_object({{"type", "input_json_delta"}, {"partial_json", piece.text}});
      break;
  }
  append_block_delta(std::move(delta), events);
}

void AnthropicReply::append_block_delta(json::Object delta, std::string& events) const {
  append_named_event(
      events,
      "content_block_delta",
      json::make_object(
          {{"type", "content_block_delta"}, {"index", last_index()}, {"delta", std::move(delta)}}));
}

void AnthropicReply::end_block(std::string& events) {
  if (!is_block_open_) return;
  is_block_open_ = false;
  if (blocks_.back().kind == TurnPiece::Kind::kReasoning) {
    append_block_delta(json::make_object({{"type", "signature_delta"}, {"signature", kSignature}}),
                       events);
  }
  append_named_event(events,
                     "content_block_stop",
                     json::make_object({{"type", "content_block_stop"}, {"index", last_index()}}));
}

std::string AnthropicReply::end_events() {
  std::string events;
  end_block(events);
  json::Object delta;
  set_stop(delta, turn_);
  append_named_event(
      events,
      "message_delta",
      json::make_object(
          {{"type", "message_delta"}, {"delta", std::move(delta)}, {"usage", usage_object()}}));
  append_named_event(events, "message_stop", json::make_object({{"type", "message_stop"}}));
  return events;
}

std::string AnthropicReply::error_events(const Error& error) const {
  std::string events;
  append_named_event(events, "error", error_object(http_status(error), error.message));
  return events;
}

// --- the whole message

json::Value AnthropicReply::body() const {
  CHECK(is_finished());
  json::Array content;
  for (const Block& block : blocks_) {
    const bool is_call = block.kind == TurnPiece::Kind::kCallBegin;
    const bool is_cut =
        is_call && turn_.has_unfinished_call() && block.id == turn_.call_ids().back();
    if (is_cut) continue;
    json::Object object = empty_block(block);
    if (is_call) {
      object.set("input", tool_input(block.text));
    } else {
      object.set(block.kind == TurnPiece::Kind::kReasoning ? "thinking" : "text", block.text);
    }
    if (block.kind == TurnPiece::Kind::kReasoning) object.set("signature", kSignature);
    content.emplace_back(std::move(object));
  }
  json::Object object = message(std::move(content));
  set_stop(object, turn_);
  return object;
}

json::Object AnthropicReply::message(json::Array content) const {
  return json::make_object({{"id", options_.id},
                            {"type", "message"},
                            {"role", "assistant"},
                            {"model", options_.model},
                            {"content", std::move(content)},
                            {"stop_reason", nullptr},
                            {"stop_sequence", nullptr},
                            {"usage", usage_object()}});
}

bool is_anthropic(const HttpRequest& request) {
  return request.header("anthropic-version") != nullptr;
}

json::Object anthropic_model(const std::string& name, int64_t created, int32_t max_context) {
  return json::make_object({{"type", "model"},
                            {"id", name},
                            {"display_name", name},
                            {"created_at", fmt::format("{:%FT%TZ}", fmt::gmtime(created))},
                            {"lifecycle", "active"},
                            {"max_input_tokens", max_context},
                            {"max_tokens", max_context}});
}

HttpResponse to_anthropic_error(HttpResponse response, std::string_view request_id) {
  const Result<json::Value> body = json::parse(response.body);
  const json::Value* error = body.ok() ? body->find("error") : nullptr;
  const json::Value* message = error == nullptr ? nullptr : error->find("message");
  if (message == nullptr || !message->is_string()) return response;
  const json::Value* code = error->find("code");
  const bool is_full = code != nullptr && code->is_string() && *code->as_string() == "queue_full";
  if (is_full) response.status = kOverloaded;
  json::Object object = error_object(response.status, *message->as_string());
  object.set("request_id", request_id);
  response.body = json::dump(object, json::Style::kCompact);
  response.headers.push_back({"request-id", std::string(request_id)});
  return response;
}

}  // namespace nibble::server
