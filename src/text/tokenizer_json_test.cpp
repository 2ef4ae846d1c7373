#include "text/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/tokenizer_testing.h"

namespace nibble::text {
namespace {

using json::Value;
using ::testing::HasSubstr;

// The member at a path such as {"model", "vocab"}; array elements by decimal index.
Value& at(Value& root, const std::vector<std::string>& path) {
  Value* value = &root;
  for (const std::string& step : path) {
    value = value->is_array() ? &(*value->as_array())[std::stoul(step)]
                              : value->as_object()->find(step);
    CHECK(value != nullptr) << step;
  }
  return *value;
}

Result<TokenizerSpec> parse(const Value& root) {
  return parse_tokenizer_json(json::dump(root, json::Style::kCompact), "tokenizer.json");
}

TEST(TokenizerJson, ReadsTheMinimalFile) {
  const auto spec = parse(testing::minimal_tokenizer());
  ASSERT_TRUE(spec.ok()) << spec.error().message;
  EXPECT_EQ(spec->token_bytes.size(), 261U);
  EXPECT_EQ(spec->token_bytes[' '], " ");
  EXPECT_EQ(spec->token_bytes[257], "abab");
  EXPECT_EQ(spec->token_bytes[260], "<n>");
  EXPECT_EQ(spec->byte_tokens[255], 255);
  ASSERT_EQ(spec->merges.size(), 2U);
  EXPECT_EQ(spec->merges[0].result, 256);  // written as one string
  EXPECT_EQ(spec->merges[1].left, 256);    // written as a list
  ASSERT_EQ(spec->added_tokens.size(), 3U);
  EXPECT_TRUE(spec->added_tokens[0].is_special);
  EXPECT_FALSE(spec->added_tokens[2].is_special);
  EXPECT_TRUE(spec->added_tokens[2].is_normalized);
}

TEST(TokenizerJson, AcceptsHolesAndEntriesOutsideTheByteAlphabet) {
  Value root = testing::minimal_tokenizer();
  at(root, {"model", "vocab"}).as_object()->insert("\uFF5Cx y\u2581", 300);
  const auto spec = parse(root);
  ASSERT_TRUE(spec.ok()) << spec.error().message;
  EXPECT_EQ(spec->token_bytes.size(), 301U);
  EXPECT_EQ(spec->token_bytes[299], "");
  EXPECT_EQ(spec->token_bytes[300], "\uFF5Cx y\u2581");
}

struct Mutation {
  std::vector<std::string> path;
  Value value;
  Errc code = Errc::kDataLoss;
  std::string message;
};

const Errc kBad = Errc::kDataLoss;
const Errc kOther = Errc::kUnsupported;

std::vector<Mutation> mutations() {
  const std::string steps = "pre_tokenizer.pretokenizers";
  return {
      {{"normalizer"},
       json::make_object({{"type", "NFC"}}),
       kOther,
       "normalizer: found {\"type\":\"NFC\"}, expected null"},
      {{"pre_tokenizer"},
       nullptr,
       kOther,
       "pre_tokenizer.type: found nothing, expected \"Sequence\""},
      {{"pre_tokenizer", "type"}, "ByteLevel", kOther, "pre_tokenizer.type"},
      {{"pre_tokenizer", "pretokenizers"}, json::Array{}, kOther, steps + ": found []"},
      {{"pre_tokenizer", "pretokenizers"}, 1, kOther, steps + ": found 1"},
      {{"pre_tokenizer", "pretokenizers", "0", "pattern", "Regex"},
       R"(\p{N})",
       kOther,
       steps + "[0].pattern.Regex"},
      {{"pre_tokenizer", "pretokenizers", "1", "pattern", "Regex"},
       "[a-z]+",
       kOther,
       steps + "[1].pattern.Regex"},
      {{"pre_tokenizer", "pretokenizers", "2", "pattern", "Regex"},
       7,
       kOther,
       steps + "[2].pattern.Regex"},
      {{"pre_tokenizer", "pretokenizers", "2", "pattern"},
       "x",
       kOther,
       steps + "[2].pattern.Regex"},
      {{"pre_tokenizer", "pretokenizers", "1", "behavior"},
       "Removed",
       kOther,
       steps + "[1].behavior"},
      {{"pre_tokenizer", "pretokenizers", "1", "invert"}, true, kOther, steps + "[1].invert"},
      {{"pre_tokenizer", "pretokenizers", "3"}, nullptr, kOther, steps + "[3].type"},
      {{"pre_tokenizer", "pretokenizers", "3", "add_prefix_space"},
       true,
       kOther,
       steps + "[3].add_prefix_space"},
      {{"pre_tokenizer", "pretokenizers", "3", "use_regex"}, true, kOther, steps + "[3].use_regex"},
      {{"decoder"}, nullptr, kOther, "decoder.type"},
      {{"decoder", "type"}, "Metaspace", kOther, "decoder.type: found \"Metaspace\""},
      {{"model"}, nullptr, kOther, "model.type"},
      {{"model", "type"}, "Unigram", kOther, "model.type: found \"Unigram\", expected \"BPE\""},
      {{"model", "dropout"}, 0.1, kOther, "model.dropout"},
      {{"model", "unk_token"}, "<unk>", kOther, "model.unk_token"},
      {{"model", "continuing_subword_prefix"}, "##", kOther, "model.continuing_subword_prefix"},
      {{"model", "end_of_word_suffix"}, "</w>", kOther, "model.end_of_word_suffix"},
      {{"model", "byte_fallback"}, true, kOther, "model.byte_fallback"},
      {{"model", "ignore_merges"}, true, kOther, "model.ignore_merges"},
      {{"model", "vocab"}, json::Array{}, kBad, "model.vocab: found []"},
      {{"model", "vocab", "a"}, -1, kBad, "model.vocab[\"a\"]: found -1"},
      {{"model", "vocab", "a"}, 1 << 20, kBad, "expected a token id of 0 to 1048575"},
      {{"model", "vocab", "a"}, json::Integer{"99999999999999999999"}, kBad, "model.vocab[\"a\"]"},
      {{"model", "vocab", "a"}, 1.5, kBad, "model.vocab[\"a\"]"},
      {{"model", "vocab", "a"}, "1", kBad, "model.vocab[\"a\"]"},
      {{"model", "vocab", "a"}, 98, kBad, "id 98 a second time"},
      {{"model", "vocab"}, json::make_object({{"a", 0}}), kBad, "the token of byte 0x00"},
      {{"model", "merges"}, nullptr, kBad, "model.merges: found null"},
      {{"model", "merges", "0"}, "ab", kBad, "model.merges[0]: found \"ab\""},
      {{"model", "merges", "0"}, "a b c", kBad, "model.merges[0]"},
      {{"model", "merges", "0"}, json::Array{"a"}, kBad, "model.merges[0]"},
      {{"model", "merges", "0"}, json::Array{"a", 1}, kBad, "model.merges[0]"},
      {{"model", "merges", "1"},
       "ab zz",
       kBad,
       "model.merges[1]: found \"ab zz\", expected both parts"},
      {{"model", "merges", "1"}, "b a", kBad, "the joined token in model.vocab"},
      {{"model", "merges", "1"}, "a b", kBad, "model.merges[1]: found \"a b\" a second time"},
      {{"added_tokens"}, 3, kBad, "added_tokens: found 3"},
      {{"added_tokens", "0"}, 3, kBad, "added_tokens[0].content: found nothing"},
      {{"added_tokens", "0", "content"}, "", kBad, "added_tokens[0].content"},
      {{"added_tokens", "0", "content"},
       std::string(1025, 'x'),
       kBad,
       "expected a string of 1 to 1024 bytes"},
      {{"added_tokens", "1", "content"}, "<s>", kBad, "added_tokens[1]"},
      {{"added_tokens", "1", "content"},
       "ab",
       kBad,
       "added_tokens[1].id: found 259, expected 256 as in model.vocab"},
      {{"added_tokens", "1", "id"}, 258, kBad, "added_tokens[1]"},
      {{"added_tokens", "1", "id"},
       97,
       kBad,
       "added_tokens[1].id: found 97, the id of another token"},
      {{"added_tokens", "1", "id"}, 1 << 30, kBad, "added_tokens[1].id"},
      {{"added_tokens", "1", "special"}, 1, kBad, "added_tokens[1].special: found 1"},
      {{"added_tokens", "1", "lstrip"}, true, kOther, "added_tokens[1].lstrip"},
      {{"added_tokens", "1", "rstrip"}, true, kOther, "added_tokens[1].rstrip"},
      {{"added_tokens", "1", "single_word"}, true, kOther, "added_tokens[1].single_word"},
  };
}

TEST(TokenizerJson, NamesWhatIsWrongWithAMutatedFile) {
  for (const Mutation& mutation : mutations()) {
    Value root = testing::minimal_tokenizer();
    at(root, mutation.path) = mutation.value;
    const auto spec = parse(root);
    ASSERT_FALSE(spec.ok()) << mutation.message;
    EXPECT_EQ(spec.error().code, mutation.code) << spec.error().message;
    EXPECT_THAT(spec.error().message, HasSubstr("tokenizer.json: "));
    EXPECT_THAT(spec.error().message, HasSubstr(mutation.message));
  }
}

TEST(TokenizerJson, RefusesTextThatIsNoTokenizer) {
  for (const char* text : {"", "null", "[]", "{}", "{\"model\":{}}", "{", "\xFF"}) {
    EXPECT_FALSE(parse_tokenizer_json(text, "tokenizer.json").ok()) << text;
  }
}

TEST(TokenizerJson, RefusesEveryTruncation) {
  const std::string text = json::dump(testing::minimal_tokenizer(), json::Style::kCompact);
  for (size_t length = 0; length < text.size(); length += 7) {
    EXPECT_FALSE(
        parse_tokenizer_json(std::string_view(text).substr(0, length), "tokenizer.json").ok())
        << length;
  }
}

}  // namespace
}  // namespace nibble::text
