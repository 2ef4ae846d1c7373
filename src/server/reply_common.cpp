#include "server/reply_common.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/utf8.h"

namespace nibble::server {
namespace {

json::Object token_entry(const text::Tokenizer& tokenizer, int32_t id, float logprob) {
  json::Array bytes;
  for (const char byte : tokenizer.token_bytes(id)) {
    bytes.emplace_back(static_cast<int32_t>(static_cast<unsigned char>(byte)));
  }
  return json::make_object({{"token", token_text(tokenizer, id)},
                            {"logprob", finite_logprob(logprob)},
                            {"bytes", std::move(bytes)}});
}

}  // namespace

json::Object usage_object(const UsageCounts& usage) {
  return json::make_object(
      {{"prompt_tokens", usage.prompt_tokens},
       {"completion_tokens", usage.completion_tokens},
       {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
       {"prompt_tokens_details", json::make_object({{"cached_tokens", usage.cached_tokens}})},
       {"completion_tokens_details",
        json::make_object({{"reasoning_tokens", usage.reasoning_tokens}})}});
}

json::Object reply_object(const ReplyEnvelope& envelope,
                          std::string_view object,
                          json::Array choices) {
  return json::make_object({{"id", envelope.id},
                            {"object", object},
                            {"created", envelope.created},
                            {"model", envelope.model},
                            {"choices", std::move(choices)},
                            {"system_fingerprint", envelope.system_fingerprint}});
}

void append_event(std::string& events, const json::Value& payload) {
  events += "data: ";
  json::dump_to(events, payload, json::Style::kCompact);
  events += "\n\n";
}

void append_named_event(std::string& events, std::string_view name, const json::Value& payload) {
  events += "event: ";
  events += name;
  events += '\n';
  append_event(events, payload);
}

json::Array id_array(const std::vector<int32_t>& ids) {
  return json::Array(ids.begin(), ids.end());
}

std::string token_text(const text::Tokenizer& tokenizer, int32_t id) {
  return replace_invalid_utf8(tokenizer.token_bytes(id));
}

double finite_logprob(float logprob) {
  constexpr float kLowest = -9999.0F;
  return logprob >= kLowest ? static_cast<double>(logprob) : static_cast<double>(kLowest);
}

double readable(float value) {
  constexpr double kDigits = 1e6;
  return std::round(static_cast<double>(value) * kDigits) / kDigits;
}

json::Object logprob_entry(const text::Tokenizer& tokenizer, const engine::TokenLogprob& logprob) {
  json::Object entry = token_entry(tokenizer, logprob.token_id, logprob.logprob);
  json::Array top;
  for (const auto& [id, value] : logprob.top) top.emplace_back(token_entry(tokenizer, id, value));
  entry.set("top_logprobs", std::move(top));
  return entry;
}

json::Array prompt_logprobs_array(const text::Tokenizer& tokenizer,
                                  const std::vector<engine::TokenLogprob>& logprobs) {
  json::Array tokens = {json::Value()};
  for (const engine::TokenLogprob& logprob : logprobs) {
    json::Object entry;
    const auto add = [&](int32_t id, float value, int32_t rank) {
      entry.set(std::to_string(id),
                json::make_object({{"logprob", finite_logprob(value)},
                                   {"rank", rank},
                                   {"decoded_token", token_text(tokenizer, id)}}));
    };
    add(logprob.token_id, logprob.logprob, logprob.rank);
    int32_t rank = 0;
    for (const auto& [id, value] : logprob.top) {
      ++rank;
      if (id != logprob.token_id) add(id, value, rank);
    }
    tokens.emplace_back(std::move(entry));
  }
  return tokens;
}

json::Value stop_reason(const engine::Finish& finish) {
  if (!finish.matched_stop.empty()) return finish.matched_stop;
  if (finish.matched_stop_token >= 0) return finish.matched_stop_token;
  return {};
}

}  // namespace nibble::server
