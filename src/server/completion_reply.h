// Engine outputs to text completions: one object, or server-sent events. Pure; one thread at a
// time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/request.h"
#include "server/completion_request.h"
#include "server/reply_common.h"
#include "text/tokenizer.h"

namespace nibble::server {

// Choice `p * n + k` is the k-th continuation of prompt p.
class CompletionReply final {
 public:
  struct Options {
    ReplyEnvelope envelope;
    std::vector<CompletionPrompt> prompts;
    int32_t n = 1;
    bool echo = false;
    bool is_echo_only = false;
    bool wants_logprobs = false;
    bool wants_prompt_logprobs = false;
    bool return_token_ids = false;
  };
  // The tokenizer must outlive the reply.
  CompletionReply(Options options, const text::Tokenizer& tokenizer);

  // Outputs of one choice, in order; the last carries `finish` with kStop or kLength.
  // Streaming: the events that they give are appended to `events`, else it is null.
  void add(int32_t choice, engine::Output&& output, std::string* events);
  bool is_finished() const { return num_finished_ == num_choices(); }

  // Streaming: what precedes the first output and follows the last; or a fault in its place.
  std::string begin_events() const { return {}; }
  std::string end_events() const;
  std::string error_events(const Error& error) const;

  // Not streaming: the whole response, once finished.
  json::Value body() const;

  UsageCounts usage() const;

 private:
  // The protocol's four parallel arrays.
  struct Logprobs {
    json::Array tokens;
    json::Array token_logprobs;
    json::Array top_logprobs;
    json::Array text_offset;
  };
  struct Choice {
    std::string text;   // streaming: not yet sent; else all
    Logprobs logprobs;  // likewise
    json::Value prompt_logprobs;
    json::Array token_ids;  // likewise; only when they are returned
    int64_t offset = 0;     // code points of all token texts so far
    bool has_begun = false;
    UsageCounts usage;
    std::optional<engine::Finish> finish;
  };

  int32_t num_choices() const { return static_cast<int32_t>(choices_.size()); }
  const CompletionPrompt& prompt_of(int32_t choice) const;
  void add_prompt(int32_t index, const std::vector<engine::TokenLogprob>& prompt_logprobs);
  void add_logprob(Choice& choice, int32_t id, const engine::TokenLogprob* logprob) const;
  json::Object choice_object(int32_t index, Choice&& choice) const;
  void append_chunk(int32_t index, std::string& events);

  const Options options_;
  const text::Tokenizer& tokenizer_;
  std::vector<Choice> choices_;
  int32_t num_finished_ = 0;
};

}  // namespace nibble::server
