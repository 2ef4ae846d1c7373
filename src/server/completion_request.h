// The body of POST /v1/completions: read, checked, encoded. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "server/generation_fields.h"
#include "server/output_constraint.h"
#include "text/tokenizer.h"

namespace nibble::server {

struct CompletionPrompt {
  std::vector<int32_t> ids;
  std::string text;  // as given, or decoded from ids; only when the request echoes
};

struct CompletionRequest {
  GenerationFields fields;
  std::vector<CompletionPrompt> prompts;
  OutputConstraint constraint;
  bool echo = false;
  // max_tokens 0 with echo: only the prompt's own logprobs are wanted. One token is generated and
  // dropped.
  bool is_echo_only = false;
  bool wants_logprobs = false;
  bool wants_prompt_logprobs = false;  // apart from those that echo gives
  int64_t num_unknown_fields = 0;
};

// Prompts times n.
inline constexpr int32_t kMaxCompletionChoices = 128;

// A text prompt is encoded as it stands: special tokens written in it match. Only a BOS is added,
// for tokenizers that want one.
Result<CompletionRequest> parse_completion_request(const json::Value& body,
                                                   const ServedModel& model,
                                                   const text::Tokenizer& tokenizer);

}  // namespace nibble::server
