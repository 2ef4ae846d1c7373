#include "grammar/grammar.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "grammar/grammar_testing.h"

namespace nibble::grammar {
namespace {

// All texts of up to `max_length` letters.
std::vector<std::string> all_texts(std::string_view letters, size_t max_length) {
  std::vector<std::string> texts = {""};
  for (size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].size() == max_length) continue;
    for (const char letter : letters) texts.push_back(texts[i] + letter);
  }
  return texts;
}

constexpr const char* kPatterns[] = {"a*",
                                     "(a|b)*c",
                                     "(ab?)+",
                                     "a{2,4}b{0,2}",
                                     "(a|ab)(c|bc)*",
                                     "(a*)*b",
                                     "((a?b?){2}c){1,2}",
                                     "[^a]b|[a-b]{3}",
                                     "(a|b|ab)*",
                                     "a(b(c)?)?",
                                     "(a{0,2}){0,2}b",
                                     "(?:a|)(b|)(c|)"};

// Every text up to a length is accepted exactly when a backtracking matcher accepts it.
TEST(GrammarTest, RegularExpressionsMatchWhatTheyMean) {
  const auto texts = all_texts("abc", 6);
  for (const char* pattern : kPatterns) {
    const auto grammar = compiled_regex(pattern);
    const std::regex oracle(pattern, std::regex::ECMAScript);
    for (const std::string& text : texts) {
      ASSERT_EQ(accepts(grammar, text), std::regex_match(text, oracle)) << pattern << " " << text;
    }
  }
}

// The mask after a text has a token exactly when some accepted text continues with it, whatever
// tokens the text came in.
TEST(GrammarTest, MasksAreExactForEveryTokenisation) {
  const std::vector<std::string> pieces = {"ab", "abc", "bc", "ca", "aa", "bb", "cab"};
  const auto vocabulary = test_vocabulary(pieces);
  constexpr size_t kMaxLength = 5;
  const auto texts = all_texts("abc", kMaxLength + 4);
  for (const char* pattern : kPatterns) {
    const std::regex oracle(pattern, std::regex::ECMAScript);
    std::set<std::string> whole;
    std::set<std::string> prefixes;
    for (const std::string& text : texts) {
      if (!std::regex_match(text, oracle)) continue;
      whole.insert(text);
      for (size_t n = 0; n <= text.size(); ++n) prefixes.insert(text.substr(0, n));
    }
    const auto grammar = compiled({.content = Regex{pattern}, .tools = {}}, vocabulary);
    Matcher matcher(grammar);
    std::function<void(const std::string&)> explore = [&](const std::string& text) {
      std::set<int32_t> expected;
      if (whole.contains(text)) expected.insert(kTestEos);
      std::set<int32_t> found = allowed(matcher);
      std::vector<int32_t> tokens = {'a', 'b', 'c'};
      for (size_t i = 0; i < pieces.size(); ++i) {
        tokens.push_back(kTestFirstText + static_cast<int32_t>(i));
      }
      for (const int32_t token : tokens) {
        const std::string next = text + std::string(vocabulary->spelling(token));
        if (prefixes.contains(next)) expected.insert(token);
      }
      // A class allows bytes that the texts do not have.
      std::erase_if(found,
                    [](int32_t token) { return token < 'a' || ('c' < token && token < kTestEos); });
      ASSERT_EQ(found, expected) << pattern << " after " << text;
      for (const int32_t token : found) {
        const std::string next = text + std::string(vocabulary->spelling(token));
        if (token == kTestEos || next.size() > kMaxLength) continue;
        ASSERT_TRUE(matcher.accept(token).ok());
        explore(next);
        matcher.rollback(1);
      }
    };
    explore("");
  }
}

TEST(GrammarTest, EndIsAllowedOnlyWhenComplete) {
  Matcher matcher(compiled_regex("ab?"));
  EXPECT_EQ(allowed(matcher), (std::set<int32_t>{'a'}));
  EXPECT_FALSE(matcher.can_end());
  EXPECT_FALSE(matcher.accept(kTestEos).ok());
  ASSERT_TRUE(matcher.accept('a').ok());
  EXPECT_EQ(allowed(matcher), (std::set<int32_t>{'b', kTestEos}));
  EXPECT_TRUE(matcher.can_end());
  EXPECT_FALSE(matcher.is_complete());
  ASSERT_TRUE(matcher.accept('b').ok());
  EXPECT_EQ(allowed(matcher), (std::set<int32_t>{kTestEos}));
  EXPECT_TRUE(matcher.is_complete());
  ASSERT_TRUE(matcher.accept(kTestEos).ok());
  EXPECT_TRUE(matcher.is_complete());
  EXPECT_EQ(allowed(matcher), (std::set<int32_t>{kTestEos}));
  EXPECT_FALSE(matcher.accept('b').ok());
  matcher.rollback(2);
  EXPECT_EQ(allowed(matcher), (std::set<int32_t>{'b', kTestEos}));
}

TEST(GrammarTest, ChoicesAreExact) {
  const auto grammar =
      compiled({.content = Choice{{"yes", "yesterday", "no", "\u00e9t\u00e9"}}, .tools = {}});
  for (const char* text : {"yes", "yesterday", "no", "\u00e9t\u00e9"}) {
    EXPECT_TRUE(accepts(grammar, text)) << text;
  }
  EXPECT_EQ(fit(grammar, "yeste"), Fit::kPrefix);
  for (const char* text : {"yesno", "n0", "\u00e8", "Yes"}) {
    EXPECT_EQ(fit(grammar, text), Fit::kRefused) << text;
  }
}

TEST(GrammarTest, CharactersAreWholeUtf8Sequences) {
  const auto grammar = compiled_regex("[\\u00e9-\\u07ff\\u{10000}-\\u{10ffff}]|.");
  EXPECT_TRUE(accepts(grammar, "\u00e9"));
  EXPECT_TRUE(accepts(grammar, "\u20ac"));
  EXPECT_TRUE(accepts(grammar, "\U0001f600"));
  EXPECT_EQ(fit(grammar, "\xe2\x82"), Fit::kPrefix);
  for (const char* text :
       {"\xff", "\x80", "\xc0", "\xc1", "\xed\xa0", "\xf4\x90", "\xf5", "\xe0\x9f"}) {
    EXPECT_EQ(fit(grammar, text), Fit::kRefused);
  }
}

TEST(GrammarTest, TokensWithPartsOfCharactersFit) {
  const auto vocabulary = test_vocabulary({"x\xe2\x82", "\xac!"});
  Matcher matcher(compiled({.content = Regex{".*"}, .tools = {}}, vocabulary));
  ASSERT_TRUE(matcher.accept(kTestFirstText).ok());
  EXPECT_FALSE(matcher.can_end());
  ASSERT_TRUE(matcher.accept(kTestFirstText + 1).ok());
  EXPECT_TRUE(matcher.can_end());
}

TEST(GrammarTest, BytesWithoutATokenAreAvoided) {
  std::vector<VocabularyToken> tokens = {{"a"}, {"b"}, {"bc"}, {"<eos>", true}};
  const auto vocabulary = std::make_shared<const Vocabulary>(tokens, 4, std::vector<int32_t>{3});
  Matcher matcher(compiled({.content = Regex{"a(b|bc|c)"}, .tools = {}}, vocabulary));
  ASSERT_TRUE(matcher.accept(0).ok());
  EXPECT_EQ(allowed(matcher), (std::set<int32_t>{1}));
}

constexpr const char* kNested = R"ebnf(root ::= "(" root ")" | "[" root "]" | "x")ebnf";

TEST(GrammarTest, EbnfNests) {
  const auto grammar = compiled({.content = Ebnf{kNested}, .tools = {}});
  EXPECT_TRUE(accepts(grammar, "([(x)])"));
  EXPECT_EQ(fit(grammar, "([x)"), Fit::kRefused);
  EXPECT_EQ(fit(grammar, "((x)"), Fit::kPrefix);
}

TEST(GrammarTest, RecursionEndsInTime) {
  const auto grammar = compiled({.content = Ebnf{kNested}, .tools = {}});
  Matcher matcher(grammar);
  int32_t depth = 0;
  while (allowed(matcher).contains('(')) {
    ASSERT_TRUE(matcher.accept('(').ok());
    ++depth;
  }
  EXPECT_EQ(depth, Limits().max_recursion - 1);
  EXPECT_EQ(allowed(matcher), (std::set<int32_t>{'x'}));
  ASSERT_TRUE(matcher.accept('x').ok());
  for (; depth > 0; --depth) ASSERT_TRUE(matcher.accept(')').ok());
  EXPECT_TRUE(matcher.is_complete());
}

// Grammars whose texts have very many readings.
TEST(GrammarTest, AmbiguityDoesNotGrow) {
  for (const char* text :
       {"root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"a\" root | \"x\"",
        "root ::= part part part part\npart ::= \"a\" part | \"a\" | \"b\" part?"}) {
    Matcher matcher(compiled({.content = Ebnf{text}, .tools = {}}));
    for (int32_t i = 0; i < 20; ++i) {
      ASSERT_TRUE(matcher.accept('a').ok());
      EXPECT_TRUE(allowed(matcher).contains('a'));
    }
  }
}

TEST(GrammarTest, EbnfFaultsAreNamed) {
  const auto error = [](const char* text) {
    return compile_error({.content = Ebnf{text}, .tools = {}});
  };
  EXPECT_EQ(error("root ::= \"a\"\n  other"), "line 2: rule 'other' is missing");
  EXPECT_EQ(error("a ::= \"a\""), "line 1: rule 'root' is missing");
  EXPECT_EQ(error("root ::= root \"a\" | \"b\""),
            "rule 'root' begins with itself (left recursion); write a repetition");
  EXPECT_EQ(error("root ::= x \"b\"\nx ::= \"\" | y\ny ::= x \"c\" | \"d\""),
            "rule 'x' begins with itself (left recursion); write a repetition");
  EXPECT_EQ(error("root ::= \"a\" root"), "no text can satisfy it (within 32 nested recursions)");
  EXPECT_EQ(error("root ::= \"a"), "line 1: a literal is not closed");
  EXPECT_EQ(error("root ::= (\"a\""), "line 1: a group is not closed");
  EXPECT_EQ(error("root ::= [z-a]"), "line 1: a range in a class is reversed (at character 4)");
}

TEST(GrammarTest, RegexFaultsAreNamed) {
  const auto error = [](const char* pattern) {
    return compile_error({.content = Regex{pattern}, .tools = {}});
  };
  EXPECT_EQ(error("(a"), "a group is not closed (at character 2)");
  EXPECT_EQ(error("(?=a)"), "look-around and group flags are not supported (at character 2)");
  EXPECT_EQ(
      error("(a)\\1"),
      "this escape (a backreference, boundary or property) is not supported (at character 4)");
  EXPECT_EQ(error("a**"), "a repetition is repeated (at character 2)");
  EXPECT_EQ(error("a{3,2}"), "the second repetition count is below the first (at character 6)");
  EXPECT_EQ(error("a{99999}"), "a count is above 10000 (at character 6)");
  EXPECT_NE(error("[]"), "");
}

// Size is bounded while compiling, whatever the source asks for.
TEST(GrammarTest, HostileSourcesFailFast) {
  const auto error = [](const std::string& pattern) {
    return compile_error({.content = Regex{pattern}, .tools = {}});
  };
  std::string nested = "a";
  for (int32_t i = 0; i < 90; ++i) nested = "(" + nested + "){9999}";
  EXPECT_NE(error(nested).find("too large"), std::string::npos);
  EXPECT_NE(error(std::string(300'000, 'a')).find("expected at most"), std::string::npos);
  EXPECT_NE(error(std::string(1000, '(')).find("too deeply"), std::string::npos);
  std::string optional;
  for (int32_t i = 0; i < 5000; ++i) optional += "a?";
  EXPECT_NE(error(optional).find("too large"), std::string::npos);
}

TEST(GrammarTest, ExponentialPatternsStayWithinTheirWork) {
  Matcher matcher(compiled_regex("(a|b)*a(a|b){60}"));
  std::mt19937 random(1);
  for (int32_t i = 0; i < 2000; ++i) {
    ASSERT_TRUE(matcher.accept(random() % 2 == 0 ? 'a' : 'b').ok());
    const std::set<int32_t> tokens = allowed(matcher);
    ASSERT_TRUE(tokens.contains('a') && tokens.contains('b'));
  }
}

// Caches are emptied under way; sequences in progress do not notice.
TEST(GrammarTest, FullCachesKeepSequencesInProgress) {
  Limits limits;
  limits.max_cached_bytes = 20'000;
  auto grammar =
      compile({.content = Regex{"(a|b)*a(a|b){12}"}, .tools = {}}, test_vocabulary(), limits);
  ASSERT_TRUE(grammar.ok());
  Matcher first(*grammar);
  Matcher second(*grammar);
  std::mt19937 random(2);
  std::string text;
  std::vector<std::set<int32_t>> masks = {allowed(first)};
  for (int32_t i = 0; i < 500; ++i) {
    const char letter = random() % 2 == 0 ? 'a' : 'b';
    text += letter;
    ASSERT_TRUE(first.accept(letter).ok());
    ASSERT_TRUE(second.accept(i % 2 == 0 ? 'a' : 'b').ok());
    masks.push_back(allowed(first));
    const bool is_whole = text.size() > 12 && text[text.size() - 13] == 'a';
    ASSERT_EQ(first.can_end(), is_whole) << i;
  }
  for (size_t i = masks.size(); i-- > 1;) {
    EXPECT_EQ(allowed(first), masks[i]);
    first.rollback(1);
  }
}

// Any interleaving of accepted tokens and rollbacks gives what the remaining tokens alone give.
TEST(GrammarTest, RollbackForgets) {
  const auto grammar = compiled({.content = JsonObject{}, .tools = {}});
  std::mt19937 random(3);
  Matcher matcher(grammar);
  std::vector<int32_t> tokens;
  for (int32_t step = 0; step < 600; ++step) {
    if (!tokens.empty() && random() % 4 == 0) {
      const auto count = static_cast<int32_t>(random() % std::min<size_t>(tokens.size(), 8)) + 1;
      matcher.rollback(count);
      tokens.resize(tokens.size() - static_cast<size_t>(count));
    } else {
      const std::set<int32_t> choices = allowed(matcher);
      auto chosen = choices.begin();
      std::advance(chosen, static_cast<std::ptrdiff_t>(random() % choices.size()));
      ASSERT_TRUE(matcher.accept(*chosen).ok());
      tokens.push_back(*chosen);
    }
    Matcher fresh(grammar);
    for (const int32_t token : tokens) ASSERT_TRUE(fresh.accept(token).ok());
    ASSERT_EQ(allowed(matcher), allowed(fresh));
    ASSERT_EQ(matcher.can_end(), fresh.can_end());
  }
}

}  // namespace
}  // namespace nibble::grammar
