// Schemas, patterns and grammars from outside: compiling never crashes and stays within its limits;
// of what compiles, every walk of allowed tokens can be completed, and masks agree with accept().
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "grammar/grammar.h"

namespace {

using nibble::grammar::Grammar;
using nibble::grammar::Limits;
using nibble::grammar::Matcher;
using nibble::grammar::Spec;
using nibble::grammar::Vocabulary;
using nibble::grammar::VocabularyToken;

constexpr int32_t kEos = 256;
constexpr size_t kMaxTokens = 24;

std::shared_ptr<const Vocabulary> vocabulary() {
  static const std::shared_ptr<const Vocabulary> made = [] {
    std::vector<VocabularyToken> tokens;
    for (int32_t byte = 0; byte < 256; ++byte) {
      tokens.push_back({.bytes = std::string(1, static_cast<char>(byte)), .is_control = false});
    }
    tokens.push_back({.bytes = "<eos>", .is_control = true});
    for (const char* text : {"{\"", "\":", "ab", "aa", "], [", "\n  ", "true", "12", "\xc3\xa9"}) {
      tokens.push_back({.bytes = text, .is_control = false});
    }
    return std::make_shared<const Vocabulary>(
        tokens, static_cast<int32_t>(tokens.size()), std::vector<int32_t>{kEos});
  }();
  return made;
}

// The input chooses the form by its first byte, the walk by its last bytes.
Spec spec_of(uint8_t form, std::string_view text) {
  Spec spec;
  switch (form % 4) {
    case 0: {
      auto schema = nibble::json::parse(text);
      if (schema.ok()) spec.content = nibble::grammar::JsonSchema{*std::move(schema)};
      break;
    }
    case 1:
      spec.content = nibble::grammar::Regex{std::string(text)};
      break;
    case 2:
      spec.content = nibble::grammar::Ebnf{std::string(text)};
      break;
    default:
      spec.content = nibble::grammar::Choice{{std::string(text), "a", "ab"}};
  }
  return spec;
}

void walk(const std::shared_ptr<const Grammar>& grammar, std::string_view choices) {
  Matcher matcher(grammar);
  std::vector<uint64_t> words(vocabulary()->num_mask_words());
  for (size_t i = 0; i < kMaxTokens && i < choices.size(); ++i) {
    if (!matcher.fill_allowed(words).ok()) return;  // too ambiguous
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < vocabulary()->vocab_size(); ++id) {
      const auto bit = static_cast<size_t>(id);
      if ((words[bit / 64] >> (bit % 64) & 1) != 0) allowed.push_back(id);
    }
    CHECK(!allowed.empty());
    const auto choice = static_cast<uint8_t>(choices[choices.size() - 1 - i]);
    const int32_t token = allowed[choice % allowed.size()];
    const bool is_end = token == kEos;
    CHECK(!is_end || matcher.can_end()) << "stuck";
    const auto taken = matcher.accept(token);
    CHECK(taken.ok()) << taken.error().message;
    if (is_end) return;
    if (choice % 5 == 0) {
      matcher.rollback(1);
      CHECK(matcher.accept(token).ok());
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  Limits limits;
  limits.max_states = 20'000;
  limits.max_edges = 100'000;
  limits.max_expressions = 40'000;
  limits.max_cached_bytes = 1 << 20;
  limits.max_work_per_mask = 500'000;
  const auto grammar = nibble::grammar::compile(spec_of(data[0], text), vocabulary(), limits);
  if (!grammar.ok()) {
    CHECK(!grammar.error().message.empty());
    return 0;
  }
  walk(*grammar, text);
  return 0;
}
