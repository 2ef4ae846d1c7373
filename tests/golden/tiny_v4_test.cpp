// tiny-v4 in its native format against logits, greedy continuations and MTP logits of transformers
// in f32.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/json.h"
#include "golden/golden_testing.h"

namespace nibble::golden {
namespace {

constexpr float kClearMargin = 0.02f;
constexpr size_t kLongPrompt =
    1000;  // tokens; beyond, near-ties in the indexer's selection move logits

struct Prompt {
  std::string name;
  std::vector<int32_t> ids;
  std::vector<int32_t> greedy_ids;
  std::vector<float> greedy_margins;
};

template <class T>
std::vector<T> numbers(const json::Value& value) {
  std::vector<T> out;
  for (const json::Value& element : *value.as_array())
    out.push_back(static_cast<T>(*element.as_double()));
  return out;
}

const Prompt& find_prompt(const std::string& name) {
  static const std::vector<Prompt> prompts = [] {
    const std::string text = read_file(golden_dir("tiny_v4") / "native.json", 1 << 20).value();
    const json::Value document = json::parse(text).value();
    std::vector<Prompt> all;
    for (const json::Value& entry : *document.as_array()) {
      all.push_back({.name = *entry.find("name")->as_string(),
                     .ids = numbers<int32_t>(*entry.find("prompt_ids")),
                     .greedy_ids = numbers<int32_t>(*entry.find("greedy_ids")),
                     .greedy_margins = numbers<float>(*entry.find("greedy_margins"))});
    }
    return all;
  }();
  const auto found = std::find_if(
      prompts.begin(), prompts.end(), [&](const Prompt& prompt) { return prompt.name == name; });
  CHECK(found != prompts.end()) << name;
  return *found;
}

const Vectors& vectors() {
  static const Vectors loaded(golden_dir("tiny_v4") / "native.safetensors");
  return loaded;
}

models::Model& reference_model() {
  static const Loaded loaded = load(tiny_v4_dir());
  loaded.model->reset_slot(SlotId{0});
  return *loaded.model;
}

// Share of rows whose argmax is the stored one; rows below kClearMargin count as equal.
double argmax_agreement(const Rows& logits, std::span<const int32_t> expected) {
  EXPECT_EQ(logits.size(), static_cast<int64_t>(expected.size()));
  int64_t equal = 0;
  for (int64_t i = 0; i < logits.size(); ++i) {
    equal += argmax(logits[i]) == expected[static_cast<size_t>(i)] ||
                     top_margin(logits[i]) <= kClearMargin
                 ? 1
                 : 0;
  }
  return static_cast<double>(equal) / static_cast<double>(logits.size());
}

struct Case {
  const char* prompt;
  int32_t chunk;
};

class TinyV4 : public testing::TestWithParam<Case> {};

TEST_P(TinyV4, GivesTheStoredLogitsTokensAndDrafts) {
  const Prompt& prompt = find_prompt(GetParam().prompt);
  const bool is_long = prompt.ids.size() > kLongPrompt;
  const float tolerance = is_long ? 0.1f : 2e-3f;
  const double agreement = is_long ? 0.99 : 1.0;
  Sequence sequence(reference_model());
  RunResult result = sequence.run(prompt.ids, {.chunk = GetParam().chunk, .mtp = true});

  EXPECT_LE(max_difference(result.logits.back(), vectors().rows(prompt.name + ".last_logits")[0]),
            tolerance);
  EXPECT_GE(argmax_agreement(result.logits, vectors().ids(prompt.name + ".argmax")), agreement);
  if (vectors().has(prompt.name + ".logits")) {
    const Rows expected = vectors().rows(prompt.name + ".logits");
    EXPECT_LE(max_difference(result.logits.values, expected.values), tolerance);
  }

  // The continuation, token by token. It is fed the stored ids, so that a near-tie does not end the
  // comparison.
  Rows mtp_logits = std::move(result.mtp_logits);
  std::vector<float> next(result.logits.back().begin(), result.logits.back().end());
  for (size_t i = 0; i < prompt.greedy_ids.size(); ++i) {
    if (prompt.greedy_margins[i] > kClearMargin) {
      EXPECT_EQ(argmax(next), prompt.greedy_ids[i]) << "token " << i;
    }
    EXPECT_NEAR(top_margin(next), prompt.greedy_margins[i], 2 * tolerance) << "token " << i;
    const RunResult step = sequence.run({&prompt.greedy_ids[i], 1}, {.mtp = true});
    next.assign(step.logits.back().begin(), step.logits.back().end());
    append(mtp_logits, step.mtp_logits);
  }
  EXPECT_LE(max_difference(mtp_logits.back(), vectors().rows(prompt.name + ".mtp_last_logits")[0]),
            tolerance);
  EXPECT_GE(argmax_agreement(mtp_logits, vectors().ids(prompt.name + ".mtp_argmax")), agreement);
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const char* prompt : {"one_token",
                             "story",
                             "capital",
                             "sum_think",
                             "json",
                             "qa_0",
                             "qa_1",
                             "tool",
                             "needle_2000"}) {
    for (const int32_t chunk : {0, 1, 3, 64, 127}) cases.push_back({prompt, chunk});
  }
  cases.push_back({"prose_long", 0});
  cases.push_back({"prose_long", 127});
  return cases;
}

std::string case_name(const testing::TestParamInfo<Case>& param) {
  const auto& [prompt, chunk] = param.param;
  return std::string(prompt) + (chunk == 0 ? "_one_piece" : "_chunk_" + std::to_string(chunk));
}

INSTANTIATE_TEST_SUITE_P(Goldens, TinyV4, testing::ValuesIn(all_cases()), case_name);

}  // namespace
}  // namespace nibble::golden
