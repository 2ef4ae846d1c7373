#include "grammar/grammar_testing.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "text/chat_protocol.h"

namespace nibble::grammar {

std::shared_ptr<const Vocabulary> test_vocabulary(const std::vector<std::string>& texts) {
  std::vector<VocabularyToken> tokens;
  for (int32_t byte = 0; byte < 256; ++byte) {
    tokens.push_back({.bytes = std::string(1, static_cast<char>(byte))});
  }
  tokens.push_back({.bytes = "<eos>", .is_control = true});
  tokens.push_back({.bytes = std::string(text::kThinkClose), .is_control = true});
  tokens.push_back({.bytes = std::string(text::kDsmlToken), .is_control = true});
  for (const std::string& text : texts) tokens.push_back({.bytes = text});
  const auto vocab_size = static_cast<int32_t>(tokens.size());
  return std::make_shared<const Vocabulary>(tokens, vocab_size, std::vector<int32_t>{kTestEos});
}

std::shared_ptr<const Grammar> compiled(const Spec& spec,
                                        const std::shared_ptr<const Vocabulary>& vocabulary) {
  auto grammar = compile(spec, vocabulary);
  EXPECT_TRUE(grammar.ok()) << grammar.error().message;
  return grammar.ok() ? *std::move(grammar) : nullptr;
}

Spec schema_spec(std::string_view schema) {
  auto parsed = json::parse(schema);
  EXPECT_TRUE(parsed.ok()) << schema;
  return {.content = JsonSchema{*std::move(parsed)}, .tools = {}};
}

std::shared_ptr<const Grammar> compiled_schema(std::string_view schema) {
  return compiled(schema_spec(schema));
}

std::shared_ptr<const Grammar> compiled_regex(std::string_view pattern) {
  return compiled({.content = Regex{std::string(pattern)}, .tools = {}});
}

std::string compile_error(const Spec& spec) {
  const auto grammar = compile(spec, test_vocabulary());
  return grammar.ok() ? std::string() : grammar.error().message;
}

std::string schema_error_of(std::string_view schema) { return compile_error(schema_spec(schema)); }

std::set<int32_t> allowed(Matcher& matcher) {
  std::vector<uint64_t> words(matcher.grammar().vocabulary().num_mask_words());
  const auto filled = matcher.fill_allowed(words);
  EXPECT_TRUE(filled.ok()) << filled.error().message;
  std::set<int32_t> ids;
  for (size_t id = 0; id < words.size() * 64; ++id) {
    if ((words[id / 64] >> (id % 64) & 1) != 0) ids.insert(static_cast<int32_t>(id));
  }
  return ids;
}

Fit fit(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  Matcher matcher(grammar);
  while (!text.empty()) {
    int32_t token = static_cast<unsigned char>(text.front());
    size_t num_bytes = 1;
    if (text.starts_with(text::kDsmlToken)) {
      token = kTestDsml;
      num_bytes = text::kDsmlToken.size();
    } else if (text.starts_with(text::kThinkClose)) {
      token = kTestThinkEnd;
      num_bytes = text::kThinkClose.size();
    }
    if (!matcher.accept(token).ok()) return Fit::kRefused;
    text.remove_prefix(num_bytes);
  }
  return matcher.can_end() ? Fit::kWhole : Fit::kPrefix;
}

}  // namespace nibble::grammar
