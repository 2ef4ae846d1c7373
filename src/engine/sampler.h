// From one row of logits to one token: pure functions, no state and no threads.
//
// Order of the steps, each on the outcome of the one before:
//   1. logit_bias is added.
//   2. Tokens that the constraint does not allow get -inf, then those that min_tokens forbids,
//      unless nothing else is left.
//   3. repetition_penalty p: a logit of a token in prompt or output is divided by p when positive,
//      multiplied by p otherwise. frequency_penalty times its count in the output, then
//      presence_penalty once if it is in the output, are subtracted (OpenAI's definition).
//   4. A temperature below 1e-5 takes the largest, the lowest id on ties, and ends here.
//   5. logits are divided by the temperature and turned into probabilities.
//   6. top_k keeps the k most probable tokens, lower ids first among equals.
//   7. top_p keeps the shortest prefix of these, in descending order, whose share of what top_k
//   left
//      reaches top_p.
//   8. min_p drops tokens less probable than min_p times the most probable one.
//   9. One uniform number of (seed, position) picks from what is left.
//
// Logprobs are the log-softmax of the model's own logits, before all of these steps, so that they
// do not depend on the request's sampling parameters.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/request.h"

namespace nibble::engine {

// How often a sequence's tokens occur in its output, for the penalties. Stays empty without them.
class TokenCounts final {
 public:
  TokenCounts(const SamplingParams& params, std::span<const int32_t> prompt_ids);

  void add_generated(int32_t token_id);

  // Token id -> occurrences in the output; 0 for tokens of the prompt only. Bounded by the context.
  const std::unordered_map<int32_t, int32_t>& num_generated() const { return num_generated_; }

 private:
  bool is_used_;
  std::unordered_map<int32_t, int32_t> num_generated_;
};

// Buffers of [vocab_size] that are reused from token to token. Owner: the engine thread.
struct SamplerScratch {
  std::vector<float> logits;
  std::vector<int32_t> token_ids;
};

struct SamplerInput {
  std::span<const float> logits;           // [vocab_size], all finite
  std::span<const int32_t> forbidden_ids;  // step 2; inside the vocabulary
  std::span<const uint64_t> allowed;       // step 2; a bit per token, or empty: all
  const TokenCounts* counts = nullptr;     // null: no penalties
  uint64_t seed = 0;
  uint64_t position = 0;  // of the token in the output
};

// Whether step 4 ends with the largest logit.
bool is_greedy(const SamplingParams& params);

// Linear in the vocabulary: selections are partial, nothing sorts all of it.
int32_t sample(const SamplingParams& params, const SamplerInput& input, SamplerScratch& scratch);

// True when no element is NaN or infinite.
bool all_finite(std::span<const float> logits);
bool all_equal(std::span<const float> logits);

// The log-probability of `token_id` and of the `num_top` most probable tokens, descending, lower
// ids first among equals.
TokenLogprob token_logprob(std::span<const float> logits, int32_t token_id, int32_t num_top);

}  // namespace nibble::engine
