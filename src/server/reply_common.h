// What responses of both completion endpoints share: envelope, usage, token texts, server-sent
// events.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "engine/request.h"
#include "text/tokenizer.h"

namespace nibble::server {

// The same in every chunk of a response.
struct ReplyEnvelope {
  std::string id;
  std::string model;
  int64_t created = 0;  // seconds since 1970
  std::string system_fingerprint;
  bool include_usage = false;
  bool continuous_usage = false;
};

struct UsageCounts {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t reasoning_tokens = 0;
};
json::Object usage_object(const UsageCounts& usage);

// {id, object, created, model, choices, system_fingerprint}.
json::Object reply_object(const ReplyEnvelope& envelope,
                          std::string_view object,
                          json::Array choices);

// Appends `data: {...}` as one event.
void append_event(std::string& events, const json::Value& payload);
// With `event: NAME` before it.
void append_named_event(std::string& events, std::string_view name, const json::Value& payload);
inline constexpr std::string_view kDoneEvent = "data: [DONE]\n\n";

json::Array id_array(const std::vector<int32_t>& ids);

// The text of one token; parts of characters come out as U+FFFD.
std::string token_text(const text::Tokenizer& tokenizer, int32_t id);
// JSON has no infinities: the protocol writes -9999 for a probability of zero.
double finite_logprob(float logprob);

// A setting, without the digits that are noise of the narrower type.
double readable(float value);

// {token, logprob, bytes, top_logprobs}, as chat completions and responses list them.
json::Object logprob_entry(const text::Tokenizer& tokenizer, const engine::TokenLogprob& logprob);

// Null for the first prompt token, which nothing precedes; for each other one its logprob and those
// of its alternatives, by token id: {"ID": {logprob, rank, decoded_token}}.
json::Array prompt_logprobs_array(const text::Tokenizer& tokenizer,
                                  const std::vector<engine::TokenLogprob>& logprobs);

// What stopped the sequence: the stop string, the stop id, or null.
json::Value stop_reason(const engine::Finish& finish);

}  // namespace nibble::server
