#include "base/json.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace nibble::json {
namespace {

std::string round_trip(std::string_view text, Style style = Style::kPython) {
  auto value = parse(text);
  return value.ok() ? dump(*value, style) : "error: " + value.error().message;
}

TEST(Json, KeepsOrderAndIntegerTokens) {
  EXPECT_EQ(round_trip(R"({"z":1,"a":[-0,12345678901234567890123,1.50,true,null]})"),
            R"({"z": 1, "a": [-0, 12345678901234567890123, 1.5, true, null]})");
  EXPECT_EQ(round_trip(R"({"z":1,"a":[]})", Style::kCompact), R"({"z":1,"a":[]})");
}

TEST(Json, PrintsFloatsLikePython) {
  EXPECT_EQ(python_repr(1.0), "1.0");
  EXPECT_EQ(python_repr(-0.0), "-0.0");
  EXPECT_EQ(python_repr(1e-5), "1e-05");
  EXPECT_EQ(python_repr(0.0001), "0.0001");
  EXPECT_EQ(python_repr(1e16), "1e+16");
  EXPECT_EQ(python_repr(1234567890123456.0), "1234567890123456.0");
  EXPECT_EQ(python_repr(0.1), "0.1");
  EXPECT_EQ(python_repr(1.5e300), "1.5e+300");
  EXPECT_EQ(python_repr(123.456), "123.456");
}

TEST(Json, EscapesLikePythonWithoutAscii) {
  EXPECT_EQ(round_trip("\"\\u0001\\u007f\\/\\u00e9\\b\\f\\n\\r\\t\\\"\\\\\""),
            "\"\\u0001\x7f/\xc3\xa9\\b\\f\\n\\r\\t\\\"\\\\\"");
}

TEST(Json, FindsDuplicatesInSmallAndLargeObjects) {
  EXPECT_FALSE(parse(R"({"a":1,"a":2})").ok());
  std::string large = "{";
  for (int i = 0; i < 80'000; ++i)
    large += "\"k" + std::to_string(i) + "\":" + std::to_string(i) + ",";
  auto good = parse(large + "\"end\":0}");
  ASSERT_TRUE(good.ok()) << good.error().message;
  EXPECT_EQ(good->find("k79999")->as_int64(), 79'999);
  EXPECT_EQ(good->find("absent"), nullptr);
  EXPECT_FALSE(parse(large + "\"k500\":0}").ok());
}

TEST(Json, BoundsDepthNodesAndBytes) {
  EXPECT_TRUE(parse(std::string(64, '[') + std::string(64, ']')).ok());
  EXPECT_FALSE(parse(std::string(65, '[') + std::string(65, ']')).ok());
  EXPECT_FALSE(parse(std::string(1'000'000, '[')).ok());
  EXPECT_FALSE(parse("[1,2,3]", {.max_nodes = 3}).ok());
  EXPECT_FALSE(parse("[1,2,3]", {.max_bytes = 4}).ok());
}

TEST(Json, RejectsWhatRfc8259Rejects) {
  for (const char* bad : {"",
                          " ",
                          "{",
                          "[1,]",
                          "{\"a\":}",
                          "01",
                          "-",
                          "1.",
                          "1e",
                          "1e999",
                          "nul",
                          "tru",
                          "truex",
                          "nullx",
                          "[1] 2",
                          "\"\xff\"",
                          "\"\\ud800\"",
                          "\"\n\"",
                          "{'a':1}",
                          "NaN",
                          "[1 2]",
                          "{\"a\" 1}",
                          "\xEF\xBB\xBF{}",
                          "+1",
                          ".5",
                          "[01]",
                          "[-01]",
                          "[1x]",
                          "n",
                          "null1 ",
                          "true1 ",
                          "false1 ",
                          "null1",
                          "[null1]",
                          "[n]",
                          "[nul]",
                          "[nulll]",
                          "{\"a\":nil}",
                          "[tru]",
                          "[truee]",
                          "1 2",
                          "1x",
                          "\"a\" \"b\"",
                          "[1,,2]",
                          "[,1]",
                          "{,}",
                          "{\"a\":1,}",
                          "{1:2}",
                          "{\"a\"}",
                          "]",
                          "[}",
                          "{]",
                          "[\"\\x\"]",
                          "[\"\\u12g4\"]",
                          "[\"\\udc00\"]",
                          "[-]",
                          "[1e+]",
                          "[.5]",
                          "[0x1]",
                          "[1_000]",
                          "[Infinity]",
                          "\"a",
                          "[\"\x01\"]",
                          "[\"\\ud800\\u0041\"]",
                          "[1]]",
                          "{}}",
                          "[\xC0\x80]",
                          "[\"\xED\xA0\x80\"]"}) {
    EXPECT_FALSE(parse(bad).ok()) << bad;
  }
}

TEST(Json, EscapesTheInsideOfAString) {
  std::string out;
  append_escaped(out, "a\"\\\n\x1f\xc3\xa9\xff");
  EXPECT_EQ(out, "a\\\"\\\\\\n\\u001f\xc3\xa9\xef\xbf\xbd");
  append_quoted(out = "", "a\"");
  EXPECT_EQ(out, "\"a\\\"\"");
}

TEST(Json, RoundsNumbersThatADoubleCannotHold) {
  EXPECT_EQ(
      round_trip("[1e-400, -1e-400, 0e999, 0." + std::string(400, '0') + "1, 4.9e-324, 2.4e-324]"),
      "[0.0, -0.0, 0.0, 0.0, 5e-324, 0.0]");
  EXPECT_EQ(
      round_trip("[1." + std::string(400, '9') + ", 9007199254740993.0, 1.7976931348623157e308]"),
      "[2.0, 9007199254740992.0, 1.7976931348623157e+308]");
  EXPECT_FALSE(parse("1.7976931348623159e308").ok());
  EXPECT_FALSE(parse(std::string(400, '9')).ok());
}

TEST(Json, AllowsWhiteSpaceAroundEveryKindOfDocument) {
  for (const char* text : {"true", "false", "null", "12", "-1.5", "\"a b\"", "[]", "{}"}) {
    EXPECT_EQ(round_trip(text), text);
    EXPECT_EQ(round_trip(std::string(text) + " \t\t\t\r\n"), text);
    EXPECT_EQ(round_trip(std::string("\n  ") + text + " "), text);
  }
}

TEST(Json, SaysWhereAFaultLies) {
  const auto message = [](std::string_view text) { return parse(text).error().message; };
  EXPECT_EQ(message(R"({"a": 1, "b": 2, "a": 3})"), "JSON: duplicate key \"a\", near byte 23");
  EXPECT_EQ(message(R"([1, 2, tru, 4])"),
            "JSON: unknown literal, expected true, false or null, near byte 7");
  EXPECT_EQ(message(std::string(70, '[') + std::string(70, ']')),
            "JSON: nested deeper than 64 levels, near byte 64");
}

TEST(Json, ReadsNumbersOnlyWhereTheyFit) {
  EXPECT_EQ(parse("9223372036854775807")->as_int64(), INT64_MAX);
  EXPECT_EQ(parse("-9223372036854775808")->as_int64(), INT64_MIN);
  EXPECT_EQ(parse("9223372036854775808")->as_int64(), std::nullopt);
  EXPECT_EQ(parse("9223372036854775808")->as_double(), 9223372036854775808.0);
  EXPECT_EQ(parse("1.0")->as_int64(), std::nullopt);
  EXPECT_EQ(parse("\"1\"")->as_double(), std::nullopt);
  EXPECT_EQ(parse("true")->as_int64(), std::nullopt);
}

TEST(Json, ObjectsBehaveLikeOrderedMaps) {
  std::mt19937 random(1);
  Object object;
  std::vector<std::pair<std::string, int32_t>> expected;
  for (int32_t i = 0; i < 4000; ++i) {
    const std::string key = "k" + std::to_string(random() % 100);
    const auto found = std::find_if(
        expected.begin(), expected.end(), [&](const auto& entry) { return entry.first == key; });
    const bool is_new = found == expected.end();
    switch (random() % 4) {
      case 0:
        EXPECT_EQ(object.erase(key), !is_new);
        if (!is_new) expected.erase(found);
        break;
      case 1:
        object.set(key, i);
        if (is_new) {
          expected.emplace_back(key, i);
        } else {
          found->second = i;
        }
        break;
      default:
        EXPECT_EQ(object.insert(key, i), is_new);
        if (is_new) expected.emplace_back(key, i);
    }
    ASSERT_EQ(object.find(key) == nullptr,
              std::none_of(expected.begin(), expected.end(), [&](const auto& entry) {
                return entry.first == key;
              }));
  }
  ASSERT_EQ(object.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(object.begin()[i].key, expected[i].first);
    EXPECT_EQ(object.find(expected[i].first)->as_int64(), expected[i].second);
  }
}

TEST(Json, SetAndEraseKeepOrder) {
  Object object = make_object({{"a", 1}, {"b", 2}, {"c", 3}});
  object.set("a", 9);
  EXPECT_TRUE(object.erase("b"));
  EXPECT_FALSE(object.erase("b"));
  EXPECT_EQ(dump(Value(object), Style::kCompact), R"({"a":9,"c":3})");
}

}  // namespace
}  // namespace nibble::json
