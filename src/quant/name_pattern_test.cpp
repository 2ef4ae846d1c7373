#include "quant/name_pattern.h"

#include <gtest/gtest.h>

#include <string>

namespace nibble::quant {
namespace {

bool regex_matches(std::string_view pattern, std::string_view name) {
  const Result<Regex> regex = Regex::compile(pattern);
  EXPECT_TRUE(regex.ok()) << pattern;
  return regex.ok() && regex->matches_prefix(name);
}

TEST(Glob, StarCrossesDotsAndMatchesTheWholeName) {
  EXPECT_TRUE(glob_matches("mtp.*", "mtp.0.ffn.experts.0.w1"));
  EXPECT_FALSE(glob_matches("mtp.*", "layers.43.ffn.experts.0.w1"));
  EXPECT_FALSE(glob_matches("head", "lm_head"));
  EXPECT_TRUE(glob_matches("*.attn.*", "layers.0.attn.wq_a"));
  EXPECT_FALSE(glob_matches("*.attn.*", "layers.0.attn_norm"));
  EXPECT_FALSE(glob_matches("*.attn.*", "layers.0.ffn.gate"));
  EXPECT_TRUE(glob_matches("model.layers.61*", "model.layers.610.mlp"));
  EXPECT_TRUE(glob_matches("model.layers.1*", "model.layers.19.mlp"));
  EXPECT_TRUE(glob_matches("a*b*c", "aXbXbXc"));
  EXPECT_FALSE(glob_matches("a*b*c", "aXbXbX"));
  EXPECT_TRUE(glob_matches("*", ""));
  EXPECT_TRUE(glob_matches("l?yer.[0-2]", "layer.1"));
  EXPECT_FALSE(glob_matches("layer.[!0-2]", "layer.1"));
  EXPECT_TRUE(glob_matches("a[b", "a[b"));
}

TEST(Regex, IsAnchoredAtTheStartOnly) {
  EXPECT_TRUE(regex_matches("model", "model.layers"));
  EXPECT_FALSE(regex_matches("layers", "model.layers"));
  EXPECT_TRUE(regex_matches(".*mlp.gate$", "model.layers.3.mlp.gate"));
  EXPECT_FALSE(regex_matches(".*mlp.gate$", "model.layers.3.mlp.gate_proj"));
}

TEST(Regex, TellsKimisDenseLayerFromItsExperts) {
  constexpr std::string_view kPattern = R"(.*mlp\.(gate|up|gate_up|down)_proj.*)";
  EXPECT_TRUE(regex_matches(kPattern, "model.layers.0.mlp.gate_proj"));
  EXPECT_FALSE(regex_matches(kPattern, "model.layers.1.mlp.experts.3.gate_proj"));
  EXPECT_FALSE(regex_matches(kPattern, "model.layers.1.mlp.gate"));
  EXPECT_TRUE(regex_matches(R"(.*mlp\.experts\.\d+\.(gate|up|down)_proj$)",
                            "model.layers.7.mlp.experts.12.up_proj"));
}

TEST(Regex, KnowsClassesCountsAndAlternatives) {
  EXPECT_TRUE(regex_matches("^a{2,3}$", "aaa"));
  EXPECT_FALSE(regex_matches("^a{2,3}$", "aaaa"));
  EXPECT_FALSE(regex_matches("^a{2,3}$", "a"));
  EXPECT_TRUE(regex_matches("a{2,}b", "aaaaab"));
  EXPECT_TRUE(regex_matches("layers\\.([0-9]|1[0-9])\\.x$", "layers.17.x"));
  EXPECT_FALSE(regex_matches("layers\\.([0-9]|1[0-9])\\.x$", "layers.27.x"));
  EXPECT_TRUE(regex_matches("[^.]+\\.w", "abc.w"));
  EXPECT_FALSE(regex_matches("[^.]+\\.w$", "a.b.w"));
  EXPECT_TRUE(regex_matches("(?:ab)*?c", "ababc"));
  EXPECT_TRUE(regex_matches("(a|)b", "b"));
  EXPECT_TRUE(regex_matches("x{y", "x{y"));
}

TEST(Regex, RefusesWhatNeedsBacktracking) {
  for (const std::string_view pattern :
       {"(?!a).*", "(?=a)", "(?P<n>a)", "(a)\\1", "a++", "*a", "(a", "a)", "[a", "a{3,2}", "a\\"}) {
    const Result<Regex> regex = Regex::compile(pattern);
    ASSERT_FALSE(regex.ok()) << pattern;
    EXPECT_EQ(regex.error().code, Errc::kUnsupported);
  }
  EXPECT_FALSE(Regex::compile("((a{200}){200}){200}").ok());
  EXPECT_FALSE(Regex::compile(std::string(5000, 'a')).ok());
  EXPECT_FALSE(Regex::compile(std::string(1000, '(')).ok());
}

// (a*)*b takes exponential time in a backtracking matcher.
TEST(Regex, NestedStarsStayLinear) {
  EXPECT_FALSE(regex_matches("(a*)*b", std::string(20'000, 'a')));
  EXPECT_FALSE(regex_matches("(a|aa)+$", std::string(20'000, 'a') + "b"));
  EXPECT_FALSE(glob_matches(std::string(200, '*') + "b", std::string(2'000, 'a')));
}

}  // namespace
}  // namespace nibble::quant
