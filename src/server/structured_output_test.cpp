// Constrained answers, from a model that would rather say something else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/server_testing.h"

namespace nibble::server {
namespace {

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

TEST(StructuredOutput, NonStrictSchemasBeyondTheSubsetAreOnlyShown) {
  TestServer server;
  server.set_answer("Hello!");
  EXPECT_EQ(content(server,
                    R"(, "response_format": {"type": "json_schema", "json_schema":
                       {"name": "x", "schema": {"type": "object", "minProperties": 1}}})"),
            "Hello!");
}

TEST(StructuredOutput, FaultsNameTheKeyword) {
  TestServer server;
  const TestResponse response = server.chat(chat_body(
      R"(, "guided_json": {"type": "object", "properties": {"a": {"minProperties": 1}}})"));
  EXPECT_EQ(response.status, 400);
  EXPECT_THAT(response.body,
              HasSubstr(R"(keyword \"minProperties\" at \"/properties/a/minProperties\")"));
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
