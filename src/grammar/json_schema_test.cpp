#include "grammar/json_schema.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/json.h"
#include "grammar/grammar_testing.h"

namespace nibble::grammar {
namespace {

struct SchemaCase {
  const char* schema;
  std::vector<const char*> accepted;
  std::vector<const char*> refused;
};

TEST(JsonSchemaTest, AcceptsAndRefuses) {
  const SchemaCase cases[] = {
      {R"({"type":"null"})", {"null"}, {"nul1", "n ull", "0"}},
      {R"({"type":"boolean"})", {"true", "false"}, {"True", "1"}},
      {R"({"type":"integer"})",
       {"0", "-1", "12345678", "999999999999999999"},
       {"01", "1.0", "-0", "+1", "1e3", "1000000000000000000"}},
      {R"({"type":"number"})", {"0", "-0.5", "1e5", "12.25E-3"}, {"01", ".5", "1.x", "1e123"}},
      {R"({"type":"string"})",
       {R"("")", R"("a\n\"\\\u00e9\ud83d\ude00")", "\"\u00e9\U0001f600\""},
       {"\"\n\"", R"("\x")", R"("\ud83d")", R"("\ud83dx")", R"("\ude00")", "'a'"}},
      {R"({"type":"string","minLength":2,"maxLength":3})",
       {R"("ab")", R"("\u00e9\n\ud83d\ude00")", "\"\u00e9\U0001f600x\""},
       {R"("a")", R"("abcd")", "\"\U0001f600\""}},
      {R"({"type":"string","pattern":"^[a-c]+$"})",
       {R"("abc")"},
       {R"("")", R"("abd")", R"("ab ")"}},
      {R"({"type":"string","pattern":"b"})", {R"("b")", R"("abc")"}, {R"("ac")"}},
      {R"({"type":"string","pattern":"^\"\\\\\n$"})", {R"("\"\\\n")"}, {R"("\"\\n")"}},
      {R"({"type":"string","format":"date"})",
       {R"("2024-02-29")", R"("2023-12-31")"},
       {R"("2023-02-29")",
        R"("1900-02-29")",
        R"("2023-04-31")",
        R"("2023-13-01")",
        R"("0000-01-01")"}},
      {R"({"type":"string","format":"date-time"})",
       {R"("2024-02-29T23:59:59Z")", R"("2023-01-01T00:00:00.25+01:30")"},
       {R"("2024-02-29 23:59:59Z")", R"("2024-02-29T24:00:00Z")", R"("2024-02-29T23:59:59")"}},
      {R"({"type":"string","format":"ipv4"})",
       {R"("255.0.10.199")"},
       {R"("256.0.0.1")", R"("01.0.0.1")"}},
      {R"({"enum":["red","gr\u00fcn",1,null,[1,2],{"a":"b"}]})",
       {R"("red")", "\"gr\u00fcn\"", "1", "null", "[1, 2]", R"({"a":"b"})"},
       {R"("blue")", "2", "[1]", R"({"a":"c"})"}},
      {R"({"const":{"x":[true]}})", {R"({"x": [true]})"}, {R"({"x":[false]})", "{}"}},
      {R"({"type":"string","enum":["a",1]})", {R"("a")"}, {"1"}},
      {R"({"type":["string","null"]})", {R"("x")", "null"}, {"1"}},
      {R"({"anyOf":[{"type":"integer"},{"type":"string"}],"title":"t"})",
       {"1", R"("x")"},
       {"null"}},
      {R"({"oneOf":[{"type":"integer"},{"type":"string"}]})", {"1", R"("x")"}, {"null"}},
      {R"({"oneOf":[{"type":"object","properties":{"k":{"const":"a"},"v":{"type":"null"}},"required":["k"]},
                    {"type":"object","properties":{"k":{"const":"b"}},"required":["k"]}]})",
       {R"({"k":"a","v":null})", R"({"k":"b"})"},
       {R"({"k":"b","v":null})", "{}"}},
      {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"null"}}})",
       {"{}",
        R"({"a":1})",
        R"({"b":null})",
        R"({"a": 1, "b": null})",
        "{\n  \"a\": 1,\n  \"b\": null\n}"},
       {R"({"b":null,"a":1})",
        R"({"a":1,})",
        R"({"c":1})",
        R"({"a":1 ,"b":null})",
        R"({,"b":null})"}},
      {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"null"},"c":{"type":"null"}},
           "required":["b"],"additionalProperties":false})",
       {R"({"b":null})", R"({"a":1,"b":null})", R"({"b":null,"c":null})"},
       {"{}", R"({"a":1})", R"({"a":1,"c":null})"}},
      {R"({"type":"object","properties":{"ab":{"type":"null"}},"additionalProperties":{"type":"integer"}})",
       {R"({"ab":null})", R"({"a":1})", R"({"ab":null,"abc":1,"":2})", R"({"x":1,"b":2})"},
       {R"({"ab":1})", R"({"x":1,"ab":null})", R"({"x":null})", R"({"\u0061b":1})"}},
      {R"({"type":"object","additionalProperties":{"type":"null"},"required":["z"]})",
       {R"({"z":null})", R"({"z":null,"y":null})"},
       {"{}", R"({"z":1})", R"({"z":null,"z":null})"}},
      {R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3})",
       {"[1]", "[1,2]", "[1, 2, 3]", "[\n  1\n]"},
       {"[]", "[1,2,3,4]", "[1,]", "[a]"}},
      {R"({"type":"array","items":{"type":"null"}})", {"[]", "[null,null]"}, {"[1]"}},
      {R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"minItems":1})",
       {"[1]", R"([1,"x"])"},
       {"[]", R"(["x"])", R"([1,"x",2])"}},
      {R"({"type":"array","prefixItems":[{"type":"integer"}],"items":{"type":"null"},"maxItems":3})",
       {"[]", "[1]", "[1,null,null]"},
       {"[null]", "[1,null,null,null]"}},
      {R"({"$defs":{"node":{"type":"object","properties":{"next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},
           "required":["next"]}},"$ref":"#/$defs/node"})",
       {R"({"next":null})", R"({"next":{"next":{"next":null}}})"},
       {R"({"next":{}})", "null"}},
      {R"({"type":"array","items":{"$ref":"#"}})", {"[]", "[[],[[]]]"}, {"[1]"}},
      {R"({"properties":{"a":{"minimum":1}},"anyOf":[{"required":["a"]}]})",
       {R"({"a":1})"},
       {"{}", R"({"a":0})"}},
      {R"({"type":"string","pattern":"^[a-c]+$","minLength":2,"maxLength":3})",
       {R"("ab")", R"("cab")"},
       {R"("a")", R"("abca")", R"("abd")"}},
      {R"({"type":"string","pattern":"\u00e9","maxLength":3})",
       {"\"\u00e9\"", "\"x\u00e9\\n\"", "\"\U0001f600\u00e9\u00e9\""},
       {R"("xyz")", "\"xxx\u00e9\"", "\"\U0001f600\""}},
      {R"({"type":"string","format":"date","pattern":"^2024-.*-29$"})",
       {R"("2024-02-29")"},
       {R"("2024-02-28")", R"("2023-03-29")"}},
      {R"({"type":"string","format":"ipv4","maxLength":7})", {R"("1.2.3.4")"}, {R"("1.2.3.45")"}},
      {R"({"type":"string","format":"ipv6"})",
       {R"("::")",
        R"("::1")",
        R"("fe80::1:2")",
        R"("1:2:3:4:5:6:7:8")",
        R"("1::")",
        R"("1:2:3:4:5:6:7::")"},
       {R"("1:2:3:4:5:6:7")",
        R"("1::2::3")",
        R"("1:2:3:4:5:6:7:8:9")",
        R"(":::")",
        R"("12345::")"}},
      {R"({"type":"string","format":"duration"})",
       {R"("P1D")", R"("P1Y2M3DT4H5M6S")", R"("PT6S")", R"("P2W")"},
       {R"("P")", R"("PT")", R"("P1W2D")", R"("P1S")", R"("PT1H2S")"}},
      {R"({"type":"string","format":"email"})",
       {R"("a.b+c@mail.example.org")"},
       {R"("a@b@c")", R"(".a@b")", R"("a..b@c")", R"("a@-b")", R"("a")"}},
      {R"({"type":"string","format":"hostname"})",
       {R"("localhost")", R"("a-1.example.org")"},
       {R"("-a")", R"("a-")", R"("a..b")", R"("1.2.3.4")", R"("a--b")"}},
      {R"({"type":"string","format":"uri"})",
       {R"("https://example.org/a%20b?x=1#y")", R"("http://localhost:8000")"},
       {R"("example.org")", R"("https://")", R"("https://a/%2")", R"("https://a/ ")"}},
      {R"({"type":"integer","multipleOf":7,"minimum":-15,"maximum":30})",
       {"-14", "-7", "0", "7", "28"},
       {"1", "-21", "35", "07", "-0"}},
      {R"({"type":"integer","multipleOf":3600})",
       {"0", "3600", "-86400"},
       {"36", "3601", "36000001"}},
      {R"({"type":"number","multipleOf":0.05,"minimum":0})",
       {"0", "0.1", "0.10", "19.95", "3.00"},
       {"0.01", "19.951", "0.150", "-0.05"}},
      {R"({"type":"integer","multipleOf":2.5})", {"5", "-10"}, {"2", "2.5"}},
      {R"({"multipleOf":4,"allOf":[{"multipleOf":6}],"type":"integer"})",
       {"12", "24"},
       {"4", "6", "18"}},
      {R"({"type":"array","items":{"enum":["a","b",1,1.0]},"uniqueItems":true,"minItems":1})",
       {R"(["b"])", R"(["b", "a"])", R"([1,"b","a"])"},
       {"[]", R"(["a","a"])", R"(["a","b",1,"a"])", "[1,1.0]"}},
      {R"({"items":{"type":["boolean","null"]},"uniqueItems":true,"maxItems":2})",
       {"[]", "[true,false]", "[null,true]"},
       {"[true,true]", "[true,false,null]"}},
      {R"({"items":{"enum":[0,1,2,3,4,5,6,7,8,9]},"uniqueItems":true,"minItems":2,"maxItems":3})",
       {"[0,9]", "[1,2,3]"},
       {"[0]", "[2,1]", "[1,1]", "[1,2,3,4]"}},
      {R"({"items":{"type":"integer"},"uniqueItems":true,"maxItems":1})", {"[]", "[3]"}, {"[3,4]"}},
      {R"({"$defs":{"base":{"type":"object","properties":{"id":{"type":"integer"}},"required":["id"]}},
           "allOf":[{"$ref":"#/$defs/base"},{"properties":{"id":{"minimum":3},"name":{"type":"null"}}}]})",
       {R"({"id":3})", R"({"id":4,"name":null})"},
       {R"({"id":2})", "{}", R"({"name":null,"id":3})"}},
      {R"({"allOf":[{"properties":{"a":{}},"additionalProperties":{"type":"integer"}},
                    {"properties":{"b":{"minimum":2}},"required":["b"]}]})",
       {R"({"b":2})", R"({"a":"x","b":3})", R"({"b":2,"c":1})"},
       {R"({"b":1})", R"({"b":2.5})", R"({"b":2,"c":"x"})"}},
      {R"({"allOf":[{"prefixItems":[{"type":"integer"},{"type":"integer"}],"items":{"type":"null"}},
                    {"items":{"minimum":1},"minItems":2}],"type":"array"})",
       {"[1,2]", "[1,2,null]"},
       {"[1]", "[0,1]", "[1,2,3]"}},
      {R"({"allOf":[{"enum":[1,2,"x"]},{"enum":["x",2.0,3]}]})", {"2", R"("x")"}, {"1", "3"}},
      {R"({"enum":[1,2],"const":2.0})", {"2.0"}, {"1"}},
      {R"({"allOf":[{"anyOf":[{"type":"integer"},{"type":"string"}]},
                    {"anyOf":[{"type":"integer","minimum":5},{"type":"string","maxLength":2}]}]})",
       {"5", R"("ab")"},
       {"4", R"("abc")"}},
      {R"({"$ref":"#/$defs/n","maximum":9,"$defs":{"n":{"type":"integer","minimum":5}}})",
       {"5", "9"},
       {"4", "10"}},
      {R"({"allOf":[{"$ref":"#"}],"type":"null"})", {"null"}, {"1"}},
      {R"({"type":["object","null"],"oneOf":[{"properties":{"k":{"const":1}},"required":["k"]},
                                             {"properties":{"k":{"const":2}},"required":["k"]}]})",
       {R"({"k":1})", R"({"k":2})"},
       {"null"}},
      {R"({"properties":{"a/b~%":{"type":"null"}},"required":["c"],
           "additionalProperties":{"$ref":"#/properties/a~1b~0%25"}})",
       {R"({"c":null})", R"({"a/b~%":null,"c":null,"d":null})"},
       {R"({"c":1})"}},
      {R"({"$defs":{"t":{"properties":{"next":{"$ref":"#/$defs/t"}}}},
           "allOf":[{"$ref":"#/$defs/t"},{"properties":{"next":{"properties":{"v":{"type":"null"}}}}}],
           "type":"object"})",
       {"{}", R"({"next":{"next":{},"v":null}})"},
       {R"({"next":{"v":1}})"}},
      {"{}", {"1", R"({"a":[1,{"b":null}]})", R"("x")"}, {"x", "[1,]"}},
      {"true", {"[]"}, {"]"}},
      {R"({"type":"object","properties":{"a":false,"b":{"type":"null"}}})",
       {R"({"b":null})"},
       {R"({"a":1})"}},
  };
  for (const SchemaCase& test : cases) {
    const auto grammar = compiled_schema(test.schema);
    ASSERT_NE(grammar, nullptr) << test.schema;
    for (const char* text : test.accepted) {
      EXPECT_EQ(fit(grammar, text), Fit::kWhole) << test.schema << " " << text;
    }
    for (const char* text : test.refused) {
      EXPECT_NE(fit(grammar, text), Fit::kWhole) << test.schema << " " << text;
    }
  }
}

// Blanks are finite wherever they may stand.
TEST(JsonSchemaTest, WhiteSpaceEnds) {
  const auto grammar = compiled({.content = JsonObject{}, .tools = {}});
  Matcher matcher(grammar);
  ASSERT_TRUE(matcher.accept('{').ok());
  int32_t num_blanks = 0;
  while (true) {
    const auto tokens = allowed(matcher);
    const int32_t blank = tokens.contains('\n') ? '\n' : ' ';
    if (!tokens.contains(blank)) break;
    ASSERT_TRUE(matcher.accept(blank).ok());
    ASSERT_LT(++num_blanks, 100);
  }
  EXPECT_EQ(allowed(matcher), (std::set<int32_t>{'}'})) << "both sides of nothing are blank";
  EXPECT_EQ(fit(grammar, " {}"), Fit::kRefused);
  EXPECT_EQ(fit(grammar, "{} "), Fit::kRefused);
}

TEST(JsonSchemaTest, FaultsNameKeywordAndPointer) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"not":{}})",
       R"(schema keyword "not" at "/not": is not supported; see docs/structured-output.md)"},
      {R"({"properties":{"a/b":{"patternProperties":{}}}})",
       R"(schema keyword "patternProperties" at "/properties/a~1b/patternProperties": is not supported; see docs/structured-output.md)"},
      {R"({"type":"thing"})",
       R"(schema keyword "type" at "/type": expected null, boolean, integer, number, string, array, object or an array of these)"},
      {R"({"items":[{}]})",
       R"(schema keyword "items" at "/items": expected one schema; use "prefixItems")"},
      {R"({"type":"string","pattern":"(a"})",
       R"(schema keyword "pattern" at "/pattern": a group is not closed (at character 2))"},
      {R"({"type":"string","format":"iri"})",
       R"(schema keyword "format" at "/format": "iri" is not supported; expected one of date, time, date-time, duration, uuid, ipv4, ipv6, hostname, email, uri)"},
      {R"({"type":"string","pattern":"^(a|b)*a(a|b){99}$","maxLength":100000})",
       R"(schema keyword "pattern" at "/pattern": takes too many states together with the other keywords; lower the counts)"},
      {R"({"$ref":"#/$defs/x"})",
       R"(schema keyword "$ref" at "/$ref": "#/$defs/x" does not exist)"},
      {R"({"$ref":"http://x"})",
       R"(schema keyword "$ref" at "/$ref": expected "#" or "#/...", a place in the same schema)"},
      {R"({"items":3})", R"(schema at "/items": expected an object or a boolean)"},
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})",
       R"(schema keyword "oneOf" at "/oneOf": is supported where types, constants or a required constant member tell the schemas apart; use "anyOf")"},
      {R"({"minItems":-1})",
       R"(schema keyword "minItems" at "/minItems": expected an integer from 0 to 100000)"},
      {R"({"type":"integer","minimum":"1"})",
       R"(schema keyword "minimum" at "/minimum": expected a number)"},
      {R"({"type":"integer","multipleOf":0})",
       R"(schema keyword "multipleOf" at "/multipleOf": expected a number above 0)"},
      {R"({"type":"integer","multipleOf":-2})",
       R"(schema keyword "multipleOf" at "/multipleOf": expected a number above 0)"},
      {R"({"type":"integer","multipleOf":1027})",
       R"(schema keyword "multipleOf" at "/multipleOf": expected at most 512 times a power of ten)"},
      {R"({"type":"object","required":["x"],"additionalProperties":false})",
       R"(schema keyword "required" at "/required": "x" is not among the properties)"},
      {R"({"uniqueItems":true})",
       R"(schema keyword "uniqueItems" at "/uniqueItems": is supported where items are constants, booleans or null)"},
      {R"({"items":{"allOf":[{"type":"string"},{"contains":{}}]}})",
       R"(schema keyword "contains" at "/items/allOf/1/contains": is not supported; see docs/structured-output.md)"},
      {R"({"anyOf":[{"required":["a"]},{"maxProperties":1}],"properties":{"a":{}}})",
       R"(schema keyword "maxProperties" at "/anyOf/1/maxProperties": is not supported; see docs/structured-output.md)"},
      {R"({"$ref":"#/$defs/a","minimum":1,"$defs":{"a":{"maximum":"x"}}})",
       R"(schema keyword "maximum" at "/$defs/a/maximum": expected a number)"},
      {R"({"type":"string","enum":["a"],"minLength":1})",
       R"(schema keyword "minLength" at "/minLength": is not supported beside "enum" or "const")"},
      {R"({"oneOf":[{"type":"object","properties":{"k":{"const":1}},"required":["k"]},{"type":["object","null"],"properties":{"k":{"const":2}},"required":["k"]},{"type":"null"}]})",
       R"(schema keyword "oneOf" at "/oneOf": is supported where types, constants or a required constant member tell the schemas apart; use "anyOf")"},
      {R"({"allOf":[{"required":["a"]},{"properties":{"b":{}},"additionalProperties":false}]})",
       R"(schema keyword "required" at "/allOf/0/required": "a" is not among the properties)"},
      {R"({"$defs":{"a":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"})",
       "no text can satisfy it (within 32 nested recursions)"},
      {R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})",
       "no text can satisfy it (within 32 nested recursions)"},
      {R"({"type":"integer","minimum":2,"maximum":1})",
       "no text can satisfy it (within 32 nested recursions)"},
  };
  for (const auto& [schema, message] : cases) EXPECT_EQ(schema_error_of(schema), message);
}

TEST(JsonSchemaTest, AnnotationsAreAllowed) {
  EXPECT_TRUE(accepts(
      compiled_schema(R"({"$schema":"x","$id":"y","$comment":"z","title":"t","description":"d",
      "default":1,"examples":[1],"deprecated":true,"readOnly":true,"writeOnly":false,"type":"integer"})"),
      "7"));
}

// --- numeric bounds, against comparison of the numbers themselves

std::string decimal_text(int64_t scaled) {
  std::string digits = std::to_string(std::abs(scaled));
  while (digits.size() < 3) digits.insert(0, "0");
  std::string text = digits.substr(0, digits.size() - 2) + "." + digits.substr(digits.size() - 2);
  while (text.ends_with('0')) text.pop_back();
  if (text.ends_with('.')) text.pop_back();
  return scaled < 0 ? "-" + text : text;
}

TEST(JsonSchemaTest, IntegerBoundsAreExact) {
  std::mt19937 random(1);
  for (int32_t round = 0; round < 150; ++round) {
    const auto pick = [&] { return static_cast<int64_t>(random() % 2400) - 1200; };
    const int64_t low = pick();
    const int64_t high = std::max(low, pick());
    const bool low_open = random() % 2 == 0;
    const bool high_open = random() % 2 == 0;
    const std::string schema =
        std::string(R"({"type":"integer",)") +
        (low_open ? "\"exclusiveMinimum\":" : "\"minimum\":") + std::to_string(low) + "," +
        (high_open ? "\"exclusiveMaximum\":" : "\"maximum\":") + std::to_string(high) + "}";
    const bool is_empty = low + (low_open ? 1 : 0) > high - (high_open ? 1 : 0);
    if (is_empty) {
      EXPECT_NE(schema_error_of(schema), "") << schema;
      continue;
    }
    const auto grammar = compiled_schema(schema);
    for (int64_t value = -1300; value <= 1300; ++value) {
      const bool is_inside =
          (low_open ? value > low : value >= low) && (high_open ? value < high : value <= high);
      ASSERT_EQ(accepts(grammar, std::to_string(value)), is_inside) << schema << " " << value;
    }
  }
}

TEST(JsonSchemaTest, DecimalBoundsAreExact) {
  std::mt19937 random(2);
  for (int32_t round = 0; round < 150; ++round) {
    const auto pick = [&] {
      const int64_t scale = random() % 3 == 0 ? 100 : random() % 2 == 0 ? 10 : 1;
      return (static_cast<int64_t>(random() % 2400) - 1200) / scale * scale;
    };
    const int64_t low = pick();
    const int64_t high = std::max(low, pick());
    const bool low_open = random() % 2 == 0;
    const bool high_open = random() % 2 == 0;
    if (low == high && (low_open || high_open)) continue;
    const std::string schema =
        std::string(R"({"type":"number",)") +
        (low_open ? "\"exclusiveMinimum\":" : "\"minimum\":") + decimal_text(low) + "," +
        (high_open ? "\"exclusiveMaximum\":" : "\"maximum\":") + decimal_text(high) + "}";
    const auto grammar = compiled_schema(schema);
    for (int64_t value = -1300; value <= 1300; ++value) {
      const bool is_inside =
          (low_open ? value > low : value >= low) && (high_open ? value < high : value <= high);
      const std::string text = decimal_text(value);
      ASSERT_EQ(accepts(grammar, text), is_inside) << schema << " " << text;
      const std::string padded = text + (text.find('.') == std::string::npos ? ".0" : "00");
      ASSERT_EQ(accepts(grammar, padded), is_inside) << schema << " " << padded;
    }
  }
}

TEST(JsonSchemaTest, BoundsMayBeFractionsForIntegersAndHaveExponents) {
  const auto grammar = compiled_schema(R"({"type":"integer","minimum":0.5,"maximum":1.2e1})");
  EXPECT_EQ(fit(grammar, "0"), Fit::kRefused);
  EXPECT_TRUE(accepts(grammar, "1"));
  EXPECT_TRUE(accepts(grammar, "12"));
  EXPECT_EQ(fit(grammar, "13"), Fit::kRefused);
}

// --- random texts of a schema are JSON, and valid by its own words

TEST(JsonSchemaTest, GeneratedTextsParse) {
  const auto grammar = compiled({.content = JsonObject{}, .tools = {}});
  std::mt19937 random(4);
  for (int32_t round = 0; round < 200; ++round) {
    Matcher matcher(grammar);
    std::string text;
    while (!matcher.is_complete()) {
      std::set<int32_t> tokens = allowed(matcher);
      // Close what is open once the text is long.
      int32_t chosen = -1;
      if (text.size() > 80) {
        for (const int32_t closing : {'"', '}', ']'}) {
          if (chosen < 0 && tokens.contains(closing)) chosen = closing;
        }
      }
      if (chosen < 0) {
        auto place = tokens.begin();
        std::advance(place, static_cast<std::ptrdiff_t>(random() % tokens.size()));
        chosen = *place;
      }
      ASSERT_TRUE(matcher.accept(chosen).ok());
      if (chosen != kTestEos) text += static_cast<char>(chosen);
      ASSERT_LT(text.size(), 5000U);
    }
    const auto parsed = json::parse(text);
    const bool is_duplicate =
        !parsed.ok() && parsed.error().message.find("uplicate") != std::string::npos;
    EXPECT_TRUE(parsed.ok() || is_duplicate) << text << parsed.error().message;
  }
}

// --- tool calls

constexpr const char* kDsml = "\uff5cDSML\uff5c";

std::string markup(std::string text) {
  for (size_t at = 0; (at = text.find("DSML", at)) != std::string::npos;
       at += std::string(kDsml).size()) {
    text.replace(at, 4, kDsml);
  }
  return text;
}

ToolUse weather_tools() {
  ToolUse use;
  use.is_required = true;
  use.tools.push_back({.name = "weather",
                       .param = "tools[0]",
                       .parameters = *json::parse(
                           R"({"type":"object","properties":{"city":{"type":"string"},
                               "days":{"type":"integer","minimum":1,"maximum":7},
                               "unit":{"enum":["C","F",null]}},"required":["city"]})"),
                       .is_strict = true});
  use.tools.push_back({.name = "time"});
  return use;
}

TEST(ToolCallTest, ForcedCallsFollowTheirSchemas) {
  const auto grammar = compiled({.content = {}, .tools = weather_tools()});
  const std::string open = "<DSMLtool_calls>\n";
  const std::string close = "</DSMLtool_calls>";
  const std::string city =
      "<DSMLparameter name=\"city\" string=\"true\">K\u00f6ln <b></DSMLparameter>\n";
  const std::string days = "<DSMLparameter name=\"days\" string=\"false\">3</DSMLparameter>\n";
  const auto weather = [](const std::string& parameters) {
    return "<DSMLinvoke name=\"weather\">\n" + parameters + "</DSMLinvoke>\n";
  };
  const std::string time = "<DSMLinvoke name=\"time\">\n\n</DSMLinvoke>\n";
  for (const std::string& text :
       {open + weather(city) + close,
        "\n\n" + open + weather(city + days) + close,
        open + weather(city + "<DSMLparameter name=\"unit\" string=\"true\">C</DSMLparameter>\n") +
            close,
        open +
            weather(city + "<DSMLparameter name=\"unit\" string=\"false\">null</DSMLparameter>\n") +
            close,
        open + time + weather(city) + time + close}) {
    EXPECT_EQ(fit(grammar, markup(text)), Fit::kWhole) << text;
  }
  for (const std::string& text :
       {std::string("Hello"),
        open + close,
        open + weather("\n") + close,
        open + weather(days) + close,
        open + weather(days + city) + close,
        open + weather(city + city) + close,
        open + weather(city + "<DSMLparameter name=\"days\" string=\"false\">8</DSMLparameter>\n") +
            close,
        open + weather(city + "<DSMLparameter name=\"unit\" string=\"true\">K</DSMLparameter>\n") +
            close,
        open + "<DSMLinvoke name=\"other\">\n\n</DSMLinvoke>\n" + close,
        open + time + close + "more"}) {
    EXPECT_EQ(fit(grammar, markup(text)), Fit::kRefused) << text;
  }
}

TEST(ToolCallTest, OneCallWhenSeveralAreForbidden) {
  ToolUse use = weather_tools();
  use.allows_parallel = false;
  const auto grammar = compiled({.content = {}, .tools = use});
  const std::string time = "<DSMLinvoke name=\"time\">\n\n</DSMLinvoke>\n";
  EXPECT_TRUE(accepts(grammar, markup("<DSMLtool_calls>\n" + time + "</DSMLtool_calls>")));
  EXPECT_EQ(fit(grammar, markup("<DSMLtool_calls>\n" + time + time + "</DSMLtool_calls>")),
            Fit::kRefused);
}

TEST(ToolCallTest, AllowedCallsLeaveTextFree) {
  ToolUse use = weather_tools();
  use.is_required = false;
  const auto grammar = compiled({.content = {}, .tools = use});
  const std::string call =
      "<DSMLtool_calls>\n<DSMLinvoke name=\"time\">\n\n</DSMLinvoke>\n</DSMLtool_calls>";
  EXPECT_TRUE(accepts(grammar, "Just text, a < b </p>."));
  EXPECT_TRUE(accepts(grammar, markup("Let me see.\n\n" + call)));
  EXPECT_TRUE(accepts(grammar, markup(call)));
  EXPECT_EQ(fit(grammar, markup("x <DSMLinvoke")), Fit::kRefused);
  EXPECT_EQ(fit(grammar, "x <\uff5c"), Fit::kRefused) << "the mark spelled in other tokens";
}

TEST(ToolCallTest, ContentOrCalls) {
  ToolUse use = weather_tools();
  use.is_required = false;
  Spec spec = schema_spec(R"({"type":"integer"})");
  spec.tools = use;
  const auto grammar = compiled(spec);
  EXPECT_TRUE(accepts(grammar, "12"));
  EXPECT_EQ(fit(grammar, "text"), Fit::kRefused);
  EXPECT_TRUE(accepts(
      grammar,
      markup("<DSMLtool_calls>\n<DSMLinvoke name=\"time\">\n\n</DSMLinvoke>\n</DSMLtool_calls>")));
}

TEST(ToolCallTest, StrictToolsNameTheirFault) {
  ToolUse use = weather_tools();
  use.tools[0].parameters = *json::parse(R"({"type":"object","properties":{"a":{"not":{}}}})");
  const auto strict = compile({.content = {}, .tools = use}, test_vocabulary());
  ASSERT_FALSE(strict.ok());
  EXPECT_EQ(strict.error().param, "tools[0]");
  EXPECT_NE(strict.error().message.find("/properties/a/not"), std::string::npos);
  use.tools[0].is_strict = false;
  const auto grammar = compiled({.content = {}, .tools = use});
  EXPECT_TRUE(accepts(grammar,
                      markup("<DSMLtool_calls>\n<DSMLinvoke name=\"weather\">\n"
                             "<DSMLparameter name=\"a\" string=\"false\">[1]</DSMLparameter>\n"
                             "</DSMLinvoke>\n</DSMLtool_calls>")));
}

TEST(ToolCallTest, ReasoningComesFirst) {
  Spec spec = schema_spec(R"({"type":"null"})");
  spec.begins_in_reasoning = true;
  const auto grammar = compiled(spec);
  EXPECT_TRUE(accepts(grammar, "Hm, {\"a\" <b></think>null"));
  EXPECT_TRUE(accepts(grammar, "</think>null"));
  EXPECT_EQ(fit(grammar, "null"), Fit::kPrefix);
  EXPECT_EQ(fit(grammar, "</think>nil"), Fit::kRefused);
  Matcher matcher(grammar);
  EXPECT_FALSE(allowed(matcher).contains(kTestEos));
  for (const char c : std::string("</think")) ASSERT_TRUE(matcher.accept(c).ok());
  EXPECT_FALSE(matcher.accept('>').ok()) << "the tag spelled in other tokens";
}

}  // namespace
}  // namespace nibble::grammar
