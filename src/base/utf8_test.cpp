#include "base/utf8.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(Utf8, RoundTripsEveryScalarValue) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string bytes;
    append_utf8(bytes, c);
    const Utf8Char back = decode_utf8(bytes);
    ASSERT_TRUE(back.is_valid) << static_cast<uint32_t>(c);
    ASSERT_EQ(back.code_point, c);
    ASSERT_EQ(static_cast<size_t>(back.num_bytes), bytes.size());
  }
}

TEST(Utf8, ReplacesMaximalSubparts) {
  // Unicode 15, section 3.9, "U+FFFD Substitution of Maximal Subparts".
  EXPECT_EQ(replace_invalid_utf8("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"),
            "a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"
            "b\xEF\xBF\xBD"
            "c\xEF\xBF\xBD\xEF\xBF\xBD"
            "d");
  EXPECT_FALSE(is_valid_utf8("\xED\xA0\x80"));  // surrogate
  EXPECT_FALSE(is_valid_utf8("\xC0\x80"));      // overlong
  EXPECT_FALSE(is_valid_utf8("\xF4\x90\x80\x80"));
}

TEST(Utf8, FindsIncompleteSuffix) {
  EXPECT_EQ(incomplete_utf8_suffix("abc"), 0);
  EXPECT_EQ(incomplete_utf8_suffix("a\xE4"), 1);
  EXPECT_EQ(incomplete_utf8_suffix("a\xE4\xBD"), 2);
  EXPECT_EQ(incomplete_utf8_suffix("a\xE4\xBD\xA0"), 0);
  EXPECT_EQ(incomplete_utf8_suffix("\xF0\x9F\x99"), 3);
  EXPECT_EQ(incomplete_utf8_suffix("\xFF"), 0);
  EXPECT_EQ(incomplete_utf8_suffix("\xE4\x41"), 0);
  EXPECT_EQ(incomplete_utf8_suffix("\xED\xA0"), 0);  // can never become well-formed
}

TEST(Utf8, EscapesForOneLine) {
  EXPECT_EQ(escape_for_display("a\nb\x1b[31m\xff\xc2\x9b\xc3\xa9"),
            "a\\x0ab\\x1b[31m\\xff\\xc2\\x9b\xc3\xa9");
}

}  // namespace
}  // namespace nibble
