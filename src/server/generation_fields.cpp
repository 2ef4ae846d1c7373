#include "server/generation_fields.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/http_message.h"

namespace nibble::server {
namespace {

constexpr size_t kMaxStops = 16;
constexpr size_t kMaxStopBytes = 1024;
constexpr size_t kMaxStopTokens = 64;

// Carry no meaning here, or only for systems around the engine.
constexpr const char* kIgnoredFields[] = {"user",
                                          "metadata",
                                          "store",
                                          "service_tier",
                                          "safety_identifier",
                                          "prompt_cache_key",
                                          "session_id",
                                          "stream_reasoning"};

Result<void> read_streaming(FieldReader& reader, GenerationFields& fields) {
  TRY(reader.read("stream", fields.stream));
  TRY_ASSIGN(const json::Object* options, reader.object("stream_options"));
  if (options == nullptr) return {};
  if (!fields.stream)
    return wrong_value("stream_options", "only allowed together with stream: true");
  FieldReader option_reader(*options, "stream_options.");
  TRY(option_reader.read("include_usage", fields.include_usage));
  return option_reader.read("continuous_usage_stats", fields.continuous_usage);
}

Result<void> read_stop_token_ids(FieldReader& reader,
                                 int32_t vocab_size,
                                 std::vector<int32_t>& target) {
  TRY_ASSIGN(const json::Array* ids, reader.array("stop_token_ids"));
  if (ids == nullptr) return {};
  target.clear();
  if (ids->size() > kMaxStopTokens) {
    return wrong_value("stop_token_ids", fmt::format("expected at most {} ids", kMaxStopTokens));
  }
  for (const json::Value& id : *ids) {
    TRY_ASSIGN(const int64_t number, to_integer(id, "stop_token_ids", {0, vocab_size - 1}));
    target.push_back(static_cast<int32_t>(number));
  }
  return {};
}

Result<void> read_logit_bias(FieldReader& reader,
                             int32_t vocab_size,
                             std::vector<std::pair<int32_t, float>>& target) {
  TRY_ASSIGN(const json::Object* biases, reader.object("logit_bias"));
  if (biases == nullptr) return {};
  target.clear();
  for (const json::Member& member : *biases) {
    const std::optional<int64_t> id = parse_integer(member.key);
    if (!id || *id < 0 || *id >= vocab_size) {
      return wrong_value("logit_bias",
                         fmt::format("expected token ids from 0 to {} as keys", vocab_size - 1));
    }
    TRY_ASSIGN(const double bias, to_number(member.value, "logit_bias", {-100, 100}));
    target.emplace_back(static_cast<int32_t>(*id), static_cast<float>(bias));
  }
  return {};
}

Result<void> read_min_tokens(FieldReader& reader, engine::SamplingParams& sampling) {
  TRY(reader.read("min_tokens", sampling.min_tokens, {0, INT32_MAX}));
  if (sampling.max_tokens > 0 && sampling.min_tokens > sampling.max_tokens) {
    return wrong_value(
        "min_tokens",
        fmt::format("{} is more than max_tokens {}", sampling.min_tokens, sampling.max_tokens));
  }
  return {};
}

Result<void> read_distribution(FieldReader& reader,
                               const ServedModel& model,
                               GenerationFields& fields) {
  engine::SamplingParams& sampling = fields.sampling;
  const engine::SamplingParams& defaults = model.default_sampling;
  constexpr float kSmallestTopP = 1e-6F;  // 0 means the most likely token only
  TRY(reader.read("temperature", sampling.temperature, {0, 2}));
  TRY(reader.read("top_p", sampling.top_p, {0, 1}));
  sampling.top_p = std::max(sampling.top_p, kSmallestTopP);
  TRY(reader.read("min_p", sampling.min_p, {0, 1}));
  TRY(reader.read("top_k", sampling.top_k, {-1, INT32_MAX}));
  sampling.top_k = sampling.top_k >= model.vocab_size ? 0 : std::max(sampling.top_k, 0);
  TRY(reader.read("presence_penalty", sampling.presence_penalty, {-2, 2}));
  TRY(reader.read("frequency_penalty", sampling.frequency_penalty, {-2, 2}));
  TRY(reader.read("repetition_penalty", sampling.repetition_penalty, {0.01, 10}));
  std::optional<int64_t> seed;
  TRY(reader.read("seed", seed, {INT64_MIN, INT64_MAX}));
  if (seed) sampling.seed = static_cast<uint64_t>(*seed);
  fields.shapes_sampling = sampling.temperature != defaults.temperature ||
                           sampling.presence_penalty != defaults.presence_penalty ||
                           sampling.frequency_penalty != defaults.frequency_penalty;
  return {};
}

Result<void> read_output_shape(FieldReader& reader, engine::SamplingParams& sampling) {
  TRY(reader.read("include_stop_str_in_output", sampling.include_stop_in_output));
  bool no_stop_trim = sampling.include_stop_in_output;
  TRY(reader.read("no_stop_trim", no_stop_trim));
  sampling.include_stop_in_output = no_stop_trim;
  return reader.read("skip_special_tokens", sampling.skip_special_tokens);
}

}  // namespace

Result<void> read_model(FieldReader& reader, const ServedModel& model, std::string& target) {
  target = model.names.front();
  TRY(reader.read("model", target));
  if (std::find(model.names.begin(), model.names.end(), target) != model.names.end()) return {};
  constexpr size_t kMaxShown = 100;
  return Error{Errc::kNotFound,
               fmt::format("model: '{}' is not served here; this is '{}'",
                           target.substr(0, kMaxShown),
                           model.names.front()),
               "model_not_found",
               "model"};
}

Result<void> read_stop(FieldReader& reader,
                       std::string_view key,
                       std::vector<std::string>& target) {
  const json::Value* stop = reader.any(key);
  if (stop == nullptr) return {};
  target.clear();
  const json::Array single = stop->is_string() ? json::Array{*stop} : json::Array{};
  const json::Array* items = stop->is_string() ? &single : stop->as_array();
  if (items == nullptr)
    return wrong_type(reader.param(key), "a string or an array of strings", *stop);
  if (items->size() > kMaxStops) {
    return wrong_value(
        reader.param(key),
        fmt::format("expected at most {} strings, found {}", kMaxStops, items->size()));
  }
  for (const json::Value& item : *items) {
    const std::string* text = item.as_string();
    if (text == nullptr) return wrong_type(reader.param(key), "an array of strings", item);
    if (text->empty() || text->size() > kMaxStopBytes) {
      return wrong_value(reader.param(key),
                         fmt::format("expected strings of 1 to {} bytes", kMaxStopBytes));
    }
    target.push_back(*text);
  }
  return {};
}

GenerationFields default_fields(const ServedModel& model) {
  GenerationFields fields;
  fields.model = model.names.front();
  fields.sampling = model.default_sampling;
  return fields;
}

Result<void> read_scheduling(FieldReader& reader, GenerationFields& fields) {
  constexpr size_t kMaxSaltBytes = 256;
  constexpr IntegerRange kPriorities = {-1000, 1000};
  TRY(reader.read("priority", fields.priority, kPriorities));
  TRY(reader.read("request_id", fields.client_id));
  TRY(reader.read("rid", fields.client_id));
  TRY(reader.read("cache_salt", fields.cache_salt));
  if (fields.cache_salt.size() <= kMaxSaltBytes) return {};
  return wrong_value("cache_salt", fmt::format("expected at most {} bytes", kMaxSaltBytes));
}

Result<void> read_thinking_budget(FieldReader& reader,
                                  std::string_view key,
                                  GenerationFields& fields) {
  int32_t budget = -1;
  TRY(reader.read(key, budget, {-1, INT32_MAX}));
  if (budget >= 0) fields.thinking_budget = budget;
  return {};
}

Result<void> read_prompt_logprobs(FieldReader& reader, GenerationFields& fields) {
  std::optional<int64_t> count;
  TRY(reader.read("prompt_logprobs", count, {0, kMaxTopLogprobs}));
  if (!count) return {};
  if (fields.stream) return wrong_value("prompt_logprobs", "only allowed without stream: true");
  fields.sampling.prompt_logprobs = static_cast<int32_t>(*count);
  return {};
}

Result<void> read_sampling(FieldReader& reader,
                           const ServedModel& model,
                           GenerationFields& fields) {
  engine::SamplingParams& sampling = fields.sampling;
  TRY(read_min_tokens(reader, sampling));
  TRY(reader.read("ignore_eos", sampling.ignore_eos));
  TRY(read_distribution(reader, model, fields));
  TRY(read_logit_bias(reader, model.vocab_size, sampling.logit_bias));
  TRY(read_stop_token_ids(reader, model.vocab_size, sampling.stop_token_ids));
  return read_output_shape(reader, sampling);
}

Result<GenerationFields> read_generation_fields(FieldReader& reader,
                                                const ServedModel& model,
                                                MaxTokensRule max_tokens) {
  GenerationFields fields = default_fields(model);
  engine::SamplingParams& sampling = fields.sampling;
  if (sampling.max_tokens == 0) sampling.max_tokens = max_tokens.if_absent;
  TRY(read_model(reader, model, fields.model));
  TRY(read_streaming(reader, fields));
  TRY(reader.read("n", fields.n, {1, kMaxN}));
  TRY(reader.read("return_token_ids", fields.return_token_ids));
  TRY(reader.read("max_tokens", sampling.max_tokens, {max_tokens.min, INT32_MAX}));
  TRY(reader.read("max_completion_tokens", sampling.max_tokens, {1, INT32_MAX}));
  TRY(read_stop(reader, "stop", sampling.stop));
  TRY(read_sampling(reader, model, fields));
  TRY(read_scheduling(reader, fields));
  for (const char* key : kIgnoredFields) reader.ignore(key);
  return fields;
}

Result<void> refuse_unsupported_fields(FieldReader& reader) {
  for (const char* key :
       {"kv_transfer_params", "allowed_token_ids", "bad_words", "use_beam_search"}) {
    TRY(reader.refuse(key, "is not supported"));
  }
  return {};
}

}  // namespace nibble::server
