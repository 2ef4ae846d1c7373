#include "server/responses_reply.h"

#include <algorithm>
#include <utility>

#include "server/http_message.h"
#include "server/response_items.h"
#include "text/chat_protocol.h"

namespace nibble::server {
namespace {

using Kind = TurnPiece::Kind;

std::string new_item_id(Kind kind) {
  switch (kind) {
    case Kind::kReasoning:
      return make_id("rs_");
    case Kind::kContent:
      return make_id("msg_");
    case Kind::kCallBegin:
    case Kind::kCallArguments:
      break;
  }
  return make_id("fc_");
}

}  // namespace

ResponsesReply::ResponsesReply(Options options, const text::Tokenizer& tokenizer)
    : options_(std::move(options)),
      tokenizer_(tokenizer),
      turn_(options_.parser, "call_", tokenizer) {}

void ResponsesReply::add(int32_t, engine::Output&& output, std::string* events) {
  const std::vector<engine::TokenLogprob> logprobs = std::move(output.logprobs);
  for (const TurnPiece& piece : turn_.add(std::move(output))) {
    const bool continues = is_item_open_ && continues_block(piece, items_.back().kind);
    if (!continues) begin_item(piece, events);
    if (piece.kind == Kind::kCallBegin) continue;
    items_.back().text += piece.text;
    if (events != nullptr) append_delta(piece, *events);
  }
  const bool in_message = is_item_open_ && items_.back().kind == Kind::kContent;
  for (const engine::TokenLogprob& logprob : logprobs) {
    const bool is_special = tokenizer_.is_special(logprob.token_id);
    if (in_message && options_.wants_logprobs && !is_special) {
      items_.back().logprobs.emplace_back(logprob_entry(tokenizer_, logprob));
    }
  }
  if (!turn_.is_finished()) return;
  const bool is_cut = turn_.end() == TurnEnd::kLength || turn_.has_unfinished_call();
  end_item(!is_cut, events);
  settle();
}

void ResponsesReply::settle() {
  status_ = turn_.end() == TurnEnd::kLength ? Status::kIncomplete : Status::kCompleted;
}

// --- streaming

std::string ResponsesReply::begin_events() {
  std::string events;
  append_response("response.created", events);
  append_response("response.in_progress", events);
  return events;
}

std::string ResponsesReply::end_events() {
  std::string events;
  append_response(status_ == Status::kIncomplete ? "response.incomplete" : "response.completed",
                  events);
  return events;
}

std::string ResponsesReply::error_events(const Error& error) {
  const bool is_cancelled = error.code == Errc::kCancelled && error.reason == "aborted";
  status_ = is_cancelled ? Status::kCancelled : Status::kFailed;
  if (!is_cancelled) {
    error_ = json::make_object({{"code", "server_error"}, {"message", error.message}});
  }
  std::string events;
  append_response("response.failed", events);
  return events;
}

void ResponsesReply::begin_item(const TurnPiece& piece, std::string* events) {
  end_item(/*is_complete=*/true, events);
  Item item = {.kind = piece.kind, .id = new_item_id(piece.kind), .text = {}, .name = {}};
  if (piece.kind == Kind::kCallBegin) {
    item.name = piece.text;
    item.call_id = piece.call_id;
    item.is_custom = is_custom_tool(piece.text);
    if (item.is_custom) item.id = make_id("ctc_");
  }
  items_.push_back(std::move(item));
  is_item_open_ = true;
  if (events == nullptr) return;
  const Item& begun = items_.back();
  append("response.output_item.added",
         json::make_object({{"output_index", static_cast<int64_t>(items_.size()) - 1},
                            {"item", item_object(begun, /*is_open=*/true)}}),
         *events);
  if (begun.kind == Kind::kCallBegin) return;
  append_item_event("response.content_part.added",
                    json::make_object({{"part", part_object(begun, /*is_open=*/true)}}),
                    *events);
}

void ResponsesReply::append_delta(const TurnPiece& piece, std::string& events) {
  json::Object members = json::make_object({{"delta", piece.text}});
  switch (piece.kind) {
    case Kind::kReasoning:
      return append_item_event("response.reasoning_text.delta", members, events);
    case Kind::kContent:
      members.set("logprobs", json::Array());
      return append_item_event("response.output_text.delta", members, events);
    case Kind::kCallBegin:
    case Kind::kCallArguments:
      if (items_.back().is_custom) return;  // its text is known once the arguments are complete
      return append_item_event("response.function_call_arguments.delta", members, events);
  }
}

void ResponsesReply::end_item(bool is_complete, std::string* events) {
  if (!is_item_open_) return;
  is_item_open_ = false;
  Item& item = items_.back();
  item.is_complete = is_complete;
  if (events == nullptr) return;
  end_content(item, *events);
  append("response.output_item.done",
         json::make_object({{"output_index", static_cast<int64_t>(items_.size()) - 1},
                            {"item", item_object(item, /*is_open=*/false)}}),
         *events);
}

void ResponsesReply::end_content(const Item& item, std::string& events) {
  if (item.is_custom) {
    const std::string input = custom_tool_input(item.text);
    append_item_event(
        "response.custom_tool_call_input.delta", json::make_object({{"delta", input}}), events);
    return append_item_event(
        "response.custom_tool_call_input.done", json::make_object({{"input", input}}), events);
  }
  if (item.kind == Kind::kCallBegin) {
    return append_item_event("response.function_call_arguments.done",
                             json::make_object({{"name", item.name}, {"arguments", item.text}}),
                             events);
  }
  json::Object members = json::make_object({{"text", item.text}});
  if (item.kind == Kind::kContent) members.set("logprobs", item.logprobs);
  append_item_event(
      item.kind == Kind::kContent ? "response.output_text.done" : "response.reasoning_text.done",
      members,
      events);
  append_item_event("response.content_part.done",
                    json::make_object({{"part", part_object(item, /*is_open=*/false)}}),
                    events);
}

void ResponsesReply::append_response(std::string_view type, std::string& events) {
  append(type, json::make_object({{"response", response()}}), events);
}

void ResponsesReply::append_item_event(std::string_view type,
                                       const json::Object& members,
                                       std::string& events) {
  const Item& item = items_.back();
  json::Object all = json::make_object(
      {{"item_id", item.id}, {"output_index", static_cast<int64_t>(items_.size()) - 1}});
  if (item.kind != Kind::kCallBegin) all.set("content_index", 0);
  for (const json::Member& member : members) all.set(member.key, member.value);
  append(type, all, events);
}

void ResponsesReply::append(std::string_view type,
                            const json::Object& members,
                            std::string& events) {
  json::Object event = json::make_object({{"type", type}, {"sequence_number", sequence_number_++}});
  for (const json::Member& member : members) event.set(member.key, member.value);
  append_named_event(events, type, event);
}

// --- the response

const char* ResponsesReply::status_name(Status status) {
  switch (status) {
    case Status::kInProgress:
      return "in_progress";
    case Status::kCompleted:
      return "completed";
    case Status::kIncomplete:
      return "incomplete";
    case Status::kFailed:
      return "failed";
    case Status::kCancelled:
      return "cancelled";
  }
  return "failed";
}

json::Object ResponsesReply::response() const {
  const bool is_incomplete = status_ == Status::kIncomplete;
  json::Object object = json::make_object(
      {{"id", options_.id},
       {"object", "response"},
       {"created_at", options_.created},
       {"status", status_name(status_)},
       {"error", error_},
       {"incomplete_details",
        is_incomplete ? json::Value(json::make_object({{"reason", "max_output_tokens"}}))
                      : json::Value()},
       {"model", options_.model},
       {"output", status_ == Status::kInProgress ? json::Array() : output()},
       {"usage", usage()}});
  for (const json::Member& setting : options_.settings) object.set(setting.key, setting.value);
  return object;
}

json::Array ResponsesReply::output() const {
  json::Array items;
  for (const Item& item : items_) items.emplace_back(item_object(item, /*is_open=*/false));
  return items;
}

bool ResponsesReply::is_custom_tool(const std::string& name) const {
  const std::vector<std::string>& names = options_.custom_tools;
  return std::find(names.begin(), names.end(), name) != names.end();
}

// As it is once it ended, or, open, as it is announced.
json::Object ResponsesReply::item_object(const Item& item, bool is_open) const {
  json::Object object = json::make_object({{"id", item.id}});
  json::Array content;
  if (!is_open && item.kind != Kind::kCallBegin) content.emplace_back(part_object(item, is_open));
  switch (item.kind) {
    case Kind::kReasoning:
      object.set("type", "reasoning");
      object.set("summary", json::Array());
      object.set("content", std::move(content));
      if (options_.wants_encrypted_reasoning && !is_open) {
        object.set("encrypted_content", opaque_reasoning(item.text));
      }
      break;
    case Kind::kContent:
      object.set("type", "message");
      object.set("role", "assistant");
      object.set("content", std::move(content));
      break;
    case Kind::kCallBegin:
    case Kind::kCallArguments:
      object.set("type", item.is_custom ? "custom_tool_call" : "function_call");
      object.set("call_id", item.call_id);
      object.set("name", item.name);
      if (item.is_custom) {
        object.set("input", is_open ? std::string() : custom_tool_input(item.text));
      } else {
        object.set("arguments", item.text);
      }
      break;
  }
  object.set("status", is_open ? "in_progress" : item.is_complete ? "completed" : "incomplete");
  return object;
}

json::Object ResponsesReply::part_object(const Item& item, bool is_open) const {
  const std::string text = is_open ? std::string() : item.text;
  if (item.kind == Kind::kReasoning) {
    return json::make_object({{"type", "reasoning_text"}, {"text", text}});
  }
  return json::make_object({{"type", "output_text"},
                            {"text", text},
                            {"annotations", json::Array()},
                            {"logprobs", is_open ? json::Array() : item.logprobs}});
}

json::Value ResponsesReply::usage() const {
  if (!turn_.is_finished()) return {};
  const UsageCounts& counts = turn_.usage();
  return json::make_object(
      {{"input_tokens", options_.num_prompt_tokens},
       {"input_tokens_details",
        json::make_object({{"cached_tokens", counts.cached_tokens}, {"cache_write_tokens", 0}})},
       {"output_tokens", counts.completion_tokens},
       {"output_tokens_details",
        json::make_object({{"reasoning_tokens", counts.reasoning_tokens}})},
       {"total_tokens", options_.num_prompt_tokens + counts.completion_tokens}});
}

StoredResponse ResponsesReply::stored() const {
  return {.body = json::dump(response(), json::Style::kCompact),
          .input = json::dump(options_.items, json::Style::kCompact),
          .events = {}};
}

}  // namespace nibble::server
