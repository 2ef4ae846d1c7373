#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "base/utf8.h"
#include "text/tokenizer_json.h"
#include "text/tokenizer_testing.h"

namespace nibble::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Path kSourceDir = NIBBLE_SOURCE_DIR;
const Path kUnpackedDir = Path(NIBBLE_BINARY_DIR) / "testdata/tokenizer";

std::string read_text(const Path& path) {
  auto text = read_file(path, 64 << 20);
  CHECK(text.ok()) << text.error().message;
  return *std::move(text);
}

std::unique_ptr<Tokenizer> parse_or_die(const Path& path) {
  auto tokenizer = parse_tokenizer(read_text(path), path.filename().string());
  CHECK(tokenizer.ok()) << tokenizer.error().message;
  return *std::move(tokenizer);
}

const Tokenizer& tiny_v4() {
  static const auto tokenizer = parse_or_die(kSourceDir / "models/tiny-v4/tokenizer.json");
  return *tokenizer;
}

const Tokenizer& deepseek_v3() {
  static const auto tokenizer = parse_or_die(kUnpackedDir / "deepseek_v3_tokenizer.json");
  return *tokenizer;
}

struct Vector {
  std::string text;
  std::vector<int32_t> ids;
  std::string decoded;
};

std::vector<Vector> read_vectors(std::string_view name) {
  auto document = json::parse(read_text(kUnpackedDir / name));
  CHECK(document.ok()) << document.error().message;
  std::vector<Vector> vectors;
  for (const json::Value& entry : *document->as_array()) {
    Vector& v = vectors.emplace_back();
    v.text = *entry.find("text")->as_string();
    v.decoded = *entry.find("decoded")->as_string();
    for (const json::Value& id : *entry.find("ids")->as_array()) {
      v.ids.push_back(static_cast<int32_t>(*id.as_int64()));
    }
  }
  return vectors;
}

void expect_vectors(const Tokenizer& tokenizer, std::string_view name) {
  const auto vectors = read_vectors(name);
  EXPECT_GE(vectors.size(), 390U);
  for (const Vector& v : vectors) {
    const auto ids = tokenizer.encode_with_specials(v.text);
    ASSERT_TRUE(ids.ok()) << ids.error().message;
    EXPECT_EQ(*ids, v.ids) << v.text;
    const auto decoded = tokenizer.decode(v.ids);
    ASSERT_TRUE(decoded.ok()) << decoded.error().message;
    EXPECT_EQ(*decoded, v.decoded);
  }
}

TEST(Tokenizer, EncodesAndDecodesEveryTinyV4Vector) { expect_vectors(tiny_v4(), "tiny_v4.json"); }

TEST(Tokenizer, EncodesAndDecodesEveryDeepSeekV3Vector) {
  expect_vectors(deepseek_v3(), "deepseek_v3.json");
}

const Tokenizer& minimal() {
  static const auto tokenizer = *parse_tokenizer(
      json::dump(testing::minimal_tokenizer(), json::Style::kCompact), "tokenizer.json");
  return *tokenizer;
}

std::vector<int32_t> encode(const Tokenizer& tokenizer,
                            std::string_view text,
                            const std::vector<ByteRange>& special_ranges) {
  const auto ids = tokenizer.encode(text, special_ranges);
  CHECK(ids.ok()) << ids.error().message;
  return *ids;
}

std::string decode(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  const auto text = tokenizer.decode(ids);
  CHECK(text.ok()) << text.error().message;
  return *text;
}

// DeepSeek-V4's released vocabulary is V3's with other added tokens from id 128805 on; these are
// the ones of its prompts.
std::unique_ptr<Tokenizer> deepseek_v4() {
  json::Value root =
      *json::parse(read_text(kUnpackedDir / "deepseek_v3_tokenizer.json"), {.max_nodes = 1 << 20});
  json::Array& added_tokens = *root.as_object()->find("added_tokens")->as_array();
  std::erase_if(added_tokens,
                [](const json::Value& t) { return *t.find("id")->as_int64() >= 128805; });
  const auto add = [&](int32_t id, const char* content) {
    added_tokens.push_back(
        json::make_object({{"id", id}, {"content", content}, {"special", true}}));
  };
  add(128821, "<think>");
  add(128822, "</think>");
  add(128825, "\uFF5CDSML\uFF5C");
  return *parse_tokenizer(json::dump(root, json::Style::kCompact), "tokenizer.json");
}

// Ids published with the DeepSeek-V4 encoder and read from the vendor's API.
TEST(Tokenizer, EncodesTheReleasedV4Prompts) {
  const auto v4 = deepseek_v4();
  const auto ids_of = [&](std::string_view text) { return *v4->encode_with_specials(text); };
  EXPECT_THAT(ids_of("1234567890"), ElementsAre(6895, 18009, 25744, 18));
  EXPECT_THAT(ids_of("x->y"), ElementsAre(90, 2105, 91));
  EXPECT_THAT(ids_of("a  b   c    d"), ElementsAre(67, 223, 291, 262, 274, 361, 283));
  EXPECT_THAT(ids_of("\uFF5CDSML\uFF5Ctool_calls"), ElementsAre(128825, 72461, 4941, 12548));
  EXPECT_THAT(ids_of("<\uFF5CDSML\uFF5Cinvoke name=\"f\">"),
              ElementsAre(30, 128825, 40148, 5406, 2329, 1281, 72, 3320));
  EXPECT_THAT(
      ids_of("<\uFF5C"
             "begin\u2581of\u2581sentence\uFF5C>You are a helpful assistant.<\uFF5CUser\uFF5C>Hello"
             "<\uFF5C"
             "Assistant\uFF5C></think>Hi there! How can I help you?<\uFF5C"
             "end\u2581of\u2581sentence\uFF5C>"
             "<\uFF5CUser\uFF5C>What is the capital of France?<\uFF5C"
             "Assistant\uFF5C><think>The user asks about the "
             "capital of France. It is Paris.</think>The capital of France is Paris."
             "<\uFF5C"
             "end\u2581of\u2581sentence\uFF5C>"),
      ElementsAre(0,
                  3476,
                  477,
                  260,
                  11502,
                  22896,
                  16,
                  128803,
                  19923,
                  128804,
                  128822,
                  23166,
                  1031,
                  3,
                  1730,
                  588,
                  342,
                  1694,
                  440,
                  33,
                  1,
                  128803,
                  3085,
                  344,
                  270,
                  6102,
                  294,
                  8760,
                  33,
                  128804,
                  128821,
                  671,
                  3967,
                  20407,
                  943,
                  270,
                  6102,
                  294,
                  8760,
                  16,
                  983,
                  344,
                  11111,
                  16,
                  128822,
                  671,
                  6102,
                  294,
                  8760,
                  344,
                  11111,
                  16,
                  1));
  EXPECT_EQ(ids_of(read_text(kSourceDir / "tests/data/chat/official_test_1.txt")).size(), 541U);
}

TEST(Tokenizer, KnowsItsAddedTokens) {
  EXPECT_EQ(deepseek_v3().vocab_size(), 128815);
  EXPECT_EQ(deepseek_v3().added_token("<\uFF5CUser\uFF5C>"), 128803);
  EXPECT_EQ(deepseek_v3().token_bytes(128804), "<\uFF5CAssistant\uFF5C>");
  EXPECT_EQ(deepseek_v3().added_token("User"), std::nullopt);
  EXPECT_TRUE(deepseek_v3().is_special(0));
  EXPECT_FALSE(deepseek_v3().is_special(128814));  // <tool sep> is added, but not special
  EXPECT_FALSE(deepseek_v3().is_special(3));
  EXPECT_FALSE(deepseek_v3().is_special(-1));
  EXPECT_EQ(deepseek_v3().token_bytes(128815), "");
  EXPECT_EQ(deepseek_v3().token_bytes(-1), "");
  EXPECT_EQ(tiny_v4().vocab_size(), 4096);
}

TEST(Tokenizer, MatchesAddedTokensOnlyInsideSpecialRanges) {
  const std::string user = "<\uFF5CUser\uFF5C>";
  const int32_t user_id = *tiny_v4().added_token(user);
  const std::string text = user + "say " + user;
  const auto plain = encode(tiny_v4(), text, {});
  EXPECT_EQ(std::count(plain.begin(), plain.end(), user_id), 0);
  EXPECT_EQ(decode(tiny_v4(), plain), text);

  const auto first_only = encode(tiny_v4(), text, {{0, user.size()}});
  EXPECT_EQ(first_only[0], user_id);
  EXPECT_EQ(std::count(first_only.begin(), first_only.end(), user_id), 1);
  EXPECT_EQ(decode(tiny_v4(), first_only), text);

  const auto cut_short =
      encode(tiny_v4(), text, {{0, user.size() - 1}, {user.size() - 1, text.size()}});
  EXPECT_EQ(cut_short.back(), user_id);
  EXPECT_EQ(std::count(cut_short.begin(), cut_short.end(), user_id), 1);
}

TEST(Tokenizer, TakesTheLeftmostThenTheLongestAddedTokenThatFits) {
  EXPECT_THAT(encode(minimal(), "<s>>", {{0, 4}}), ElementsAre(259));
  EXPECT_THAT(encode(minimal(), "<s>>", {{0, 3}}), ElementsAre(258, '>'));
  EXPECT_THAT(encode(minimal(), "<s<s>", {{0, 5}}), ElementsAre('<', 's', 258));
  EXPECT_THAT(encode(minimal(), "<n><s><n>", {{0, 9}}), ElementsAre(260, 258, 260));
}

TEST(Tokenizer, PiecesRunAcrossTheBordersOfSpecialRanges) {
  EXPECT_THAT(encode(minimal(), "abab", {{0, 1}, {1, 3}}), ElementsAre(257));
}

TEST(Tokenizer, MatchesNormalizedAddedTokensInWhatTheOthersLeave) {
  json::Value root = testing::minimal_tokenizer();
  const auto set_content = [&](size_t index, const char* content) {
    (*root.as_object()->find("added_tokens")->as_array())[index].as_object()->set("content",
                                                                                  content);
  };
  set_content(0, "bc");
  set_content(2, "ab");
  root.as_object()->find("model")->as_object()->find("vocab")->as_object()->erase("ab");
  root.as_object()->find("model")->as_object()->find("vocab")->as_object()->erase("abab");
  root.as_object()->find("model")->as_object()->set("merges", json::Array{});
  const auto tokenizer = parse_tokenizer(json::dump(root, json::Style::kCompact), "tokenizer.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  EXPECT_THAT(encode(**tokenizer, "abcab", {{0, 5}}), ElementsAre('a', 258, 260));
}

TEST(Tokenizer, RefusesInvalidUtf8AndNamesThePlace) {
  for (const char* text :
       {"ab\xFF", "ab\xC3", "ab\xED\xA0\x80", "ab\xF4\x90\x80\x80", "ab\xC0\x80"}) {
    const auto ids = tiny_v4().encode(text, {});
    ASSERT_FALSE(ids.ok());
    EXPECT_EQ(ids.error().code, Errc::kInvalidArgument);
    EXPECT_THAT(ids.error().message, HasSubstr("at byte 2"));
  }
}

TEST(Tokenizer, RefusesToDecodeIdsOutsideTheVocabulary) {
  for (const int32_t id : {-1, 4096, INT32_MAX, INT32_MIN}) {
    const auto text = tiny_v4().decode({&id, 1});
    ASSERT_FALSE(text.ok());
    EXPECT_EQ(text.error().code, Errc::kInvalidArgument);
  }
}

TEST(Tokenizer, LoadsFromADirectoryAndReportsAMissingFile) {
  const auto tokenizer = load_tokenizer(kSourceDir / "models/tiny-v4");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  EXPECT_EQ((*tokenizer)->vocab_size(), 4096);
  const auto missing = load_tokenizer(kSourceDir / "models");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, Errc::kNotFound);
}

char32_t random_code_point(std::mt19937& random) {
  constexpr uint32_t kCeilings[] = {0x80, 0x80, 0x800, 0x3100, 0xD800, 0x110000};
  while (true) {
    const auto c = static_cast<char32_t>(random() % kCeilings[random() % std::size(kCeilings)]);
    if (c < 0xD800 || c > 0xDFFF) return c;
  }
}

TEST(Tokenizer, DecodesWhatItEncodedForRandomText) {
  std::mt19937 random(4);
  for (int i = 0; i < 2'000; ++i) {
    std::string text;
    for (size_t length = random() % 60; length > 0; --length)
      append_utf8(text, random_code_point(random));
    ASSERT_EQ(decode(tiny_v4(), encode(tiny_v4(), text, {})), text);
    ASSERT_EQ(decode(deepseek_v3(), encode(deepseek_v3(), text, {{0, text.size()}})), text);
  }
}

// The whole path against the oracles, with the 128k vocabulary's real merges.
TEST(Tokenizer, AgreesWithNaivePiecesAndNaiveMerges) {
  const auto spec = parse_tokenizer_json(read_text(kUnpackedDir / "deepseek_v3_tokenizer.json"),
                                         "tokenizer.json");
  ASSERT_TRUE(spec.ok()) << spec.error().message;
  const testing::NaiveBpe naive(spec->byte_tokens, spec->merges);
  std::mt19937 random(5);
  constexpr std::string_view kLetters = "etaoinshrdlu etaoin\n-=_.0";
  for (int i = 0; i < 500; ++i) {
    std::string text;
    for (size_t length = random() % 200; length > 0; --length) {
      if (random() % 16 == 0) append_utf8(text, random_code_point(random));
      text.append(1 + (random() % 8 == 0 ? random() % 30 : 0),
                  kLetters[random() % kLetters.size()]);
    }
    std::vector<int32_t> expected;
    for (const std::string& piece : testing::naive_pieces(text)) {
      const auto ids = naive.encode(piece);
      expected.insert(expected.end(), ids.begin(), ids.end());
    }
    ASSERT_EQ(encode(deepseek_v3(), text, {}), expected) << escape_for_display(text);
  }
}

TEST(Tokenizer, IsSharedByThreads) {
  const std::string text =
      "The quick brown fox, 12345 times. \u4E2D\u6587 " + std::string(500, 'a');
  const auto expected = encode(tiny_v4(), text, {});
  std::vector<std::vector<int32_t>> results(4);
  {
    std::vector<std::jthread> threads;
    threads.reserve(results.size());
    for (auto& result : results) {
      threads.emplace_back([&result, &text] { result = encode(tiny_v4(), text, {}); });
    }
  }
  for (const auto& result : results) EXPECT_EQ(result, expected);
}

std::string repeated(std::string_view unit, size_t num_bytes) {
  std::string text;
  while (text.size() < num_bytes) text += unit;
  return text;
}

// A quadratic merge or scan would need minutes here.
TEST(Tokenizer, CopesWithHostileRepetition) {
  constexpr size_t kBytes = 200'000;
  for (const char* unit :
       {"a",          " ",  "\u0301", "\n",   " \n", "\t ",     "a\u0301",           "\u4E2D",
        "\u30FB",     "1",  "!",      "\x01", "<",   "<\uFF5C", "<\uFF5CUser\uFF5C", "\u200D",
        "\U0001F680", "ab", "\u00A0", "\r\n "}) {
    const std::string text = repeated(unit, kBytes);
    EXPECT_EQ(decode(deepseek_v3(), encode(deepseek_v3(), text, {{0, text.size()}})), text);
  }
}

}  // namespace
}  // namespace nibble::text
