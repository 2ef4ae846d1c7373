// Schemas made to cost much: each compiles or is refused within the counted limits.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "grammar/grammar_testing.h"
#include "grammar/json_schema.h"

namespace nibble::grammar {
namespace {

// Operands and product of the one intersection that may go beyond the bound on work.
constexpr int64_t kMaxOneIntersection = 6'000'000;

std::string listed(int32_t count, const std::function<std::string(int32_t)>& item) {
  std::string text;
  for (int32_t i = 0; i < count; ++i) text += (i == 0 ? "" : ",") + item(i);
  return text;
}

std::string repeated(const std::string& text, int32_t count) {
  std::string result;
  for (int32_t i = 0; i < count; ++i) result += text;
  return result;
}

struct HostileSchema {
  const char* name;
  std::string schema;
  const char* beginning;  // of a text that fits; empty: the schema is refused
};

std::vector<HostileSchema> hostile_schemas() {
  const auto property = [](int32_t i) { return fmt::format(R"("p{}":{{"type":"integer"}})", i); };
  const auto reference = [](int32_t i) { return fmt::format(R"({{"$ref":"#/$defs/d{}"}})", i); };
  const std::string any_of_two = R"({"anyOf":[{"minimum":1},{"maximum":9}]})";
  return {
      {"many constants",
       R"({"enum":[)" + listed(20'000, [](int32_t i) { return std::to_string(i * 7919); }) + "]}",
       "7919"},
      {"constants in constants",
       R"({"enum":[)" + repeated("[", 60) + "1" + repeated("]", 60) + "]}",
       "[[["},
      {"many properties",
       R"({"properties":{)" + listed(5000, property) + "}}",
       R"({"p7":1,"p4999":2})"},
      {"many properties beside others",
       R"({"additionalProperties":{"type":"null"},"properties":{)" + listed(3000, property) + "}}",
       R"({"p7":1,"x":null})"},
      {"a chain of references",
       R"({"$defs":{"d0":{"type":"null"},)" +
           listed(5000,
                  [](int32_t i) {
                    return fmt::format(R"("d{}":{{"$ref":"#/$defs/d{}"}})", i + 1, i);
                  }) +
           R"(},"$ref":"#/$defs/d5000"})",
       "null"},
      {"a circle of references",
       R"({"$defs":{"d0":{"$ref":"#/$defs/d1"},"d1":{"$ref":"#/$defs/d0"}},"$ref":"#/$defs/d0"})",
       ""},
      {"a circle of conjunctions",
       R"({"$defs":{"d0":{"allOf":[{"$ref":"#/$defs/d1"},{"$ref":"#/$defs/d0"}],"type":"null"},
           "d1":{"allOf":[{"$ref":"#/$defs/d0"}]}},"$ref":"#/$defs/d1"})",
       "null"},
      {"alternatives multiplied",
       R"({"type":"integer","allOf":[)" + repeated(any_of_two + ",", 40) + any_of_two + "]}",
       ""},
      {"alternatives beside many properties",
       R"({"anyOf":[)" + listed(2000, [](int32_t) { return R"({"required":["p1"]})"; }) +
           R"(],"properties":{)" + listed(2000, property) + "}}",
       ""},
      {"conjunctions of conjunctions",
       R"({"$defs":{)" +
           listed(60,
                  [&](int32_t i) {
                    return fmt::format(R"("d{}":{{"properties":{{"x":{},"y":{}}}}})",
                                       i,
                                       reference((i * 7 + 1) % 60),
                                       reference((i * 11 + 3) % 60));
                  }) +
           R"(},"allOf":[)" + listed(20, reference) + R"(],"type":"object"})",
       "{}"},
      {"too many schemas together",
       R"({"$defs":{)" +
           listed(100, [](int32_t i) { return fmt::format(R"("d{}":{{"minimum":{}}})", i, i); }) +
           R"(},"allOf":[)" + listed(100, reference) + "]}",
       ""},
      {"arrays of arrays with counts",
       R"({"items":{"items":{"items":{"type":"null"},"minItems":1000},"minItems":1000},"minItems":1000})",
       "[[[null,null"},
      {"a long string many times",
       R"({"items":{"type":"string","maxLength":100000},"maxItems":100000,"minItems":99999})",
       ""},
      {"a pattern counted",
       R"({"type":"string","pattern":"^(a|aa)*$","minLength":90000,"maxLength":100000})",
       ""},
      {"patterns multiplied",
       R"({"type":"string","allOf":[{"pattern":"a.{300}b"},{"pattern":"b.{300}a"},{"pattern":"c.{300}d"}]})",
       ""},
      {"a pattern of patterns",
       R"({"type":"string","pattern":"^)" + repeated("(a{9}", 5) + repeated("){9}", 5) + "$\"}",
       "\"aaaaaaaaa"},
      {"divisors multiplied",
       R"({"type":"integer","allOf":[)" +
           listed(6, [](int32_t i) { return fmt::format(R"({{"multipleOf":{}}})", 499 + i * 2); }) +
           "]}",
       ""},
      {"a small divisor", R"({"type":"number","multipleOf":1e-15})", "0.000000000000001"},
      {"a large divisor", R"({"type":"integer","multipleOf":509})", "1018"},
      {"unique ones of many",
       R"({"uniqueItems":true,"minItems":900,"items":{"enum":[)" +
           listed(1000, [](int32_t i) { return std::to_string(i); }) + "]}}",
       ""},
      {"unique ones of many, uncounted",
       R"({"uniqueItems":true,"items":{"enum":[)" +
           listed(500, [](int32_t i) { return std::to_string(i); }) + "]}}",
       "[1,250,499]"},
      {"unique ones of very many",
       R"({"uniqueItems":true,"items":{"enum":[)" +
           listed(10'000, [](int32_t i) { return std::to_string(i); }) + "]}}",
       ""},
      {"alternatives to be told apart",
       R"({"oneOf":[)" +
           listed(64,
                  [](int32_t i) {
                    return R"({"enum":[)" +
                           listed(300, [&](int32_t k) { return std::to_string(i * 300 + k); }) +
                           "]}";
                  }) +
           "]}",
       "19199"},
      {"recursion everywhere",
       R"({"anyOf":[{"type":"array","items":{"$ref":"#"}},{"type":"object","additionalProperties":{"$ref":"#"}},
           {"type":"array","prefixItems":[{"$ref":"#"},{"$ref":"#"}]},{"type":"null"}]})",
       R"([{"a":[null,[]]}])"},
      {"long names",
       R"({"properties":{")" + std::string(100'000, 'x') + R"(":{"type":"null"}}})",
       "{}"},
  };
}

TEST(HostileSchemaTest, CompileOrAreRefusedWithinCountedLimits) {
  const Limits limits;
  for (const HostileSchema& test : hostile_schemas()) {
    SCOPED_TRACE(test.name);
    ASSERT_LE(test.schema.size(), static_cast<size_t>(limits.max_source_bytes));
    const auto schema = json::parse(test.schema);
    if (!schema.ok()) {
      EXPECT_STREQ(test.beginning, "");
      continue;
    }
    Rules rules(limits.max_expressions);
    JsonText text(rules);
    SchemaCompiler compiler(text, *schema);
    const auto expression = compiler.compile({});
    // One step may go beyond: an intersection, which has limits of its own.
    EXPECT_LE(compiler.work(), SchemaCompiler::kMaxWork + kMaxOneIntersection);
    EXPECT_LE(rules.num_expressions(), limits.max_expressions + 500'000);
    const auto grammar = compile(schema_spec(test.schema), test_vocabulary());
    EXPECT_EQ(grammar.ok(), test.beginning[0] != '\0')
        << (grammar.ok() ? "compiles" : grammar.error().message);
    if (!grammar.ok()) continue;
    EXPECT_LE((*grammar)->num_states(), limits.max_states);
    EXPECT_NE(fit(*grammar, test.beginning), Fit::kRefused);
  }
}

}  // namespace
}  // namespace nibble::grammar
