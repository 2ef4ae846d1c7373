// Constrained answers, from a model that would rather say something else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/server_testing.h"

namespace nibble::server {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

std::string content(TestServer& server, const std::string& fields) {
  const json::Value body = server.chat_json(chat_body(R"(, "temperature": 0)" + fields));
  EXPECT_EQ(text_at(body, "choices.0.finish_reason"), "stop")
      << json::dump(body, json::Style::kCompact);
  return text_at(body, "choices.0.message.content");
}

TEST(StructuredOutput, HoldsInEverySpelling) {
  TestServer server;
  server.set_answer("I would rather chat.");
  constexpr const char* kSchema = R"({"type": "object", "properties": {"n": {"enum": [1, 2]}},
                                      "required": ["n"]})";
  const std::string schema = kSchema;
  for (
      const std::string& fields :
      {R"(, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": )" +
           schema + "}}",
       R"(, "guided_json": )" + schema,
       R"(, "structured_outputs": {"json": )" + schema + "}",
       std::string(R"(, "json_schema": "{\"const\": {\"n\": 1}}")")}) {
    const auto parsed = json::parse(content(server, fields));
    ASSERT_TRUE(parsed.ok()) << fields;
    EXPECT_THAT(integer_at(*parsed, "n"), AnyOf(1, 2)) << fields;
  }
  for (const char* fields : {R"(, "regex": "(no|yes){2}!")",
                             R"(, "guided_regex": "(no|yes){2}!")",
                             R"(, "structured_outputs": {"regex": "(no|yes){2}!"})",
                             R"(, "ebnf": "root ::= word word \"!\"\nword ::= \"no\" | \"yes\"")",
                             R"(, "guided_grammar": "root ::= (\"no\" | \"yes\"){2} \"!\"")",
                             R"(, "guided_choice": ["nono!", "yesno!"])",
                             R"(, "structured_outputs": {"choice": ["noyes!"]})"}) {
    EXPECT_THAT(content(server, fields), MatchesRegex("(no|yes)(no|yes)!")) << fields;
  }
}

TEST(StructuredOutput, LetsValidAnswersThrough) {
  TestServer server;
  server.set_answer(R"({"city": "Paris", "list": [1, {"a": null}]})");
  EXPECT_EQ(content(server, R"(, "response_format": {"type": "json_object"})"),
            R"({"city": "Paris", "list": [1, {"a": null}]})");
}

TEST(StructuredOutput, BeginsBehindTheReasoning) {
  TestServer server;
  server.set_answer("Let me think {\"x\".</think>Well, no.");
  const json::Value body = server.chat_json(chat_body(
      R"(, "temperature": 0, "thinking": {"type": "enabled"}, "guided_choice": ["A", "B"])"));
  EXPECT_EQ(text_at(body, "choices.0.message.reasoning_content"), "Let me think {\"x\".");
  EXPECT_THAT(text_at(body, "choices.0.message.content"), AnyOf("A", "B"));
}

TEST(StructuredOutput, HoldsAfterThinkingThatWasClosed) {
  TestServer server;
  server.set_answer("Let me think about this for a long time, for I have it.");
  const json::Value body = server.chat_json(chat_body(
      R"(, "temperature": 0, "thinking": {"type": "enabled", "budget_tokens": 3},
         "guided_choice": ["A", "B"])"));
  EXPECT_EQ(integer_at(body, "usage.completion_tokens_details.reasoning_tokens"), 3);
  EXPECT_THAT(text_at(body, "choices.0.message.content"), AnyOf("A", "B"));
}

constexpr const char* kTools =
    R"(, "tools": [
      {"type": "function", "function": {"name": "roll", "strict": true, "parameters":
        {"type": "object", "properties": {"sides": {"enum": [6, 20]}, "why": {"enum": ["fun", "war"]}},
         "required": ["sides", "why"], "additionalProperties": false}}},
      {"type": "function", "function": {"name": "flip"}}])";

TEST(StructuredOutput, CallsAreForced) {
  TestServer server;
  for (const bool is_thinking : {false, true}) {
    server.set_answer(is_thinking ? "Hm.</think>Hello!" : "Hello!");
    const std::string thinking = is_thinking ? R"(, "thinking": {"type": "enabled"})" : "";
    for (const char* choice :
         {R"(, "tool_choice": "required")",
          R"(, "tool_choice": {"type": "function", "function": {"name": "roll"}})"}) {
      const json::Value body = server.chat_json(chat_body(
          kTools + thinking + choice + R"(, "temperature": 0, "parallel_tool_calls": false)"));
      EXPECT_EQ(text_at(body, "choices.0.finish_reason"), "tool_calls") << choice;
      EXPECT_EQ(at(body, "choices.0.message.tool_calls").as_array()->size(), 1U);
      const std::string name = text_at(body, "choices.0.message.tool_calls.0.function.name");
      const auto arguments =
          json::parse(text_at(body, "choices.0.message.tool_calls.0.function.arguments"));
      ASSERT_TRUE(arguments.ok());
      if (name == "flip") {
        EXPECT_THAT(choice, HasSubstr("required"));
        continue;
      }
      EXPECT_EQ(name, "roll");
      EXPECT_THAT(integer_at(*arguments, "sides"), AnyOf(6, 20));
      EXPECT_THAT(text_at(*arguments, "why"), AnyOf("fun", "war"));
    }
  }
}

TEST(StructuredOutput, StrictToolsLeaveTextAlone) {
  TestServer server;
  server.set_answer("No tool needed: a < b.");
  EXPECT_EQ(content(server, kTools), "No tool needed: a < b.");
}

std::string schema_format(const std::string& schema, bool is_strict) {
  return R"(, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": )" +
         std::string(is_strict ? "true" : "false") + R"(, "schema": )" + schema + "}}";
}

// Nothing is claimed that does not hold: a header says so, and which keyword is to blame.
TEST(StructuredOutput, NonStrictSchemasBeyondTheSubsetGiveJsonOfTheirType) {
  TestServer server;
  server.set_answer(R"({"a": [1]})");
  const std::string schema = R"({"type": ["object", "null"], "minProperties": 1})";
  const TestResponse shown =
      server.chat(chat_body(R"(, "temperature": 0)" + schema_format(schema, false)));
  EXPECT_EQ(shown.status, 200) << shown.body;
  EXPECT_EQ(text_at(json::parse(shown.body).value(), "choices.0.message.content"), R"({"a": [1]})");
  EXPECT_THAT(
      shown.headers.at("x-nibble-note"),
      AllOf(HasSubstr("not enforced, only shown to the model: response_format.json_schema."),
            HasSubstr(R"(keyword "minProperties" at "/minProperties")")));
  server.set_answer("Hello!");
  EXPECT_THAT(content(server, schema_format(schema, false)),
              AnyOf(::testing::StartsWith("{"), "null"));
  const TestResponse refused = server.chat(chat_body(schema_format(schema, true)));
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr(R"(keyword \"minProperties\" at \"/minProperties\")"));
}

TEST(StructuredOutput, NonStrictSchemasOfTheSubsetHoldWithoutANote) {
  TestServer server;
  server.set_answer("Hello!");
  const TestResponse response =
      server.chat(chat_body(R"(, "temperature": 0)" + schema_format(R"({"const": "x"})", false)));
  EXPECT_EQ(text_at(json::parse(response.body).value(), "choices.0.message.content"), "\"x\"");
  EXPECT_EQ(response.headers.count("x-nibble-note"), 0U);
}

// A schema that is none at all, not strict: any JSON value.
TEST(StructuredOutput, NonStrictSchemasWithFaultsGiveAnyJson) {
  TestServer server;
  server.set_answer("[true]");
  for (const char* schema : {R"({"type": "thing"})",
                             R"({"type": []})",
                             R"({"$ref": "#/none"})",
                             R"({"minItems": -1})"}) {
    EXPECT_EQ(content(server, schema_format(schema, false)), "[true]") << schema;
  }
}

std::string tool_of(const std::string& parameters, bool is_strict) {
  return R"(, "tools": [{"type": "function", "function": {"name": "f", "strict": )" +
         std::string(is_strict ? "true" : "false") + R"(, "parameters": )" + parameters + "}}]";
}

TEST(StructuredOutput, ToolsBeyondTheSubsetAreFreeUnlessStrict) {
  TestServer server;
  const std::string parameters = R"({"type": "object", "properties": {"a": {"not": {}}}})";
  server.set_answer("Hello!");
  EXPECT_EQ(content(server, tool_of(parameters, false)), "Hello!");
  const TestResponse forced =
      server.chat(chat_body(R"(, "tool_choice": "required")" + tool_of(parameters, false)));
  EXPECT_EQ(forced.status, 200) << forced.body;
  const TestResponse refused = server.chat(chat_body(tool_of(parameters, true)));
  EXPECT_EQ(refused.status, 400);
  const json::Value body = json::parse(refused.body).value();
  EXPECT_EQ(text_at(body, "error.param"), "tools[0]");
  EXPECT_THAT(text_at(body, "error.message"), HasSubstr(R"("not" at "/properties/a/not")"));
}

TEST(StructuredOutput, FaultsNameTheKeyword) {
  TestServer server;
  const TestResponse response = server.chat(chat_body(
      R"(, "guided_json": {"type": "object", "properties": {"a": {"minProperties": 1}}})"));
  EXPECT_EQ(response.status, 400);
  EXPECT_THAT(response.body,
              HasSubstr(R"(keyword \"minProperties\" at \"/properties/a/minProperties\")"));
}

// Not a 429: trying again does not help.
TEST(StructuredOutput, TooManyReadingsAreTheRequestsFault) {
  TestServer server;
  server.set_answer(std::string(2000, 'a'));
  const TestResponse response = server.chat(
      chat_body(R"(, "temperature": 0, "max_tokens": 1500, "regex": "(.{0,300}x?){0,300}b")"));
  EXPECT_EQ(response.status, 400) << response.body;
  EXPECT_EQ(text_at(json::parse(response.body).value(), "error.code"), "grammar_too_ambiguous");
  EXPECT_EQ(response.headers.count("retry-after"), 0U);
}

TEST(StructuredOutput, ServesCompletions) {
  TestServer server;
  server.set_answer("Hello!");
  const TestResponse response =
      server.complete(R"({"prompt": "x", "temperature": 0, "max_tokens": 20, "regex": "(no){3}"})");
  EXPECT_EQ(text_at(*json::parse(response.body), "choices.0.text"), "nonono");
}

}  // namespace
}  // namespace nibble::server
