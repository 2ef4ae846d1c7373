// Engine outputs to a message of Anthropic's protocol: one object, or server-sent events. Pure;
// one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "engine/request.h"
#include "server/assistant_turn.h"
#include "server/http_message.h"
#include "server/reply_common.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace nibble::server {

class AnthropicReply final {
 public:
  struct Options {
    std::string id;     // "msg_..."
    std::string model;  // as the client called it
    text::OutputParser::Options parser;
    bool include_reasoning = true;
    int32_t num_prompt_tokens = 0;
  };
  // The tokenizer must outlive the reply.
  AnthropicReply(Options options, const text::Tokenizer& tokenizer);

  // Outputs in order; the last carries `finish` with kStop or kLength.
  // Streaming: the events that they give are appended to `events`, else it is null.
  void add(int32_t choice, engine::Output&& output, std::string* events);
  bool is_finished() const { return turn_.is_finished(); }

  // Streaming: what precedes the first output and follows the last; or a fault in its place.
  std::string begin_events() const;
  std::string end_events();
  std::string error_events(const Error& error) const;
  // Keeps a silent stream alive.
  static constexpr std::string_view kPing = "event: ping\ndata: {\"type\":\"ping\"}\n\n";

  // Not streaming: the whole message, once finished. A tool use that was cut is left out.
  json::Value body() const;

 private:
  // One content block.
  struct Block {
    TurnPiece::Kind kind;  // of what it holds; kCallBegin for a tool use
    std::string text;      // or the input's JSON
    std::string name;      // of the tool
    std::string id;        // of the tool use
  };

  void begin_block(const TurnPiece& piece, std::string* events);
  void end_block(std::string& events);
  void append_delta(const TurnPiece& piece, std::string& events) const;
  void append_block_delta(json::Object delta, std::string& events) const;
  int32_t last_index() const { return static_cast<int32_t>(blocks_.size()) - 1; }
  json::Object empty_block(const Block& block) const;
  json::Object usage_object() const;
  json::Object message(json::Array content) const;

  const Options options_;
  AssistantTurn turn_;
  std::vector<Block> blocks_;
  bool is_block_open_ = false;  // streaming: the last block has begun and not ended
};

// True for a client of Anthropic's protocol on a route that several protocols share.
bool is_anthropic(const HttpRequest& request);

// A model as the protocol lists it. `created`: seconds since 1970.
json::Object anthropic_model(const std::string& name, int64_t created, int32_t max_context);

// The error of a response in the form of the OpenAI protocol, in Anthropic's: {type, error{type,
// message}, request_id}. A full queue becomes 529. Other responses pass unchanged.
HttpResponse to_anthropic_error(HttpResponse response, std::string_view request_id);

}  // namespace nibble::server
