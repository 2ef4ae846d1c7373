#include "engine/admission.h"

#include <fmt/core.h>

#include <cmath>
#include <span>
#include <string_view>

#include "base/utf8.h"

namespace nibble::engine {
namespace {

Error field_error(std::string_view field, std::string_view fault) {
  Error error = invalid_argument(fmt::format("{}: {}", field, fault));
  error.param = field;
  return error;
}

Error context_error(int64_t num_prompt, int64_t max_tokens, int32_t max_context) {
  Error error = invalid_argument(fmt::format(
      "prompt of {} tokens and max_tokens {} make {}, but the context holds {}; shorten "
      "the prompt or lower max_tokens",
      num_prompt,
      max_tokens,
      num_prompt + max_tokens,
      max_context));
  error.param = "prompt";
  error.reason = "context_length_exceeded";
  return error;
}

Result<void> check_range(std::string_view field, float value, float min, float max) {
  if (std::isfinite(value) && value >= min && value <= max) return {};
  return field_error(field, fmt::format("is {}, expected a number in [{}, {}]", value, min, max));
}

Result<void> check_range(std::string_view field, int32_t value, int32_t min, int32_t max) {
  if (value >= min && value <= max) return {};
  return field_error(field, fmt::format("is {}, expected an integer in [{}, {}]", value, min, max));
}

Result<void> check_id(std::string_view field, int32_t id, int32_t vocab_size) {
  if (id >= 0 && id < vocab_size) return {};
  return field_error(field, fmt::format("token id {} is not in [0, {})", id, vocab_size));
}

Result<void> check_ids(std::string_view field, std::span<const int32_t> ids, int32_t vocab_size) {
  for (const int32_t id : ids) TRY(check_id(field, id, vocab_size));
  return {};
}

Result<void> check_stops(const SamplingParams& sampling, int32_t vocab_size) {
  const auto num_strings = static_cast<int64_t>(sampling.stop.size());
  if (num_strings > kMaxStops) {
    return field_error("stop",
                       fmt::format("{} strings, expected at most {}", num_strings, kMaxStops));
  }
  for (const std::string& stop : sampling.stop) {
    if (stop.empty() || stop.size() > static_cast<size_t>(kMaxStopBytes)) {
      return field_error(
          "stop",
          fmt::format("a string of {} bytes, expected 1 to {}", stop.size(), kMaxStopBytes));
    }
    if (!is_valid_utf8(stop)) return field_error("stop", "is not valid UTF-8");
  }
  const auto num_ids = static_cast<int64_t>(sampling.stop_token_ids.size());
  if (num_ids > kMaxStops) {
    return field_error("stop_token_ids",
                       fmt::format("{} ids, expected at most {}", num_ids, kMaxStops));
  }
  return check_ids("stop_token_ids", sampling.stop_token_ids, vocab_size);
}

Result<void> check_sampling(const SamplingParams& sampling, const RequestLimits& limits) {
  TRY(check_range("temperature", sampling.temperature, 0.0F, 100.0F));
  TRY(check_range("top_p", sampling.top_p, 0.0F, 1.0F));
  TRY(check_range("min_p", sampling.min_p, 0.0F, 1.0F));
  TRY(check_range("top_k", sampling.top_k, 0, INT32_MAX));
  TRY(check_range("presence_penalty", sampling.presence_penalty, -2.0F, 2.0F));
  TRY(check_range("frequency_penalty", sampling.frequency_penalty, -2.0F, 2.0F));
  TRY(check_range("repetition_penalty", sampling.repetition_penalty, 0.01F, 100.0F));
  for (const auto& [token_id, bias] : sampling.logit_bias) {
    TRY(check_id("logit_bias", token_id, limits.vocab_size));
    TRY(check_range("logit_bias", bias, -100.0F, 100.0F));
  }
  TRY(check_range("max_tokens", sampling.max_tokens, 0, INT32_MAX));
  TRY(check_range("min_tokens", sampling.min_tokens, 0, INT32_MAX));
  TRY(check_range("top_logprobs", sampling.top_logprobs, 0, kMaxTopLogprobs));
  TRY(check_range("prompt_logprobs", sampling.prompt_logprobs.value_or(0), 0, kMaxTopLogprobs));
  return check_stops(sampling, limits.vocab_size);
}

Result<void> check_reasoning_budget(const ReasoningBudget& budget, int32_t vocab_size) {
  TRY(check_range("thinking_token_budget", budget.num_tokens, 0, INT32_MAX));
  return check_id("thinking_token_budget", budget.end_token_id, vocab_size);
}

}  // namespace

Result<void> validate_request(const Request& request, const RequestLimits& limits) {
  if (request.id.empty()) return field_error("request_id", "is empty");
  if (request.prompt_ids.empty())
    return field_error("prompt", "is empty, expected at least one token");
  TRY(check_sampling(request.sampling, limits));
  if (request.reasoning_budget) {
    TRY(check_reasoning_budget(*request.reasoning_budget, limits.vocab_size));
  }
  const auto num_prompt = static_cast<int64_t>(request.prompt_ids.size());
  const int64_t max_tokens = request.sampling.max_tokens;
  if (num_prompt + std::max<int64_t>(max_tokens, 1) > limits.max_context) {
    return context_error(num_prompt, max_tokens, limits.max_context);
  }
  const int32_t resolved = resolved_max_tokens(request, limits);
  TRY(check_range("min_tokens", request.sampling.min_tokens, 0, resolved));
  return check_ids("prompt", request.prompt_ids, limits.vocab_size);
}

int32_t resolved_max_tokens(const Request& request, const RequestLimits& limits) {
  if (request.sampling.max_tokens > 0) return request.sampling.max_tokens;
  return limits.max_context - static_cast<int32_t>(request.prompt_ids.size());
}

}  // namespace nibble::engine
