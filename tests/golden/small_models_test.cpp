// flash_like and pro_like: random models with every layer kind, YaRN and hash layers, against
// logits of transformers in f32.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "golden/golden_testing.h"

namespace nibble::golden {
namespace {

constexpr float kLogitTolerance = 2e-3f;
constexpr float kClearMargin = 0.02f;

struct Case {
  const char* model;
  int32_t num_tokens;
  int32_t chunk;
};

class SmallModel : public testing::TestWithParam<Case> {};

TEST_P(SmallModel, GivesTheStoredLogits) {
  const auto [name, num_tokens, chunk] = GetParam();
  const Loaded loaded = load(golden_dir(name));
  const Vectors vectors(golden_dir(name) / "expected.safetensors");
  const std::string prefix = "n" + std::to_string(num_tokens);
  const std::vector<int32_t> ids = vectors.ids(prefix + ".ids");
  const Rows expected = vectors.rows(prefix + ".logits");

  const Rows logits = Sequence(*loaded.model).run(ids, {.chunk = chunk}).logits;
  ASSERT_EQ(logits.size(), num_tokens);
  const int64_t first = logits.size() - expected.size();
  float worst = 0;
  for (int64_t i = 0; i < expected.size(); ++i) {
    worst = std::max(worst, max_difference(logits[first + i], expected[i]));
    if (top_margin(expected[i]) > kClearMargin) {
      EXPECT_EQ(argmax(logits[first + i]), argmax(expected[i])) << "position " << first + i;
    }
  }
  EXPECT_LE(worst, kLogitTolerance);
  RecordProperty("max_difference", std::to_string(worst));
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const char* model : {"flash_like", "pro_like"}) {
    for (const int32_t num_tokens : {1, 7, 150, 700}) {
      for (const int32_t chunk : {0, 1, 3, 64, 127}) cases.push_back({model, num_tokens, chunk});
    }
  }
  return cases;
}

std::string case_name(const testing::TestParamInfo<Case>& param) {
  const auto& [model, num_tokens, chunk] = param.param;
  const std::string pieces = chunk == 0 ? "one_piece" : "chunk_" + std::to_string(chunk);
  return std::string(model) + "_n" + std::to_string(num_tokens) + "_" + pieces;
}

INSTANTIATE_TEST_SUITE_P(Goldens, SmallModel, testing::ValuesIn(all_cases()), case_name);

}  // namespace
}  // namespace nibble::golden
