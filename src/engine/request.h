// What a client asks for and what it gets back: plain values that cross threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "grammar/grammar.h"

namespace nibble::engine {

struct SamplingParams {
  float temperature = 1.0F;  // 0: greedy
  float top_p = 1.0F;
  float min_p = 0.0F;
  int32_t top_k = 0;  // 0: all
  float presence_penalty = 0.0F;
  float frequency_penalty = 0.0F;
  float repetition_penalty = 1.0F;
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::optional<uint64_t> seed;  // same seed, same prompt, same params: same tokens

  int32_t max_tokens = 0;  // 0: up to the context
  int32_t min_tokens = 0;
  bool ignore_eos = false;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool include_stop_in_output = false;
  bool skip_special_tokens = true;
  std::vector<int32_t> visible_special_ids;  // stay in the text although specials are skipped

  bool logprobs = false;
  int32_t top_logprobs = 0;  // alternatives per token, 0 to 20
  // Alternatives per prompt token, 0 to 20; absent: no logprobs of the prompt.
  std::optional<int32_t> prompt_logprobs;
};

// Ends reasoning that goes on for too long: unless it ended before, the output's token number
// `num_tokens`, counted from 0, is `end_token_id`, whatever the model would have said.
struct ReasoningBudget {
  int32_t num_tokens = 0;
  int32_t end_token_id = 0;
};

struct Request {
  std::string id;  // for logs and clients; unique among live requests
  std::vector<int32_t> prompt_ids;
  SamplingParams sampling;
  // Higher runs first; requests of one priority share.
  int32_t priority = 0;
  // Who asks: requests of one owner share its part of the machine and may reuse each other's
  // prefixes. A name or a digest of the API key, never the key; empty: nobody in particular.
  std::string owner;
  // Prefixes are reused only among requests of equal salt.
  std::string cache_salt;
  // How long it may wait to run for the first time; then it ends with kError, reason
  // "queue_timeout". 0: as the engine is configured.
  Duration queue_timeout{};
  // Another choice of a request that was accepted: the expected wait does not refuse it.
  bool joins_accepted = false;
  // What the output must look like; null: anything. Shared with other requests of the same
  // constraint. The output ends when the grammar does, also under ignore_eos and min_tokens.
  std::shared_ptr<const grammar::Grammar> grammar;
  // Of an output that begins in reasoning; absent: it may go on to the end.
  std::optional<ReasoningBudget> reasoning_budget;
};

enum class FinishReason { kStop, kLength, kCancelled, kError };

struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0;
  int32_t rank = 0;                            // 1 and the number of tokens that are more probable
  std::vector<std::pair<int32_t, float>> top;  // descending
};

struct Usage {
  int32_t prompt_tokens = 0;
  int32_t completion_tokens = 0;
  int32_t cached_tokens = 0;  // prompt tokens that the prefix cache made unnecessary to compute
};

struct Finish {
  FinishReason reason = FinishReason::kStop;
  std::string matched_stop;         // the stop string, if one matched
  int32_t matched_stop_token = -1;  // the stop id, if one matched
  Error error;                      // meaningful for kError
  Usage usage;
  double queue_seconds = 0;        // arrival to first scheduled
  double prefill_seconds = 0;      // to the first token
  double decode_seconds = 0;       // to the end
  double longest_gap_seconds = 0;  // between two tokens of the request
  int32_t num_preemptions = 0;     // how often it gave its memory back and was computed again
};

// A piece of output. `text` is valid UTF-8; tokens whose text is held back (an unfinished
// character, a possible stop string) appear before their text does. Exactly one output of a request
// carries `finish`, and it is the last.
struct Output {
  std::vector<int32_t> token_ids;
  std::string text;
  std::vector<TokenLogprob> logprobs;  // one per token id when asked for
  std::vector<TokenLogprob>
      prompt_logprobs;  // once, with the first output; the first prompt token has none
  std::optional<Finish> finish;
};

// Called on the engine thread, in order; must not block and must not call back into the engine.
using OutputSink = std::function<void(Output&&)>;

}  // namespace nibble::engine
