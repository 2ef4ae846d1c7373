#include "engine/sequence.h"

#include <utility>

namespace nibble::engine {

Sequence::Sequence(Request accepted_request,
                   OutputSink output_sink,
                   const text::Tokenizer& tokenizer,
                   int32_t resolved_max_tokens,
                   uint64_t default_seed,
                   TimePoint arrival)
    : request(std::move(accepted_request)),
      sink(std::move(output_sink)),
      max_tokens(resolved_max_tokens),
      seed(request.sampling.seed.value_or(default_seed)),
      token_ids(request.prompt_ids),
      counts(request.sampling, request.prompt_ids),
      detokenizer(tokenizer,
                  request.sampling.skip_special_tokens ? text::Detokenizer::Specials::kSkip
                                                       : text::Detokenizer::Specials::kKeep,
                  request.sampling.visible_special_ids),
      stop_matcher(request.sampling.stop,
                   request.sampling.include_stop_in_output ? StopMatcher::MatchedText::kKeep
                                                           : StopMatcher::MatchedText::kDrop),
      arrived(arrival) {
  if (request.grammar) matcher = std::make_unique<grammar::Matcher>(request.grammar);
  if (request.reasoning_budget) {
    reasoning_end.emplace(
        std::vector{std::string(tokenizer.token_bytes(request.reasoning_budget->end_token_id))});
  }
}

bool Sequence::wants_prompt_logprobs() const {
  return request.sampling.prompt_logprobs.has_value() &&
         static_cast<int32_t>(prompt_logprobs.size()) + 1 < num_prompt();
}

std::optional<int32_t> Sequence::forced_token() const {
  const bool is_used_up = reasoning_end && num_generated() >= request.reasoning_budget->num_tokens;
  return is_used_up ? std::optional(request.reasoning_budget->end_token_id) : std::nullopt;
}

std::string Sequence::push_text(int32_t token_id, bool can_stop) {
  const std::string piece = detokenizer.push(token_id);
  if (reasoning_end) {
    reasoning_end->push(piece);
    const bool is_end = token_id == request.reasoning_budget->end_token_id;
    if (is_end || reasoning_end->match() != nullptr) reasoning_end.reset();
  }
  return can_stop ? stop_matcher.push(piece) : stop_matcher.pass(piece);
}

std::string Sequence::flush_text() {
  if (stop_matcher.match() != nullptr) return {};
  std::string text = stop_matcher.flush();
  return text.append(detokenizer.flush());
}

}  // namespace nibble::engine
