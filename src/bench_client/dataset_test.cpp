#include "bench_client/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "text/tokenizer.h"

namespace nibble::bench_client {
namespace {

using testing::HasSubstr;

const text::Tokenizer& tokenizer() {
  static const std::unique_ptr<text::Tokenizer> loaded =
      text::load_tokenizer(Path(NIBBLE_SOURCE_DIR) / "models/tiny-v4").value();
  return *loaded;
}

const PromptWords& words() {
  static const PromptWords made{.words = one_token_words(tokenizer()).value(),
                                .template_tokens = 4};
  return made;
}

size_t count_tokens(std::string_view text) { return tokenizer().encode(text, {}).value().size(); }

std::vector<Conversation> make(const DatasetOptions& options, uint64_t seed = 1) {
  Random random(seed);
  return make_dataset(options, words(), random).value();
}

TEST(Dataset, RandomPromptsHaveExactlyTheLengthAskedFor) {
  const auto conversations = make({.num_prompts = 50, .input_len = 100, .output_len = 7});
  ASSERT_EQ(conversations.size(), 50U);
  std::set<std::string> texts;
  for (const Conversation& conversation : conversations) {
    const Turn& turn = conversation.turns.front();
    EXPECT_EQ(turn.prompt_tokens, 100);
    EXPECT_EQ(turn.output_tokens, 7);
    EXPECT_EQ(count_tokens(turn.text), 96U);  // and 4 of the template
    texts.insert(turn.text);
  }
  EXPECT_EQ(texts.size(), 50U);
}

TEST(Dataset, TheRangeRatioSpreadsBothLengths) {
  int64_t shortest = INT64_MAX;
  int64_t longest = 0;
  for (const Conversation& conversation :
       make({.num_prompts = 400, .input_len = 100, .output_len = 50, .range_ratio = 0.5})) {
    const Turn& turn = conversation.turns.front();
    EXPECT_EQ(static_cast<int64_t>(count_tokens(turn.text)) + 4, turn.prompt_tokens);
    EXPECT_GE(turn.output_tokens, 25);
    EXPECT_LE(turn.output_tokens, 75);
    shortest = std::min(shortest, turn.prompt_tokens);
    longest = std::max(longest, turn.prompt_tokens);
  }
  EXPECT_EQ(shortest, 50);
  EXPECT_EQ(longest, 150);
}

TEST(Dataset, TheSeedDecides) {
  EXPECT_EQ(dataset_hash(make({}, 1)), dataset_hash(make({}, 1)));
  EXPECT_NE(dataset_hash(make({}, 1)), dataset_hash(make({}, 2)));
}

TEST(Dataset, GroupsShareTheirPrefixAndNothingElse) {
  const auto conversations = make({.kind = DatasetKind::kSharedPrefix,
                                   .input_len = 20,
                                   .num_groups = 3,
                                   .prompts_per_group = 4,
                                   .prefix_len = 64});
  ASSERT_EQ(conversations.size(), 12U);
  const size_t num_prefix_words = 64;
  std::map<std::string, std::set<std::string>> groups;
  for (const Conversation& conversation : conversations) {
    const std::string& text = conversation.turns.front().text;
    EXPECT_EQ(count_tokens(text), 64U + 16U);
    const auto ids = tokenizer().encode(text, {}).value();
    const std::span<const int32_t> all(ids);
    groups[tokenizer().decode(all.first(num_prefix_words)).value()].insert(text);
  }
  ASSERT_EQ(groups.size(), 3U);
  for (const auto& [prefix, texts] : groups) EXPECT_EQ(texts.size(), 4U);
}

TEST(Dataset, ConversationsHaveTheirTurns) {
  const auto conversations =
      make({.kind = DatasetKind::kMultiTurn, .num_prompts = 3, .input_len = 20, .num_turns = 5});
  EXPECT_EQ(count_turns(conversations), 15);
  EXPECT_EQ(conversations[0].turns[0].prompt_tokens, 20);
  EXPECT_EQ(conversations[0].turns[1].prompt_tokens, 0);  // depends on the answer
}

TEST(Dataset, APromptShorterThanTheTemplateIsRefused) {
  Random random(1);
  const auto made = make_dataset({.input_len = 4}, words(), random);
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.error().message, HasSubstr("the server's template alone takes 4 tokens"));
}

class DatasetFile : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }

  Result<std::vector<Conversation>> read(std::string_view text, DatasetOptions options = {}) {
    std::ofstream(path_, std::ios::binary) << text;
    options.file = path_;
    Random random(1);
    return read_dataset(options, &tokenizer(), random);
  }

  const Path path_ =
      Path(testing::TempDir()) /
      (std::string(testing::UnitTest::GetInstance()->current_test_info()->name()) + ".jsonl");
};

TEST_F(DatasetFile, PromptsAndMessagesAreRead) {
  const auto read_back = read(
                             "{\"prompt\": \"one\", \"output_tokens\": 5}\n\n"
                             "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"},"
                             "{\"role\": \"user\", \"content\": \"q\"},"
                             "{\"role\": \"assistant\", \"content\": \"a\"}]}\n")
                             .value();
  ASSERT_EQ(read_back.size(), 2U);
  const bool is_first = read_back[0].opening.empty();
  const Conversation& prompt = read_back[is_first ? 0 : 1];
  const Conversation& chat = read_back[is_first ? 1 : 0];
  EXPECT_EQ(prompt.turns[0].text, "one");
  EXPECT_EQ(prompt.turns[0].output_tokens, 5);
  ASSERT_EQ(chat.opening.size(), 1U);
  EXPECT_EQ(chat.opening[0].content, "s");
  EXPECT_EQ(chat.turns[0].text, "q");
}

TEST_F(DatasetFile, AnswersOfShareGptGiveTheLength) {
  const auto read_back = read(R"([{"conversations": [{"from": "human", "value": "Hi"},
               {"from": "gpt", "value": " the of and"}]},
               {"conversations": [{"from": "gpt", "value": "no question"}]}])")
                             .value();
  ASSERT_EQ(read_back.size(), 1U);
  EXPECT_EQ(read_back[0].turns[0].text, "Hi");
  EXPECT_EQ(read_back[0].turns[0].output_tokens, static_cast<int32_t>(count_tokens(" the of and")));
}

TEST_F(DatasetFile, AFlagOverrulesTheLengthsAndTheCountIsALimit) {
  const auto read_back = read("{\"prompt\": \"a\", \"max_tokens\": 5}\n{\"prompt\": \"b\"}\n",
                              {.num_prompts = 1, .file_output_len = 9})
                             .value();
  ASSERT_EQ(read_back.size(), 1U);
  EXPECT_EQ(read_back[0].turns[0].output_tokens, 9);
}

TEST_F(DatasetFile, FaultsNameTheLine) {
  const auto no_json = read("{\"prompt\": \"a\"}\n{\n");
  ASSERT_FALSE(no_json.ok());
  EXPECT_THAT(no_json.error().message, HasSubstr(".jsonl:2: "));
  const auto no_prompt = read("{\"question\": \"a\"}\n");
  ASSERT_FALSE(no_prompt.ok());
  EXPECT_THAT(no_prompt.error().message, HasSubstr(":1: expected \"prompt\""));
  EXPECT_THAT(read("\n").error().message, HasSubstr("holds no prompt"));
}

}  // namespace
}  // namespace nibble::bench_client
