// POST /tokenize and /detokenize: what the model makes of a text, and back. Pure functions; any
// thread.
#pragma once

#include "base/json.h"
#include "base/result.h"
#include "server/generation_fields.h"
#include "text/tokenizer.h"

namespace nibble::server {

// Takes `prompt` (text as /v1/completions would encode it; `add_special_tokens` false leaves the
// BOS out) or `messages` with everything that a chat request may say. Gives `tokens`, `count`,
// `max_model_len`, and `token_strs` when `return_token_strs` asks for them.
Result<json::Object> tokenize(const json::Value& body,
                              const ServedModel& model,
                              const text::Tokenizer& tokenizer);

// Takes `tokens`. Gives the text as `prompt` (vLLM's name) and `text` (SGLang's).
Result<json::Object> detokenize(const json::Value& body,
                                const ServedModel& model,
                                const text::Tokenizer& tokenizer);

}  // namespace nibble::server
