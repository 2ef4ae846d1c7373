#include "engine/engine_core.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "engine/engine_testing.h"

namespace nibble::engine {
namespace {

using testing::FakeModelOptions;
using testing::FakeModelRunner;
using testing::FakeTokenizer;
using testing::Received;

constexpr int32_t kEos = 0;
constexpr int32_t kSpecial = 9;

// Tokens: 0 <eos>, 1 to 5 letters, 6 and 7 the halves of U+00E9, 8 a word, 9 a special.
const std::vector<std::string> kTokens = {
    "<eos>", "a", "b", "c", "d", "e", "\xC3", "\xA9", "stop me", "<special>"};

class EngineCoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<EngineCore> make_core(testing::LogitsFn logits) {
    FakeModelOptions options;
    options.vocab_size = static_cast<int32_t>(kTokens.size());
    options.logits = std::move(logits);
    auto runner = std::make_unique<FakeModelRunner>(std::move(options));
    runner_ = runner.get();
    runner_->before_step = [this](const Batch&) -> Result<void> {
      clock_.advance(std::chrono::seconds(1));
      return {};
    };
    EngineConfig config;
    config.prefill_chunk_tokens = 2;
    config.eos_token_ids = {kEos};
    auto resolved = EngineCore::resolve(config, *runner, 1);
    EXPECT_TRUE(resolved.ok());
    return std::make_unique<EngineCore>(*resolved, std::move(runner), tokenizer_, clock_);
  }

  // Runs one request with prompt 1 2 3 against a model that says `script`.
  Received run(std::vector<int32_t> script, SamplingParams sampling) {
    Received received;
    auto core = make_core(
        testing::scripted_logits(static_cast<int32_t>(kTokens.size()), 3, std::move(script)));
    run_on(*core, std::move(sampling), received);
    return received;
  }

  void run_on(EngineCore& core, SamplingParams sampling, Received& received) {
    run_request(core, {.sampling = std::move(sampling)}, received);
  }

  void run_request(EngineCore& core, Request request, Received& received) {
    request.id = "r";
    request.prompt_ids = {1, 2, 3};
    request.sampling.temperature = 0;
    core.add(std::move(request), received.sink(), clock_.now());
    while (!core.is_idle()) core.step();
    EXPECT_EQ(received.finishes.size(), 1U);
    EXPECT_EQ(core.scheduler().kv().pages().num_used(), 0);
  }

  FakeTokenizer tokenizer_{kTokens, {kEos, kSpecial}};
  testing::FakeClock clock_;
  FakeModelRunner* runner_ = nullptr;
};

TEST_F(EngineCoreTest, EndsAtEosWhichIsATokenButNoText) {
  const Received got = run({1, 2, kEos, 3}, {});
  EXPECT_EQ(got.token_ids, (std::vector<int32_t>{1, 2, kEos}));
  EXPECT_EQ(got.text, "ab");
  EXPECT_EQ(got.finishes[0].reason, FinishReason::kStop);
  EXPECT_EQ(got.finishes[0].matched_stop_token, -1);
  EXPECT_EQ(got.finishes[0].usage.prompt_tokens, 3);
  EXPECT_EQ(got.finishes[0].usage.completion_tokens, 3);
}

TEST_F(EngineCoreTest, IgnoresEosWhenAsked) {
  const Received got = run({1, kEos, 2}, {.max_tokens = 3, .ignore_eos = true});
  EXPECT_EQ(got.text, "ab");
  EXPECT_EQ(got.finishes[0].reason, FinishReason::kLength);
}

TEST_F(EngineCoreTest, ShowsSpecialsWhenAsked) {
  SamplingParams sampling{.include_stop_in_output = true, .skip_special_tokens = false};
  EXPECT_EQ(run({kSpecial, 1, kEos}, sampling).text, "<special>a<eos>");
  EXPECT_EQ(run({kSpecial, 1, kEos}, {}).text, "a");
}

TEST_F(EngineCoreTest, EndsAtTheContext) {
  const Received got = run(std::vector<int32_t>(100, 1), {});
  EXPECT_EQ(got.token_ids.size(), 61U);  // 16 pages of 4, less the prompt
  EXPECT_EQ(got.finishes[0].reason, FinishReason::kLength);
}

TEST_F(EngineCoreTest, EndsAtAStopId) {
  const Received got = run({1, 4, 5}, {.stop_token_ids = {4}});
  EXPECT_EQ(got.token_ids, (std::vector<int32_t>{1, 4}));
  EXPECT_EQ(got.text, "a");
  EXPECT_EQ(got.finishes[0].matched_stop_token, 4);
  EXPECT_EQ(run({1, 4, 5}, {.stop_token_ids = {4}, .include_stop_in_output = true}).text, "ad");
}

TEST_F(EngineCoreTest, EndsAtAStopStringAcrossTokens) {
  const Received got = run({1, 2, 3, 4, 5}, {.stop = {"bcd", "zzz"}});
  EXPECT_EQ(got.token_ids, (std::vector<int32_t>{1, 2, 3, 4}));
  EXPECT_EQ(got.text, "a");
  EXPECT_EQ(got.finishes[0].reason, FinishReason::kStop);
  EXPECT_EQ(got.finishes[0].matched_stop, "bcd");
  EXPECT_EQ(run({1, 2, 3, 4}, {.stop = {"bcd"}, .include_stop_in_output = true}).text, "abcd");
  EXPECT_EQ(run({8, 1}, {.stop = {"op"}}).text, "st");
}

TEST_F(EngineCoreTest, ReleasesHeldBackTextAtTheEnd) {
  EXPECT_EQ(run({1, 2, kEos}, {.stop = {"bcd"}}).text, "ab");
  EXPECT_EQ(run({1, 2, 3}, {.max_tokens = 2, .stop = {"bcd"}}).text, "ab");
}

TEST_F(EngineCoreTest, AStopBeatsTheLengthLimit) {
  const Received got = run({1, 2}, {.max_tokens = 2, .stop = {"b"}});
  EXPECT_EQ(got.finishes[0].reason, FinishReason::kStop);
}

TEST_F(EngineCoreTest, MinTokensSuppressesEveryStop) {
  const Received eos = run({kEos, kEos, kEos}, {.min_tokens = 2});
  EXPECT_EQ(eos.token_ids.size(), 3U);
  EXPECT_NE(eos.token_ids[0], kEos);
  EXPECT_NE(eos.token_ids[1], kEos);
  EXPECT_EQ(eos.token_ids[2], kEos);
  EXPECT_NE(run({4, 4}, {.min_tokens = 1, .stop_token_ids = {4}}).token_ids[0], 4);
  EXPECT_EQ(run({1, 1, 1}, {.min_tokens = 2, .stop = {"a"}, .include_stop_in_output = true}).text,
            "aa");
}

TEST_F(EngineCoreTest, NeverSplitsACharacter) {
  std::vector<std::string> pieces;
  auto core = make_core(
      testing::scripted_logits(static_cast<int32_t>(kTokens.size()), 1, {1, 6, 7, 6, kEos}));
  core->add(
      {.id = "r", .prompt_ids = {1}, .sampling = {.temperature = 0}},
      [&](Output&& output) { pieces.push_back(output.text); },
      clock_.now());
  while (!core->is_idle()) core->step();
  EXPECT_EQ(pieces, (std::vector<std::string>{"a", "", "\xC3\xA9", "", "\xEF\xBF\xBD"}));
}

TEST_F(EngineCoreTest, GivesOneLogprobPerToken) {
  const Received got = run({1, kEos}, {.logprobs = true, .top_logprobs = 2});
  ASSERT_EQ(got.logprobs.size(), 2U);
  EXPECT_EQ(got.logprobs[0].token_id, 1);
  const float expected = -std::log1p(9.0F * std::exp(-20.0F));
  EXPECT_FLOAT_EQ(got.logprobs[0].logprob, expected);
  EXPECT_EQ(got.logprobs[0].top[0].first, 1);
  EXPECT_EQ(got.logprobs[0].top.size(), 2U);
}

TEST_F(EngineCoreTest, GivesPromptLogprobsOnceAcrossChunks) {
  const auto logits = testing::hashed_logits(static_cast<int32_t>(kTokens.size()));
  auto core = make_core(logits);
  Received got;
  run_on(*core, {.max_tokens = 2, .ignore_eos = true, .prompt_logprobs = 0}, got);
  ASSERT_EQ(got.prompt_logprobs.size(), 2U);
  const std::vector<int32_t> prompt = {1, 2, 3};
  for (size_t i = 0; i < 2; ++i) {
    const auto row = logits(std::span(prompt).first(i + 1));
    EXPECT_EQ(got.prompt_logprobs[i].token_id, prompt[i + 1]);
    EXPECT_EQ(got.prompt_logprobs[i].logprob, token_logprob(row, prompt[i + 1], 0).logprob);
  }
}

TEST_F(EngineCoreTest, ClosesReasoningWhenItsBudgetIsUsed) {
  // What the model says with each budget; the end of reasoning is token 8.
  const auto with_budget = [this](int32_t budget, std::vector<int32_t> script) {
    Received got;
    auto core = make_core(
        testing::scripted_logits(static_cast<int32_t>(kTokens.size()), 3, std::move(script)));
    run_request(*core,
                {.sampling = {.max_tokens = 5},
                 .reasoning_budget = ReasoningBudget{.num_tokens = budget, .end_token_id = 8}},
                got);
    return got.token_ids;
  };
  EXPECT_EQ(with_budget(0, {1, 2, 3, 4, 5}), (std::vector{8, 2, 3, 4, 5}));
  EXPECT_EQ(with_budget(2, {1, 2, 3, 4, 5}), (std::vector{1, 2, 8, 4, 5}));
  EXPECT_EQ(with_budget(5, {1, 2, 3, 4, 5}), (std::vector{1, 2, 3, 4, 5}));
  // Reasoning that ended by itself is not closed again.
  EXPECT_EQ(with_budget(2, {1, 8, 3, 4, 5}), (std::vector{1, 8, 3, 4, 5}));
  EXPECT_EQ(with_budget(2, {1, kEos}), (std::vector{1, kEos}));
}

TEST_F(EngineCoreTest, LogitsThatAreNotFiniteEndTheRequestWithAnError) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    auto core = make_core([=](std::span<const int32_t> history) {
      std::vector<float> logits(kTokens.size(), 0.0F);
      logits[1] = 1.0F;
      if (history.size() == 5) logits[3] = bad;
      return logits;
    });
    Received got;
    run_on(*core, {}, got);
    EXPECT_EQ(got.text, "aa");
    EXPECT_EQ(got.finishes[0].reason, FinishReason::kError);
    EXPECT_EQ(got.finishes[0].error.code, Errc::kDataLoss);
    EXPECT_EQ(got.finishes[0].error.reason, "Q-R1");
    EXPECT_EQ(core->stats().requests_failed_total, 1);
  }
}

TEST_F(EngineCoreTest, LogitsThatAreAllEqualEndTheRequestWithAnError) {
  auto core = make_core([](std::span<const int32_t> history) {
    std::vector<float> logits(kTokens.size(), 2.5F);
    if (history.size() < 5) logits[1] = 3.0F;
    return logits;
  });
  Received got;
  run_on(*core, {}, got);
  EXPECT_EQ(got.text, "aa");
  EXPECT_EQ(got.finishes[0].reason, FinishReason::kError);
  EXPECT_EQ(got.finishes[0].error.reason, "Q-R2");
}

TEST_F(EngineCoreTest, AFailedStepEndsItsRequestsAndTheEngineGoesOn) {
  auto core = make_core(testing::scripted_logits(static_cast<int32_t>(kTokens.size()), 3, {kEos}));
  runner_->before_step = [](const Batch&) -> Result<void> { return exhausted("no memory"); };
  Received failed;
  run_on(*core, {}, failed);
  EXPECT_EQ(failed.finishes[0].reason, FinishReason::kError);
  EXPECT_EQ(failed.finishes[0].error.message, "no memory");
  runner_->before_step = nullptr;
  Received good;
  run_on(*core, {}, good);
  EXPECT_EQ(good.finishes[0].reason, FinishReason::kStop);
}

TEST_F(EngineCoreTest, CancelFreesSlotAndPagesAtOnce) {
  auto core = make_core(testing::hashed_logits(static_cast<int32_t>(kTokens.size())));
  Received first;
  Received second;
  const SamplingParams sampling{.temperature = 0, .ignore_eos = true};
  core->add({.id = "1", .prompt_ids = {1, 2, 3}, .sampling = sampling}, first.sink(), clock_.now());
  core->add(
      {.id = "2", .prompt_ids = {1, 2, 3}, .sampling = sampling}, second.sink(), clock_.now());
  for (int i = 0; i < 4; ++i) core->step();
  core->cancel("2");  // still waiting
  core->cancel("1");
  core->cancel("1");  // unknown by now
  EXPECT_TRUE(core->is_idle());
  EXPECT_EQ(core->stats().num_pages_used, 0);
  EXPECT_EQ(core->stats().requests_cancelled_total, 2);
  EXPECT_EQ(first.finishes.at(0).reason, FinishReason::kCancelled);
  EXPECT_EQ(first.finishes.at(0).usage.completion_tokens, 3);
  EXPECT_EQ(second.finishes.at(0).usage.completion_tokens, 0);
}

TEST_F(EngineCoreTest, EndsWhatWaitsLongerThanItMay) {
  auto core = make_core(testing::hashed_logits(static_cast<int32_t>(kTokens.size())));
  Received first;
  Received patient;
  Received hasty;
  const SamplingParams sampling{.temperature = 0, .max_tokens = 8, .ignore_eos = true};
  const auto add = [&](std::string id, Received& received, Duration queue_timeout) {
    core->add({.id = std::move(id),
               .prompt_ids = {1, 2, 3},
               .sampling = sampling,
               .queue_timeout = queue_timeout},
              received.sink(),
              clock_.now());
  };
  add("1", first, std::chrono::seconds(3));  // runs at once: its limit means nothing
  add("2", patient, {});
  add("3", hasty, std::chrono::seconds(3));
  for (int i = 0; i < 3; ++i) core->step();  // a second each
  EXPECT_TRUE(hasty.finishes.empty());
  core->step();
  ASSERT_EQ(hasty.finishes.size(), 1U);
  EXPECT_EQ(hasty.finishes[0].reason, FinishReason::kError);
  EXPECT_EQ(hasty.finishes[0].error.reason, "queue_timeout");
  EXPECT_EQ(hasty.finishes[0].queue_seconds, 3);
  while (!core->is_idle()) core->step();
  EXPECT_EQ(first.finishes.at(0).reason, FinishReason::kLength);
  EXPECT_EQ(patient.finishes.at(0).reason, FinishReason::kLength);
}

TEST_F(EngineCoreTest, MeasuresThePhases) {
  const Received got = run({1, 2, kEos}, {});
  EXPECT_EQ(got.finishes[0].queue_seconds, 0);
  EXPECT_EQ(got.finishes[0].prefill_seconds, 2);  // 3 tokens in chunks of 2, a second per step
  EXPECT_EQ(got.finishes[0].decode_seconds, 2);
}

TEST_F(EngineCoreTest, RequestsWithoutASeedDiffer) {
  auto core = make_core([](std::span<const int32_t>) {
    std::vector<float> logits(10, 0.0F);
    logits[0] = 0.1F;  // all equal would be a fault
    return logits;
  });
  std::vector<std::vector<int32_t>> outputs;
  for (int i = 0; i < 2; ++i) {
    Received got;
    core->add({.id = "r", .prompt_ids = {1}, .sampling = {.max_tokens = 20, .ignore_eos = true}},
              got.sink(),
              clock_.now());
    while (!core->is_idle()) core->step();
    outputs.push_back(got.token_ids);
  }
  EXPECT_NE(outputs[0], outputs[1]);
}

TEST_F(EngineCoreTest, ResolvesTheConfigAgainstTheRunner) {
  FakeModelRunner runner(FakeModelOptions{});
  EXPECT_EQ(EngineCore::resolve({}, runner, 0)->requests.max_context, 64);
  EXPECT_EQ(EngineCore::resolve({.max_context = 65}, runner, 0).error().param, "max_context");
  EXPECT_EQ(EngineCore::resolve({.max_running_requests = 2}, runner, 0).error().param,
            "max_running_requests");
  EXPECT_EQ(EngineCore::resolve({.max_queued_requests = 0}, runner, 0).error().param,
            "max_queued_requests");
  EXPECT_EQ(EngineCore::resolve({.prefill_chunk_tokens = 0}, runner, 0).error().param,
            "prefill_chunk_tokens");
  EXPECT_EQ(EngineCore::resolve({.eos_token_ids = {16}}, runner, 0).error().param, "eos_token_ids");
}

}  // namespace
}  // namespace nibble::engine
