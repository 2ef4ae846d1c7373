// Text of a chosen number of tokens: words that are one token each wherever they stand.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "bench_client/http_client.h"
#include "bench_client/random.h"
#include "bench_client/target.h"
#include "text/tokenizer.h"

namespace nibble::bench_client {

struct PromptWords {
  std::vector<std::string> words;  // each with the space before it
  // Tokens that the server adds to a prompt: chat template, beginning of sequence.
  int32_t template_tokens = 0;
};

// Every word of the tokenizer's vocabulary: a space and ASCII letters that encode to one token.
// kUnsupported when there are too few to tell prompts apart.
Result<std::vector<std::string>> one_token_words(const text::Tokenizer& tokenizer);

// Asks the server itself, by the usage of short prompts, which common English words are one token.
// kUnsupported when it reports no usage or knows too few of them.
Result<std::vector<std::string>> probe_one_token_words(HttpClient& client, const Target& target);

// Measured with a prompt of `words`. 0 when the server reports no usage.
Result<int32_t> probe_template_tokens(HttpClient& client,
                                      const Target& target,
                                      const std::vector<std::string>& words);

// `count` random words.
std::string random_text(const PromptWords& words, int64_t count, Random& random);

}  // namespace nibble::bench_client
