#include "engine/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

namespace nibble::engine {
namespace {

struct Outcome {
  std::string text;
  std::string match;

  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome run(StopMatcher matcher, const std::vector<std::string>& pieces) {
  Outcome outcome;
  for (const std::string& piece : pieces) {
    outcome.text += matcher.push(piece);
    if (matcher.match() != nullptr) {
      outcome.match = *matcher.match();
      return outcome;
    }
  }
  outcome.text += matcher.flush();
  return outcome;
}

TEST(StopMatcher, CutsBeforeTheStop) {
  EXPECT_EQ(run(StopMatcher({"END"}), {"one END two"}), (Outcome{"one ", "END"}));
  EXPECT_EQ(run(StopMatcher({"END"}, StopMatcher::MatchedText::kKeep), {"one END two"}),
            (Outcome{"one END", "END"}));
}

TEST(StopMatcher, FindsStopsAcrossPieces) {
  EXPECT_EQ(run(StopMatcher({"END"}), {"one E", "N", "D two"}), (Outcome{"one ", "END"}));
  EXPECT_EQ(run(StopMatcher({"aab"}), {"a", "a", "a", "b"}), (Outcome{"a", "aab"}));
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBeginAStop) {
  StopMatcher matcher({"\n\nUser:", "END"});
  EXPECT_EQ(matcher.push("hello\n"), "hello");
  EXPECT_EQ(matcher.push("\nUs"), "");
  EXPECT_EQ(matcher.push("ed E"), "\n\nUsed ");
  EXPECT_EQ(matcher.push("X"), "EX");
  EXPECT_EQ(matcher.push("EN"), "");
  EXPECT_EQ(matcher.flush(), "EN");
}

TEST(StopMatcher, FirstToEndWinsAndTheLongestOfThose) {
  EXPECT_EQ(run(StopMatcher({"bcd", "c"}), {"abcd"}), (Outcome{"ab", "c"}));
  EXPECT_EQ(run(StopMatcher({"c", "abc", "bc"}), {"xabc"}), (Outcome{"x", "abc"}));
}

TEST(StopMatcher, PassedTextDoesNotCount) {
  StopMatcher matcher({"END"});
  EXPECT_EQ(matcher.pass("END E"), "END E");
  EXPECT_EQ(matcher.push("ND"), "ND");
  EXPECT_EQ(matcher.match(), nullptr);
}

TEST(StopMatcher, KeepsCharactersWhole) {
  // U+00E9 is C3 A9; the stop begins with it, and so does U+00E8 (C3 A8) in its first byte.
  StopMatcher matcher({"\xC3\xA9!"});
  EXPECT_EQ(matcher.push("a\xC3\xA8"), "a\xC3\xA8");
  EXPECT_EQ(matcher.push("b\xC3\xA9"), "b");
  EXPECT_EQ(matcher.push("?"), "\xC3\xA9?");
}

TEST(StopMatcher, DoesNotDependOnTheSplit) {
  std::mt19937 random(11);
  for (int round = 0; round < 500; ++round) {
    const auto letters = [&](size_t length) {
      std::string text;
      while (text.size() < length) text += static_cast<char>('a' + random() % 2);
      return text;
    };
    const std::vector<std::string> stops = {letters(3 + random() % 6), letters(3 + random() % 6)};
    const std::string text = letters(40);
    std::vector<std::string> pieces;
    for (size_t i = 0; i < text.size();) {
      const size_t length = 1 + random() % 7;
      pieces.push_back(text.substr(i, length));
      i += length;
    }
    // Oracle: the earliest end; the longest stop of those.
    Outcome expected{text, ""};
    size_t best_end = std::string::npos;
    for (const std::string& stop : stops) {
      const size_t at = text.find(stop);
      if (at == std::string::npos) continue;
      const size_t end = at + stop.size();
      if (end < best_end || (end == best_end && stop.size() > expected.match.size())) {
        best_end = end;
        expected = {text.substr(0, at), stop};
      }
    }
    EXPECT_EQ(run(StopMatcher(stops), pieces), expected) << text;
    EXPECT_EQ(run(StopMatcher(stops), {text}), expected) << text;
  }
}

}  // namespace
}  // namespace nibble::engine
