#include "bench_client/prompt_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace nibble::bench_client {
namespace {

constexpr size_t kFewestWords = 8;
constexpr int32_t kProbeRepeats = 16;

// Short and frequent: one token in nearly every vocabulary.
constexpr std::string_view kCommonWords[] = {
    " the",  " of",    " and",  " to",   " in",   " is",   " that", " for", " it",
    " as",   " was",   " with", " be",   " by",   " on",   " not",  " he",  " his",
    " but",  " at",    " are",  " this", " have", " from", " or",   " had", " an",
    " they", " which", " one",  " you",  " were", " her",  " all",  " she", " there"};

bool is_plain_word(std::string_view bytes) {
  if (bytes.size() < 2 || bytes.front() != ' ') return false;
  return std::all_of(bytes.begin() + 1, bytes.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  });
}

std::string repeat(std::string_view word, int32_t count) {
  std::string text;
  for (int32_t i = 0; i < count; ++i) text += word;
  return text;
}

// Prompt tokens that the server counts for `text`.
Result<std::optional<int64_t>> count_by_server(HttpClient& client,
                                               const Target& target,
                                               std::string text) {
  TRY_ASSIGN(const Reply reply, ask(client, target, {{"user", std::move(text)}}, 1));
  return reply.prompt_tokens;
}

Error no_usage(const Target& target) {
  return unsupported(fmt::format(
      "{}: reports no usage, so the length of a prompt is unknown; give --tokenizer DIR",
      target.base_url));
}

}  // namespace

Result<std::vector<std::string>> one_token_words(const text::Tokenizer& tokenizer) {
  std::vector<std::string> words;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view bytes = tokenizer.token_bytes(id);
    if (!is_plain_word(bytes)) continue;
    // Also between others: the words of a prompt follow each other.
    TRY_ASSIGN(const std::vector<int32_t> ids, tokenizer.encode(repeat(bytes, 3), {}));
    if (ids == std::vector<int32_t>{id, id, id}) words.emplace_back(bytes);
  }
  if (words.size() >= kFewestWords) return words;
  return unsupported(fmt::format(
      "the tokenizer has {} words of one token, expected at least {}", words.size(), kFewestWords));
}

Result<std::vector<std::string>> probe_one_token_words(HttpClient& client, const Target& target) {
  std::vector<std::string> words;
  for (const std::string_view word : kCommonWords) {
    TRY_ASSIGN(const auto once, count_by_server(client, target, std::string(word)));
    TRY_ASSIGN(const auto many, count_by_server(client, target, repeat(word, 1 + kProbeRepeats)));
    if (!once || !many) return no_usage(target);
    if (*many - *once == kProbeRepeats) words.emplace_back(word);
  }
  if (words.size() >= kFewestWords) return words;
  return unsupported(fmt::format(
      "{}: only {} of {} common words are one token each; give --tokenizer DIR for exact lengths",
      target.base_url,
      words.size(),
      std::size(kCommonWords)));
}

Result<int32_t> probe_template_tokens(HttpClient& client,
                                      const Target& target,
                                      const std::vector<std::string>& words) {
  const auto num_words = static_cast<int64_t>(std::min<size_t>(words.size(), 16));
  std::string text;
  for (int64_t i = 0; i < num_words; ++i) text += words[static_cast<size_t>(i)];
  TRY_ASSIGN(const auto counted, count_by_server(client, target, std::move(text)));
  if (!counted) return 0;
  return static_cast<int32_t>(std::clamp<int64_t>(*counted - num_words, 0, 1 << 20));
}

std::string random_text(const PromptWords& words, int64_t count, Random& random) {
  std::string text;
  for (int64_t i = 0; i < count; ++i) text += random.pick(words.words);
  return text;
}

}  // namespace nibble::bench_client
