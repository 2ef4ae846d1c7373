// Engine outputs to a response of the Responses API: one object, or typed server-sent events with
// increasing sequence numbers. Pure; one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "engine/request.h"
#include "server/assistant_turn.h"
#include "server/reply_common.h"
#include "server/response_store.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace nibble::server {

class ResponsesReply final {
 public:
  struct Options {
    std::string id;     // "resp_..."
    std::string model;  // as the client called it
    int64_t created = 0;
    json::Object settings;  // repeated in the response
    json::Array items;      // the conversation that it answers, with ids
    text::OutputParser::Options parser;
    std::vector<std::string> custom_tools;  // names of the tools whose calls carry free text
    bool wants_encrypted_reasoning = false;
    bool wants_logprobs = false;
    int32_t num_prompt_tokens = 0;
  };
  // The tokenizer must outlive the reply.
  ResponsesReply(Options options, const text::Tokenizer& tokenizer);

  // Outputs in order; the last carries `finish` with kStop or kLength.
  // Streaming: the events that they give are appended to `events`, else it is null.
  void add(int32_t choice, engine::Output&& output, std::string* events);
  bool is_finished() const { return turn_.is_finished(); }

  // Streaming: what precedes the first output and follows the last; or a fault in its place, which
  // also decides how the response ended.
  std::string begin_events();
  std::string end_events();
  std::string error_events(const Error& error);

  // The response as it is now: in progress, or how it ended.
  json::Value body() const { return response(); }
  // What is kept of it, without its events.
  StoredResponse stored() const;

 private:
  enum class Status { kInProgress, kCompleted, kIncomplete, kFailed, kCancelled };

  // One output item.
  struct Item {
    TurnPiece::Kind kind;  // of what it holds; kCallBegin for a function call
    std::string id;
    std::string text;        // or the arguments' JSON
    std::string name;        // of the function
    std::string call_id;     // of the function call
    bool is_custom = false;  // the call's: of a tool that takes free text
    json::Array logprobs = {};
    bool is_complete = false;
  };

  static const char* status_name(Status status);
  void begin_item(const TurnPiece& piece, std::string* events);
  void end_item(bool is_complete, std::string* events);
  void end_content(const Item& item, std::string& events);
  void append_delta(const TurnPiece& piece, std::string& events);
  void append_response(std::string_view type, std::string& events);
  // An event about the last item: its id, output_index and, for content, content_index come first.
  void append_item_event(std::string_view type, const json::Object& members, std::string& events);
  void append(std::string_view type, const json::Object& members, std::string& events);
  void settle();

  json::Object response() const;
  bool is_custom_tool(const std::string& name) const;
  json::Object item_object(const Item& item, bool is_open) const;
  json::Object part_object(const Item& item, bool is_open) const;
  json::Array output() const;
  json::Value usage() const;

  const Options options_;
  const text::Tokenizer& tokenizer_;
  AssistantTurn turn_;
  std::vector<Item> items_;
  bool is_item_open_ = false;  // the last one
  Status status_ = Status::kInProgress;
  json::Value error_;
  int64_t sequence_number_ = 0;  // of the next event
};

}  // namespace nibble::server
