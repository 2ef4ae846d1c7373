#include "server/field_reader.h"

#include <gtest/gtest.h>

namespace nibble::server {
namespace {

json::Object parse_object(std::string_view text) { return *json::parse(text).value().as_object(); }

TEST(FieldReader, LeavesTargetsOfAbsentAndNullMembers) {
  const json::Object object = parse_object(R"({"a": null})");
  FieldReader reader(object);
  int32_t a = 7;
  float b = 8;
  std::string c = "c";
  EXPECT_TRUE(reader.read("a", a, {}).ok());
  EXPECT_TRUE(reader.read("b", b, {0, 1}).ok());
  EXPECT_TRUE(reader.read("c", c).ok());
  EXPECT_EQ(a, 7);
  EXPECT_EQ(b, 8);
  EXPECT_EQ(c, "c");
}

TEST(FieldReader, TakesIntegersInRangeOnly) {
  for (const char* good : {"3", "3.0", "0", "10", "3e0"}) {
    const json::Object object = parse_object(std::string("{\"x\":") + good + "}");
    FieldReader reader(object);
    int32_t x = -1;
    EXPECT_TRUE(reader.read("x", x, {0, 10}).ok()) << good;
    EXPECT_GE(x, 0);
  }
  for (const char* bad : {"-1",
                          "11",
                          "1.5",
                          "1e300",
                          "-1e300",
                          "99999999999999999999999999",
                          "\"3\"",
                          "true",
                          "[3]",
                          "{}"}) {
    const json::Object object = parse_object(std::string("{\"x\":") + bad + "}");
    FieldReader reader(object, "outer.");
    int32_t x = -1;
    const Result<void> result = reader.read("x", x, {0, 10});
    ASSERT_FALSE(result.ok()) << bad;
    EXPECT_EQ(result.error().param, "outer.x");
    EXPECT_EQ(x, -1);
  }
}

TEST(FieldReader, SaysWhatWasExpectedAndFound) {
  const json::Object object = parse_object(R"({"t": 3.5, "s": 1, "b": "true"})");
  FieldReader reader(object);
  float t = 0;
  std::string s;
  bool b = false;
  EXPECT_EQ(reader.read("t", t, {0, 2}).error().message,
            "t: expected a number from 0 to 2, found 3.5");
  EXPECT_EQ(reader.read("s", s).error().message, "s: expected a string, found integer");
  EXPECT_EQ(reader.read("b", b).error().message, "b: expected a boolean, found string");
}

TEST(FieldReader, CountsMembersThatNobodyAskedFor) {
  const json::Object object = parse_object(R"({"a": 1, "b": null, "c": 3})");
  FieldReader reader(object);
  reader.ignore("a");
  reader.ignore("b");
  reader.ignore("absent");
  EXPECT_EQ(reader.num_unknown(), 1);
}

TEST(FieldReader, RefusesOnlyMembersThatSaySomething) {
  const json::Object object =
      parse_object(R"({"a": null, "b": false, "c": "", "d": [], "e": {"x": 1}})");
  FieldReader reader(object);
  for (const char* key : {"a", "b", "c", "d", "absent"})
    EXPECT_TRUE(reader.refuse(key, "no").ok()) << key;
  const Result<void> refused = reader.refuse("e", "not here");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::kUnsupported);
  EXPECT_EQ(refused.error().message, "e: not here");
}

}  // namespace
}  // namespace nibble::server
