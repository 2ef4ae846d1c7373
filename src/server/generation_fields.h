// The request fields that chat and text completions share: model, streaming, sampling.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/request.h"
#include "grammar/grammar_cache.h"
#include "server/field_reader.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace nibble::server {

// What requests are checked against: facts of the served model and the operator's defaults.
struct ServedModel {
  std::vector<std::string> names;  // the first is the model's id, further ones are aliases
  int32_t vocab_size = 0;
  int32_t max_context = 0;
  engine::SamplingParams default_sampling;  // of requests that say nothing
  text::ThinkingMode default_thinking = text::ThinkingMode::kChat;
  text::Generation generation = text::Generation::kApril;
  // The names under which chat answers carry their reasoning.
  std::vector<std::string> reasoning_fields = {"reasoning_content"};
  // Compiles constraints on the output; null where nothing is generated. Shared with the Api, which
  // makes it.
  std::shared_ptr<grammar::GrammarCache> grammars;
  int32_t completion_bos_id = -1;  // put before text prompts that do not begin with it; -1: none
};

struct GenerationFields {
  std::string model;      // as the client called it
  std::string client_id;  // what the client calls the request, to abort it; often empty
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool return_token_ids = false;
  std::optional<int32_t> thinking_budget = {};  // tokens of reasoning, at most; absent: no limit
  int32_t n = 1;
  engine::SamplingParams sampling;
  std::string cache_salt;  // prefixes are shared only among requests of equal salt
  int32_t priority = 0;    // higher runs first
  // Temperature or penalties were given: worth a remark in thinking mode, where the vendor's API
  // ignores them.
  bool shapes_sampling = false;
};

// Choices of one request, over all its prompts.
inline constexpr int32_t kMaxN = 16;
inline constexpr int32_t kMaxTopLogprobs = 20;

// What an endpoint says about max_tokens.
struct MaxTokensRule {
  int32_t min = 1;
  int32_t if_absent = 0;  // and without an operator's default; 0: up to the context
};

// Reads and range-checks all of them. kNotFound with reason "model_not_found" for another model's
// name.
Result<GenerationFields> read_generation_fields(FieldReader& reader,
                                                const ServedModel& model,
                                                MaxTokensRule max_tokens);

// The same in parts, for protocols that spell some of them differently. Defaults are the
// operator's.
GenerationFields default_fields(const ServedModel& model);
Result<void> read_model(FieldReader& reader, const ServedModel& model, std::string& target);
// `key` holds a string or strings.
Result<void> read_stop(FieldReader& reader, std::string_view key, std::vector<std::string>& target);
Result<void> read_scheduling(FieldReader& reader, GenerationFields& fields);
// `key` holds the budget, -1 meaning none.
Result<void> read_thinking_budget(FieldReader& reader,
                                  std::string_view key,
                                  GenerationFields& fields);
// Logprobs of the prompt: a count of alternatives, only of answers that are not streamed.
Result<void> read_prompt_logprobs(FieldReader& reader, GenerationFields& fields);
// Everything that shapes the choice of tokens. After max_tokens is known.
Result<void> read_sampling(FieldReader& reader, const ServedModel& model, GenerationFields& fields);

// Members that would change the output but cannot take effect here: kUnsupported when they say
// something.
Result<void> refuse_unsupported_fields(FieldReader& reader);

}  // namespace nibble::server
