// Generation under a grammar, against models that would rather say something else.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "engine/engine_core.h"
#include "engine/engine_testing.h"
#include "grammar/grammar.h"

namespace nibble::engine {
namespace {

using testing::FakeModelOptions;
using testing::FakeModelRunner;
using testing::FakeTokenizer;
using testing::Received;

constexpr int32_t kEos = 0;
const std::vector<std::string> kTokens = {"<eos>", "a", "b", "c", "ab", "bc", "abc", "d"};
const auto kVocabSize = static_cast<int32_t>(kTokens.size());

class ConstrainedTest : public ::testing::Test {
 protected:
  std::shared_ptr<const grammar::Grammar> regex(const std::string& pattern) {
    auto grammar = grammar::compile({.content = grammar::Regex{pattern}, .tools = {}}, vocabulary_);
    EXPECT_TRUE(grammar.ok()) << grammar.error().message;
    return *grammar;
  }

  // Runs the requests together on a model with pages for some of them only.
  std::vector<Received> run(std::vector<Request> requests, int32_t num_pages = 64) {
    FakeModelOptions options;
    options.vocab_size = kVocabSize;
    options.num_slots = static_cast<int32_t>(requests.size());
    options.num_pages = num_pages;
    options.logits = testing::hashed_logits(kVocabSize);
    auto runner = std::make_unique<FakeModelRunner>(std::move(options));
    EngineConfig config;
    config.max_running_requests = static_cast<int32_t>(requests.size());
    config.eos_token_ids = {kEos};
    const auto resolved = EngineCore::resolve(config, *runner, 1);
    EXPECT_TRUE(resolved.ok());
    EngineCore core(*resolved, std::move(runner), tokenizer_, clock_);
    std::vector<Received> received(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].id = std::to_string(i);
      requests[i].prompt_ids = {1, static_cast<int32_t>(1 + i % 6)};
      requests[i].sampling.seed = i;
      core.add(std::move(requests[i]), received[i].sink(), clock_.now());
    }
    while (!core.is_idle()) core.step();
    num_preemptions_ = core.scheduler().num_preemptions();
    return received;
  }

  FakeTokenizer tokenizer_{kTokens, {kEos}};
  std::shared_ptr<const grammar::Vocabulary> vocabulary_ =
      grammar::Vocabulary::from_tokenizer(tokenizer_, kVocabSize, {kEos});
  testing::FakeClock clock_;
  int64_t num_preemptions_ = 0;
};

TEST_F(ConstrainedTest, OutputMatches) {
  const std::string pattern = "(ab|c){3,9}d";
  const auto grammar = regex(pattern);
  std::vector<Request> requests(8);
  for (Request& request : requests) request.grammar = grammar;
  for (const Received& got : run(std::move(requests))) {
    EXPECT_EQ(got.finishes.at(0).reason, FinishReason::kStop);
    EXPECT_TRUE(std::regex_match(got.text, std::regex(pattern))) << got.text;
  }
}

TEST_F(ConstrainedTest, PreemptionKeepsTheConstraint) {
  const std::string pattern = "(ab|c){12,14}d";
  const auto grammar = regex(pattern);
  std::vector<Request> requests(6);
  for (Request& request : requests) request.grammar = grammar;
  const std::vector<Received> roomy = run(requests);
  const std::vector<Received> tight = run(requests, 12);
  EXPECT_GT(num_preemptions_, 0);
  for (size_t i = 0; i < roomy.size(); ++i) {
    EXPECT_EQ(roomy[i].token_ids, tight[i].token_ids);
    EXPECT_TRUE(std::regex_match(tight[i].text, std::regex(pattern))) << tight[i].text;
  }
}

TEST_F(ConstrainedTest, TheGrammarEndsTheOutput) {
  Request request;
  request.grammar = regex("abc");
  request.sampling.ignore_eos = true;
  request.sampling.max_tokens = 20;
  request.sampling.min_tokens = 10;
  const Received got = run({request}).at(0);
  EXPECT_EQ(got.text, "abc");
  EXPECT_EQ(got.token_ids.back(), kEos);
  EXPECT_EQ(got.finishes.at(0).reason, FinishReason::kStop);
}

TEST_F(ConstrainedTest, TheLengthLimitCutsIt) {
  Request request;
  request.grammar = regex("a{100}");
  request.sampling.max_tokens = 5;
  const Received got = run({request}).at(0);
  EXPECT_EQ(got.text, "aaaaa");
  EXPECT_EQ(got.finishes.at(0).reason, FinishReason::kLength);
}

TEST_F(ConstrainedTest, LogprobsAreTheModels) {
  Request request;
  request.grammar = regex("aaa");
  request.sampling.logprobs = true;
  request.sampling.top_logprobs = kVocabSize;
  const Received got = run({request}).at(0);
  ASSERT_EQ(got.logprobs.size(), got.token_ids.size());
  for (const TokenLogprob& logprob : got.logprobs) {
    EXPECT_EQ(logprob.top.size(), static_cast<size_t>(kVocabSize));
    EXPECT_LT(logprob.logprob, 0.0F);
    EXPECT_TRUE(std::isfinite(logprob.top.back().second));
  }
}

TEST_F(ConstrainedTest, UnconstrainedNeighboursAreUntouched) {
  std::vector<Request> requests(2);
  requests[0].sampling.max_tokens = requests[1].sampling.max_tokens = 12;
  requests[1].grammar = regex("c*");
  const std::vector<Received> mixed = run(requests);
  requests[1].grammar.reset();
  EXPECT_EQ(run(requests)[0].token_ids, mixed[0].token_ids);
  EXPECT_EQ(mixed[1].text.find_first_not_of('c'), std::string::npos);
}

}  // namespace
}  // namespace nibble::engine
