// Engine outputs to chat completions: one object, or server-sent events. Pure; one thread at a
// time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/request.h"
#include "server/assistant_turn.h"
#include "server/reply_common.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace nibble::server {

class ChatReply final {
 public:
  struct Options {
    ReplyEnvelope envelope;
    text::OutputParser::Options parser;
    bool include_reasoning = true;
    std::vector<std::string> reasoning_fields = {"reasoning_content"};
    bool wants_logprobs = false;
    bool wants_prompt_logprobs = false;  // not streaming
    int32_t num_choices = 1;
    int32_t num_prompt_tokens = 0;
    std::optional<std::vector<int32_t>> prompt_ids = {};  // present: token ids are returned
  };
  // The tokenizer must outlive the reply.
  ChatReply(Options options, const text::Tokenizer& tokenizer);

  // Outputs of one choice, in order; the last carries `finish` with kStop or kLength.
  // Streaming: the events that they give are appended to `events`, else it is null.
  void add(int32_t choice, engine::Output&& output, std::string* events);
  bool is_finished() const { return num_finished_ == options_.num_choices; }

  // Streaming: what precedes the first output and follows the last; or a fault in its place.
  std::string begin_events() const;
  std::string end_events() const;
  std::string error_events(const Error& error) const;

  // Not streaming: the whole response, once finished.
  json::Value body() const;

  UsageCounts usage() const;

 private:
  struct Choice {
    AssistantTurn turn;
    json::Array logprobs;   // streaming: not yet sent; else all
    json::Array token_ids;  // likewise; only when they are returned
  };

  void append_piece(int32_t index, const TurnPiece& piece, std::string& events);
  void append_chunk(int32_t index, json::Object delta, std::string& events);
  void append_finish(int32_t index, std::string& events);
  void set_token_ids(json::Object& choice, json::Array token_ids) const;
  void set_reasoning(json::Object& message, const std::string& text) const;
  json::Object chunk(json::Array choices) const;
  json::Object choice_object(int32_t index) const;
  json::Object message_object(const AssistantTurn& turn) const;
  json::Value take_logprobs(Choice& choice) const;

  const Options options_;
  const text::Tokenizer& tokenizer_;
  std::vector<Choice> choices_;
  json::Value prompt_logprobs_;  // which choice 0 gives, whenever its first output comes
  int32_t num_finished_ = 0;
};

}  // namespace nibble::server
