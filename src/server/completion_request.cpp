#include "server/completion_request.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "server/field_reader.h"

namespace nibble::server {
namespace {

constexpr int32_t kDefaultMaxTokens = 16;  // the protocol's default

Result<std::vector<int32_t>> read_ids(const json::Array& items,
                                      const std::string& param,
                                      int32_t vocab_size) {
  std::vector<int32_t> ids;
  ids.reserve(items.size());
  for (const json::Value& item : items) {
    TRY_ASSIGN(const int64_t id, to_integer(item, param, {0, vocab_size - 1}));
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

class PromptReader final {
 public:
  PromptReader(const ServedModel& model, const text::Tokenizer& tokenizer)
      : model_(model), tokenizer_(tokenizer) {}

  // A string, strings, ids, or lists of ids.
  Result<std::vector<CompletionPrompt>> read(const json::Value& value) const {
    std::vector<CompletionPrompt> prompts;
    const json::Array* items = value.as_array();
    const bool is_list = items != nullptr && !items->empty() && !items->front().is_number();
    if (!is_list) {
      TRY_ASSIGN(CompletionPrompt prompt, read_one(value, "prompt"));
      prompts.push_back(std::move(prompt));
      return prompts;
    }
    for (size_t i = 0; i < items->size(); ++i) {
      TRY_ASSIGN(CompletionPrompt prompt, read_one((*items)[i], fmt::format("prompt[{}]", i)));
      prompts.push_back(std::move(prompt));
    }
    return prompts;
  }

 private:
  Result<CompletionPrompt> read_one(const json::Value& value, const std::string& param) const {
    CompletionPrompt prompt;
    if (const std::string* text = value.as_string()) {
      TRY_ASSIGN(prompt.ids, tokenizer_.encode_with_specials(*text));
      prompt.text = *text;
      prepend_bos(prompt.ids);
    } else if (const json::Array* items = value.as_array()) {
      TRY_ASSIGN(prompt.ids, read_ids(*items, param, model_.vocab_size));
      TRY_ASSIGN(prompt.text, tokenizer_.decode(prompt.ids));
    } else {
      return wrong_type(param, "a string, an array of strings, or arrays of token ids", value);
    }
    if (prompt.ids.empty()) return wrong_value(param, "is empty; expected at least one token");
    return prompt;
  }

  void prepend_bos(std::vector<int32_t>& ids) const {
    const int32_t bos = model_.completion_bos_id;
    const bool is_there = !ids.empty() && ids.front() == bos;
    if (bos >= 0 && !is_there) ids.insert(ids.begin(), bos);
  }

  const ServedModel& model_;
  const text::Tokenizer& tokenizer_;
};

Result<void> read_prompts(FieldReader& reader,
                          const ServedModel& model,
                          const text::Tokenizer& tokenizer,
                          CompletionRequest& request) {
  const json::Value* prompt = reader.any("prompt");
  if (prompt == nullptr) return wrong_value("prompt", "is missing");
  const auto n = static_cast<size_t>(request.fields.n);
  const json::Array* items = prompt->as_array();
  const bool is_list = items != nullptr && !items->empty() && !items->front().is_number();
  if (is_list && items->size() * n > kMaxCompletionChoices) {
    return wrong_value("prompt",
                       fmt::format("{} prompts with n {}: expected at most {} choices",
                                   items->size(),
                                   n,
                                   kMaxCompletionChoices));
  }
  TRY_ASSIGN(request.prompts, PromptReader(model, tokenizer).read(*prompt));
  return {};
}

// `logprobs` is a count here: 0 asks for the sampled tokens only.
Result<void> read_logprobs(FieldReader& reader, CompletionRequest& request) {
  engine::SamplingParams& sampling = request.fields.sampling;
  std::optional<int64_t> count;
  TRY(reader.read("logprobs", count, {0, kMaxTopLogprobs}));
  if (!count) return {};
  request.wants_logprobs = true;
  sampling.logprobs = true;
  sampling.top_logprobs = static_cast<int32_t>(*count);
  if (!request.echo) return {};
  if (sampling.prompt_logprobs.value_or(sampling.top_logprobs) != sampling.top_logprobs) {
    return wrong_value("prompt_logprobs", "with echo: expected the value of logprobs");
  }
  sampling.prompt_logprobs = sampling.top_logprobs;
  return {};
}

Result<void> check_best_of(FieldReader& reader, int32_t n) {
  int32_t best_of = n;
  TRY(reader.read("best_of", best_of, {1, kMaxN}));
  if (best_of == n) return {};
  return unsupported_field("best_of", fmt::format("expected the value of n, which is {}", n));
}

Result<void> read_echo(FieldReader& reader, CompletionRequest& request) {
  TRY(reader.read("echo", request.echo));
  int32_t& max_tokens = request.fields.sampling.max_tokens;
  if (max_tokens > 0) return {};
  if (!request.echo)
    return wrong_value("max_tokens", "expected at least 1; 0 only together with echo");
  request.is_echo_only = true;
  max_tokens = 1;
  return {};
}

}  // namespace

Result<CompletionRequest> parse_completion_request(const json::Value& body,
                                                   const ServedModel& model,
                                                   const text::Tokenizer& tokenizer) {
  if (!body.is_object()) return wrong_type("body", "an object", body);
  CompletionRequest request;
  FieldReader reader(*body.as_object());
  TRY_ASSIGN(request.fields,
             read_generation_fields(reader, model, {.min = 0, .if_absent = kDefaultMaxTokens}));
  TRY(refuse_unsupported_fields(reader));
  TRY(read_constraint_fields(reader, request.constraint));
  TRY(reader.refuse("response_format", "belongs to chat; use structured_outputs"));
  TRY(reader.refuse("suffix", "text cannot be inserted, only continued"));
  TRY(check_best_of(reader, request.fields.n));
  TRY(read_echo(reader, request));
  TRY(read_prompt_logprobs(reader, request.fields));
  request.wants_prompt_logprobs = request.fields.sampling.prompt_logprobs.has_value();
  TRY(read_logprobs(reader, request));
  TRY(reader.refuse("thinking_token_budget", "belongs to chat; the prompt decides what comes"));
  TRY(read_prompts(reader, model, tokenizer, request));
  request.num_unknown_fields = reader.num_unknown();
  return request;
}

}  // namespace nibble::server
