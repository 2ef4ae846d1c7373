#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "base/utf8.h"
#include "text/tokenizer_testing.h"

namespace nibble::text {
namespace {

using Specials = Detokenizer::Specials;

// Byte b is token b; 258 and 259 are special, 260 is added but not special.
const Tokenizer& byte_tokenizer() {
  static const auto tokenizer = *parse_tokenizer(
      json::dump(testing::minimal_tokenizer(), json::Style::kCompact), "tokenizer.json");
  return *tokenizer;
}

std::string detokenize(const std::vector<int32_t>& ids, Specials specials) {
  Detokenizer detokenizer(byte_tokenizer(), specials);
  std::string text;
  for (const int32_t id : ids) {
    const std::string piece = detokenizer.push(id);
    EXPECT_TRUE(is_valid_utf8(piece));
    text += piece;
  }
  return text + detokenizer.flush();
}

TEST(Detokenizer, HoldsACharacterBackUntilItIsComplete) {
  Detokenizer detokenizer(byte_tokenizer());
  EXPECT_EQ(detokenizer.push('x'), "x");
  EXPECT_EQ(detokenizer.push(0xF0), "");
  EXPECT_EQ(detokenizer.push(0x9F), "");
  EXPECT_EQ(detokenizer.push(0x9A), "");
  EXPECT_EQ(detokenizer.push(0x80), "\U0001F680");
  EXPECT_EQ(detokenizer.flush(), "");
}

TEST(Detokenizer, ReplacesWhatProvesIllFormed) {
  Detokenizer detokenizer(byte_tokenizer());
  EXPECT_EQ(detokenizer.push(0xE2), "");
  EXPECT_EQ(detokenizer.push('a'),
            "\uFFFD"
            "a");
  EXPECT_EQ(detokenizer.push(0x80), "\uFFFD");
  EXPECT_EQ(detokenizer.push(0xE2), "");
  EXPECT_EQ(detokenizer.push(0x82), "");
  EXPECT_EQ(detokenizer.flush(), "\uFFFD");
  EXPECT_EQ(detokenizer.flush(), "");
}

TEST(Detokenizer, SkipsOrKeepsSpecials) {
  const std::vector<int32_t> ids = {'a', 258, 0xC3, 258, 0xA9, 260};
  EXPECT_EQ(detokenize(ids, Specials::kSkip), "a\u00E9<n>");
  EXPECT_EQ(detokenize(ids, Specials::kKeep), "a<s>\uFFFD<s>\uFFFD<n>");
}

TEST(Detokenizer, IgnoresIdsOutsideTheVocabulary) {
  EXPECT_EQ(detokenize({'a', -1, 1 << 30, 'b'}, Specials::kKeep), "ab");
}

TEST(Detokenizer, PiecesConcatenateToTheDecodedWhole) {
  std::mt19937 random(3);
  const std::vector<int32_t> pool = {'a',  0x80, 0xBF, 0xC3, 0xA9, 0xE2, 0x82,
                                     0xAC, 0xED, 0xA0, 0xF0, 0x9F, 0x9A, 0xF4,
                                     0x90, 0xFF, 256,  257,  258,  259,  260};
  for (int i = 0; i < 5'000; ++i) {
    std::vector<int32_t> ids(random() % 20);
    for (int32_t& id : ids) id = pool[random() % pool.size()];
    const auto whole = byte_tokenizer().decode(ids);
    ASSERT_TRUE(whole.ok());
    ASSERT_EQ(detokenize(ids, Specials::kKeep), *whole);
    std::erase_if(ids, [](int32_t id) { return byte_tokenizer().is_special(id); });
    ASSERT_EQ(detokenize(ids, Specials::kSkip), *byte_tokenizer().decode(ids));
  }
}

TEST(Detokenizer, KeepsSpecialsThatAreNamed) {
  Detokenizer detokenizer(byte_tokenizer(), Specials::kSkip, {259});
  EXPECT_EQ(detokenizer.push(258), "");
  EXPECT_EQ(detokenizer.push(259), byte_tokenizer().token_bytes(259));
  EXPECT_NE(byte_tokenizer().token_bytes(259), "");
}

}  // namespace
}  // namespace nibble::text
