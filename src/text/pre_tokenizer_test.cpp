#include "text/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "text/char_class.h"
#include "text/tokenizer_testing.h"

namespace nibble::text {
namespace {

using ::testing::ElementsAre;
using testing::naive_pieces;
using testing::scanned_pieces;

TEST(CharClass, FollowsGeneralCategoryAndWhiteSpace) {
  EXPECT_EQ(char_class('a'), CharClass::kLetter);
  EXPECT_EQ(char_class(U'\u00E9'), CharClass::kLetter);
  EXPECT_EQ(char_class(U'\u02B0'), CharClass::kLetter);  // Lm
  EXPECT_EQ(char_class(U'\u4E00'), CharClass::kLetter);
  EXPECT_EQ(char_class(U'\u0301'), CharClass::kMark);
  EXPECT_EQ(char_class(U'\u20DD'), CharClass::kMark);  // Me
  EXPECT_EQ(char_class('7'), CharClass::kNumber);
  EXPECT_EQ(char_class(U'\u0663'), CharClass::kNumber);  // Arabic-Indic digit
  EXPECT_EQ(char_class(U'\u2167'), CharClass::kNumber);  // Roman numeral
  EXPECT_EQ(char_class(U'\u00BD'), CharClass::kNumber);
  EXPECT_EQ(char_class('$'), CharClass::kSymbol);
  EXPECT_EQ(char_class('_'), CharClass::kSymbol);
  EXPECT_EQ(char_class(U'\U0001F680'), CharClass::kSymbol);
  EXPECT_EQ(char_class('\n'), CharClass::kNewline);
  EXPECT_EQ(char_class(U'\u00AD'), CharClass::kOther);       // Cf
  EXPECT_EQ(char_class(U'\U0001FAE8'), CharClass::kSymbol);  // new in Unicode 15.0
  EXPECT_EQ(char_class(U'\uE000'), CharClass::kOther);
  EXPECT_EQ(char_class(0x10FFFF), CharClass::kOther);
  for (const char32_t c : U"\t\v\f \u0085\u00A0\u1680\u2000\u200A\u2028\u2029\u202F\u205F\u3000") {
    if (c != 0) {
      EXPECT_EQ(char_class(c), CharClass::kSpace) << static_cast<uint32_t>(c);
    }
  }
  for (const char32_t c : {0x00U, 0x1CU, 0x1FU, 0x7FU, 0x180EU, 0x200BU, 0x200DU, 0xFEFFU}) {
    EXPECT_EQ(char_class(c), CharClass::kOther) << static_cast<uint32_t>(c);
  }
}

TEST(PieceScanner, GivesNothingForEmptyText) { EXPECT_EQ(PieceScanner("").next(), ""); }

TEST(PieceScanner, KeepsTheSpaceBeforeWordsAndSymbols) {
  EXPECT_THAT(scanned_pieces("Hello, world (x)."),
              ElementsAre("Hello", ",", " world", " (", "x", ")."));
  EXPECT_THAT(scanned_pieces("\tif (a)"), ElementsAre("\tif", " (", "a", ")"));
}

TEST(PieceScanner, JoinsOneAsciiSymbolWithAsciiLetters) {
  EXPECT_THAT(scanned_pieces("x.y->z"), ElementsAre("x", ".y", "->", "z"));
  EXPECT_THAT(scanned_pieces("_caf\u00E9"), ElementsAre("_caf", "\u00E9"));
}

TEST(PieceScanner, CutsDigitsInThreesAndAsABorder) {
  EXPECT_THAT(scanned_pieces("a1234567b"), ElementsAre("a", "123", "456", "7", "b"));
  EXPECT_THAT(scanned_pieces("a  1"),
              ElementsAre("a", "  ", "1"));  // the look-ahead ends at the border
}

TEST(PieceScanner, IsolatesCjkRuns) {
  EXPECT_THAT(scanned_pieces("a\u4E2D\u6587b"), ElementsAre("a", "\u4E2D\u6587", "b"));
  EXPECT_THAT(scanned_pieces("\u30A2\u30FB\u30A4"), ElementsAre("\u30A2", "\u30FB", "\u30A4"));
}

TEST(PieceScanner, LeavesOneSpaceToTheNextWord) {
  EXPECT_THAT(scanned_pieces("a   b"), ElementsAre("a", "  ", " b"));
  EXPECT_THAT(scanned_pieces("a   "), ElementsAre("a", "   "));
  EXPECT_THAT(scanned_pieces("a \n\n  b"), ElementsAre("a", " \n\n", " ", " b"));
  EXPECT_THAT(scanned_pieces("a!\r\n\n b"), ElementsAre("a", "!\r\n\n", " b"));
}

TEST(PieceScanner, KeepsUnmatchedControlsAsGaps) {
  EXPECT_THAT(scanned_pieces("\x01\x02\x03"
                             "a"),
              ElementsAre("\x01\x02",
                          "\x03"
                          "a"));
}

// Every class, every border, and the neighbours of the CJK ranges.
constexpr std::u32string_view kNastyAlphabet =
    U"aZ09_!<'- "
    U"\t\r\n\u0001\u007F\u0085\u00A0\u00AD\u00BD\u00E9\u0301\u0663\u0915\u093F\u200B\u200D\u2003"
    U"\u2028"
    U"\u2167\u3000\u303F\u3040\u3042\u3099\u309B\u309F\u30A0\u30A2\u30FB\u30FF\u3100\u3400\u4E00"
    U"\u9FA5\u9FA6\uAC00"
    U"\uFE0F\uFF5C\uFFFD\U0001F680\U0001F1E9\U000E0041\U0010FFFF";

TEST(PieceScanner, AgreesWithABacktrackingMatcherOnRandomText) {
  std::mt19937 random(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string text;
    const size_t length = random() % 24;
    const size_t alphabet_size =
        2 + random() % (kNastyAlphabet.size() - 1);  // small ones make long runs
    const size_t offset = random() % kNastyAlphabet.size();
    for (size_t k = 0; k < length; ++k) {
      append_utf8(text,
                  kNastyAlphabet[(offset + random() % alphabet_size) % kNastyAlphabet.size()]);
    }
    ASSERT_EQ(scanned_pieces(text), naive_pieces(text)) << escape_for_display(text);
  }
}

}  // namespace
}  // namespace nibble::text
