#include "server/request_record.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"

namespace nibble::server {

void ChoiceProgress::note_output(int64_t num_tokens, TimePoint now) {
  if (!first_output) first_output = now;
  if (last_output)
    longest_gap_seconds = std::max(longest_gap_seconds, to_seconds(now - *last_output));
  last_output = now;
  completion_tokens += num_tokens;
}

void RequestRecord::add(const ChoiceProgress& choice) {
  prompt_tokens += choice.prompt_tokens;
  completion_tokens += choice.completion_tokens;
  longest_gap_seconds = std::max(longest_gap_seconds, choice.longest_gap_seconds);
  if (!choice.first_output) return;
  decode_seconds = std::max(decode_seconds, to_seconds(*choice.last_output - *choice.first_output));
}

void RequestRecord::add(const engine::Finish& finish) {
  prompt_tokens += finish.usage.prompt_tokens;
  cached_tokens += finish.usage.cached_tokens;
  completion_tokens += finish.usage.completion_tokens;
  is_cut = is_cut || finish.reason == engine::FinishReason::kLength;
  num_preemptions += finish.num_preemptions;
  queue_seconds = std::max(queue_seconds, finish.queue_seconds);
  prefill_seconds = std::max(prefill_seconds, finish.prefill_seconds);
  decode_seconds = std::max(decode_seconds, finish.decode_seconds);
  longest_gap_seconds = std::max(longest_gap_seconds, finish.longest_gap_seconds);
}

std::string to_json_members(const RequestRecord& record) {
  std::string text = fmt::format(
      R"("stream":{},"choices":{},"prompt_tokens":{},"cached_tokens":{},"completion_tokens":{},)"
      R"("preemptions":{},"queue_ms":{:.1f},"prefill_ms":{:.1f},"decode_ms":{:.1f},)"
      R"("first_token_ms":{:.1f},"longest_gap_ms":{:.1f},"end":)",
      record.stream,
      record.num_choices,
      record.prompt_tokens,
      record.cached_tokens,
      record.completion_tokens,
      record.num_preemptions,
      record.queue_seconds * 1e3,
      record.prefill_seconds * 1e3,
      record.decode_seconds * 1e3,
      record.first_token_seconds * 1e3,
      record.longest_gap_seconds * 1e3);
  json::append_quoted(text, record.end);
  return text;
}

}  // namespace nibble::server
