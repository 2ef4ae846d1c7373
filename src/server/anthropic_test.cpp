// /v1/messages and /v1/messages/count_tokens over HTTP, with a model that says what the test wants.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/anthropic_reply.h"
#include "server/anthropic_request.h"
#include "server/error_response.h"
#include "server/server_testing.h"

namespace nibble::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kTools =
    R"(, "tools": [{"name": "get_weather", "input_schema": {"type": "object"}}])";
constexpr std::string_view kCall =
    "Let me look.\n\n<\uff5cDSML\uff5ctool_calls>\n<\uff5cDSML\uff5cinvoke name=\"get_weather\">\n"
    "<\uff5cDSML\uff5cparameter name=\"city\" string=\"true\">Rome</\uff5cDSML\uff5cparameter>\n"
    "</\uff5cDSML\uff5cinvoke>\n</\uff5cDSML\uff5ctool_calls>";

std::string message_body(std::string_view extra = {}) {
  return R"({"max_tokens": 100, "messages": [{"role": "user", "content": "Hello"}])" +
         std::string(extra) + "}";
}

TestResponse post_message(TestServer& server, std::string_view body) {
  return http_post(server.port(), "/v1/messages", body);
}

json::Value message_json(TestServer& server, std::string_view body) {
  const TestResponse response = post_message(server, body);
  EXPECT_EQ(response.status, 200) << response.body;
  return json::parse(response.body).value();
}

// Every event has the type of its payload as its name.
std::vector<Event> named_events(std::string_view stream) {
  std::vector<Event> events = parse_named_events(stream);
  for (const Event& event : events) EXPECT_EQ(text_at(event.data, "type"), event.name);
  return events;
}

// The events of a stream by name; deltas of one kind in a row count once.
std::vector<std::string> outline(const std::vector<Event>& events) {
  std::vector<std::string> names;
  for (const Event& event : events) {
    std::string name = event.name;
    if (name == "content_block_delta") name = text_at(event.data, "delta.type");
    if (name == "content_block_start") name += " " + text_at(event.data, "content_block.type");
    names.push_back(std::move(name));
  }
  return without_repeats(std::move(names));
}

TEST(AnthropicMessages, AnswersInOneObject) {
  TestServer server;
  const TestResponse response = post_message(server, message_body());
  ASSERT_EQ(response.status, 200) << response.body;
  const json::Value body = json::parse(response.body).value();
  EXPECT_THAT(text_at(body, "id"), StartsWith("msg_"));
  EXPECT_EQ(text_at(body, "type"), "message");
  EXPECT_EQ(text_at(body, "role"), "assistant");
  EXPECT_EQ(text_at(body, "model"), "tiny");
  EXPECT_EQ(text_at(body, "content.0.type"), "text");
  EXPECT_EQ(text_at(body, "content.0.text"), "Hello there.");
  EXPECT_EQ(text_at(body, "stop_reason"), "end_turn");
  EXPECT_TRUE(at(body, "stop_sequence").is_null());
  EXPECT_EQ(integer_at(body, "usage.input_tokens"), 5);
  EXPECT_EQ(integer_at(body, "usage.cache_read_input_tokens"), 0);
  EXPECT_GT(integer_at(body, "usage.output_tokens"), 1);
  EXPECT_EQ(response.headers.at("request-id"), response.headers.at("x-request-id"));
}

TEST(AnthropicMessages, StreamsNamedEventsInOrder) {
  TestServer server;
  const TestResponse response = post_message(server, message_body(R"(, "stream": true)"));
  EXPECT_THAT(response.headers.at("content-type"), StartsWith("text/event-stream"));
  const std::vector<Event> events = named_events(response.body);
  EXPECT_THAT(outline(events),
              ElementsAre("message_start",
                          "ping",
                          "content_block_start text",
                          "text_delta",
                          "content_block_stop",
                          "message_delta",
                          "message_stop"));
  EXPECT_TRUE(at(events.front().data, "message.content").as_array()->empty());
  EXPECT_TRUE(at(events.front().data, "message.stop_reason").is_null());
  EXPECT_EQ(integer_at(events.front().data, "message.usage.input_tokens"), 5);
  std::string text;
  for (const Event& event : events) {
    if (event.name == "content_block_delta") text += text_at(event.data, "delta.text");
  }
  EXPECT_EQ(text, "Hello there.");
  const json::Value& delta = events[events.size() - 2].data;
  EXPECT_EQ(text_at(delta, "delta.stop_reason"), "end_turn");
  EXPECT_GT(integer_at(delta, "usage.output_tokens"), 1);
}

TEST(AnthropicMessages, StreamsThinkingTextAndToolUseAsBlocks) {
  TestServer server;
  server.set_answer(std::string("I wonder.</think>") + std::string(kCall));
  const std::string body =
      message_body(std::string(kTools) +
                   R"(, "stream": true, "thinking": {"type": "enabled", "budget_tokens": 1024})");
  const std::vector<Event> events = named_events(post_message(server, body).body);
  EXPECT_THAT(outline(events),
              ElementsAre("message_start",
                          "ping",
                          "content_block_start thinking",
                          "thinking_delta",
                          "signature_delta",
                          "content_block_stop",
                          "content_block_start text",
                          "text_delta",
                          "content_block_stop",
                          "content_block_start tool_use",
                          "input_json_delta",
                          "content_block_stop",
                          "message_delta",
                          "message_stop"));
  std::string input;
  for (const Event& event : events) {
    if (text_at(event.data, "delta.type") == "input_json_delta") {
      EXPECT_EQ(integer_at(event.data, "index"), 2);
      input += text_at(event.data, "delta.partial_json");
    }
  }
  EXPECT_EQ(text_at(json::parse(input).value(), "city"), "Rome");
  EXPECT_EQ(text_at(events[events.size() - 2].data, "delta.stop_reason"), "tool_use");
  EXPECT_EQ(post_message(server, body).body.find("DSML"), std::string::npos);
}

TEST(AnthropicMessages, CloseThinkingWhenItsBudgetIsUsed) {
  TestServer server;
  server.set_answer("one two three four five six seven eight");
  const json::Value body = message_json(
      server, message_body(R"(, "thinking": {"type": "enabled", "budget_tokens": 3})"));
  EXPECT_EQ(text_at(body, "content.0.type"), "thinking");
  EXPECT_EQ(text_at(body, "content.1.type"), "text");
  EXPECT_EQ(integer_at(body, "usage.output_tokens_details.thinking_tokens"), 3);
}

TEST(AnthropicMessages, GivesToolInputAsAnObject) {
  TestServer server;
  server.set_answer(kCall);
  const json::Value body = message_json(server, message_body(kTools));
  EXPECT_EQ(text_at(body, "stop_reason"), "tool_use");
  EXPECT_EQ(text_at(body, "content.0.text"), "Let me look.");
  EXPECT_EQ(text_at(body, "content.1.type"), "tool_use");
  EXPECT_THAT(text_at(body, "content.1.id"), StartsWith("toolu_"));
  EXPECT_EQ(text_at(body, "content.1.name"), "get_weather");
  EXPECT_EQ(text_at(body, "content.1.input.city"), "Rome");
}

TEST(AnthropicMessages, LeavesACutToolUseOut) {
  TestServer server;
  server.set_answer(kCall);
  std::string cut = message_body(kTools);
  cut.replace(cut.find("100"), 3, " 28");
  const json::Value body = message_json(server, cut);
  EXPECT_EQ(text_at(body, "stop_reason"), "max_tokens");
  const json::Value content = at(body, "content");
  for (const json::Value& block : *content.as_array()) {
    EXPECT_EQ(text_at(block, "type"), "text");
  }
}

TEST(AnthropicMessages, TellsWhichStopSequenceMatched) {
  TestServer server;
  const json::Value body =
      message_json(server, message_body(R"(, "stop_sequences": ["@", " there"])"));
  EXPECT_EQ(text_at(body, "stop_reason"), "stop_sequence");
  EXPECT_EQ(text_at(body, "stop_sequence"), " there");
  EXPECT_EQ(text_at(body, "content.0.text"), "Hello");
}

TEST(AnthropicMessages, ContinuesALastMessageOfTheAssistant) {
  TestServer server;
  const json::Value body =
      message_json(server,
                   R"({"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"},
          {"role": "assistant", "content": "Well"}]})");
  EXPECT_EQ(text_at(body, "type"), "message");
}

TEST(AnthropicMessages, PutsErrorsIntoItsOwnForm) {
  TestServer server;
  const TestResponse response = post_message(server, R"({"messages": []})");
  EXPECT_EQ(response.status, 400);
  const json::Value body = json::parse(response.body).value();
  EXPECT_EQ(text_at(body, "type"), "error");
  EXPECT_EQ(text_at(body, "error.type"), "invalid_request_error");
  EXPECT_THAT(text_at(body, "error.message"), HasSubstr("max_tokens"));
  EXPECT_EQ(text_at(body, "request_id"), response.headers.at("x-request-id"));
  const TestResponse model = post_message(server, message_body(R"(, "model": "claude")"));
  EXPECT_EQ(model.status, 404);
  EXPECT_THAT(model.body, HasSubstr("not_found_error"));
  EXPECT_THAT(http_get(server.port(), "/v1/messages").body, HasSubstr("\"type\":\"error\""));
}

TEST(AnthropicMessages, ListsModelsInItsOwnForm) {
  TestServer server;
  constexpr const char* kVersion = "anthropic-version: 2023-06-01\r\n";
  const json::Value list =
      json::parse(http_get(server.port(), "/v1/models", kVersion).body).value();
  EXPECT_EQ(text_at(list, "data.0.type"), "model");
  EXPECT_EQ(text_at(list, "data.0.display_name"), "tiny");
  EXPECT_THAT(text_at(list, "data.0.created_at"), ::testing::MatchesRegex("20.*T.*Z"));
  EXPECT_EQ(text_at(list, "first_id"), "tiny");
  EXPECT_EQ(text_at(list, "last_id"), "alias/tiny");
  EXPECT_FALSE(*at(list, "has_more").as_bool());
  const TestResponse one = http_get(server.port(), "/v1/models/alias/tiny", kVersion);
  EXPECT_EQ(text_at(json::parse(one.body).value(), "id"), "alias/tiny");
  EXPECT_THAT(http_get(server.port(), "/v1/models/claude", kVersion).body,
              HasSubstr("not_found_error"));
  EXPECT_THAT(http_get(server.port(), "/v1/nothing", kVersion).body, HasSubstr("not_found_error"));
}

TEST(AnthropicMessages, CallsAFullQueueOverloaded) {
  const HttpResponse full =
      to_anthropic_error(error_response(exhausted("too many requests wait"), 7), "req-1");
  EXPECT_EQ(full.status, 529);
  EXPECT_THAT(full.body, HasSubstr("overloaded_error"));
  EXPECT_THAT(full.body, HasSubstr("\"request_id\":\"req-1\""));
  EXPECT_EQ(full.headers.front().name, "retry-after");
}

TEST(AnthropicMessages, CountsTheTokensOfThePrompt) {
  TestServer server;
  const std::string prompt =
      R"({"system": "Be brief.", "messages": [{"role": "user", "content": "Hello"}])";
  const TestResponse count = http_post(server.port(), "/v1/messages/count_tokens", prompt + "}");
  ASSERT_EQ(count.status, 200) << count.body;
  const json::Value message = message_json(server, prompt + R"(, "max_tokens": 3})");
  EXPECT_EQ(integer_at(json::parse(count.body).value(), "input_tokens"),
            integer_at(message, "usage.input_tokens"));
}

// --- requests

ServedModel served_model() {
  return {.names = {"tiny"}, .vocab_size = 4096, .max_context = 4096, .default_sampling = {}};
}

ChatRequest parse(std::string_view body, const ServedModel& model = served_model()) {
  Result<ChatRequest> request =
      parse_anthropic_request(json::parse(body).value(), model, AnthropicPurpose::kMessage);
  EXPECT_TRUE(request.ok()) << request.error().message;
  return std::move(request).value();
}

TEST(AnthropicRequest, ReadsAToolLoop) {
  const ChatRequest request = parse(R"({"max_tokens": 5,
      "system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
                 {"type": "text", "text": "b"}],
      "messages": [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": [
          {"type": "thinking", "thinking": "t", "signature": "s"},
          {"type": "redacted_thinking", "data": "x"},
          {"type": "text", "text": "c"},
          {"type": "tool_use", "id": "1", "name": "f", "input": {"k": [1, 2]}}]},
        {"role": "user", "content": [
          {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "r"}]},
          {"type": "text", "text": "v"}]}]})");
  ASSERT_EQ(request.messages.size(), 5U);
  EXPECT_EQ(request.messages[0].content, "a\n\nb");
  const text::Message& assistant = request.messages[2];
  EXPECT_EQ(assistant.reasoning_content, "t");
  EXPECT_EQ(assistant.content, "c");
  EXPECT_EQ(assistant.tool_calls.front().arguments, R"({"k": [1, 2]})");
  EXPECT_EQ(request.messages[3].role, text::Role::kTool);
  EXPECT_EQ(request.messages[3].tool_call_id, "1");
  EXPECT_EQ(request.messages[4].content, "v");
  EXPECT_EQ(request.fields.sampling.max_tokens, 5);
}

TEST(AnthropicRequest, JoinsConsecutiveTurnsOfTheAssistant) {
  const ChatRequest request = parse(R"({"max_tokens": 5, "messages": [
      {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"},
      {"role": "assistant", "content": "b"}, {"role": "user", "content": "v"}]})");
  ASSERT_EQ(request.messages.size(), 3U);
  EXPECT_EQ(request.messages[1].content, "ab");
}

TEST(AnthropicRequest, DropsTheClientsBillingNote) {
  const ChatRequest request =
      parse(R"({"max_tokens": 5, "messages": [{"role": "user", "content": "u"}],
      "system": [{"type": "text", "text": "x-anthropic-billing-header: cc_version=1;"},
                 {"type": "text", "text": "s"}]})");
  EXPECT_EQ(request.messages.front().content, "s");
}

TEST(AnthropicRequest, ThinksWhenToldToAndAsHardAsTold) {
  const auto with = [](std::string_view extra) { return parse(message_body(extra)).render; };
  EXPECT_EQ(with("").thinking, text::ThinkingMode::kChat);
  EXPECT_EQ(with(R"(, "thinking": {"type": "adaptive"})").thinking, text::ThinkingMode::kThinking);
  EXPECT_EQ(with(R"(, "output_config": {"effort": "max"})").thinking, text::ThinkingMode::kChat);
  const text::RenderOptions both =
      with(R"(, "thinking": {"type": "enabled"}, "output_config": {"effort": "max"})");
  EXPECT_EQ(both.thinking, text::ThinkingMode::kThinking);
  EXPECT_EQ(both.effort, text::Effort::kMax);
}

struct Refused {
  std::string extra;
  std::string param;
};

TEST(AnthropicRequest, NamesTheFieldThatIsWrong) {
  const auto with_content = [](std::string_view content) {
    return R"({"max_tokens": 5, "messages": [{"role": "user", "content": )" + std::string(content) +
           "}]}";
  };
  const std::vector<Refused> cases = {
      {R"({"messages": [{"role": "user", "content": "x"}]})", "max_tokens"},
      {R"({"max_tokens": 0, "messages": []})", "max_tokens"},
      {R"({"max_tokens": "5", "messages": []})", "max_tokens"},
      {R"({"max_tokens": 5})", "messages"},
      {R"({"max_tokens": 5, "messages": []})", "messages"},
      {R"({"max_tokens": 5, "messages": [1]})", "messages[0]"},
      {R"({"max_tokens": 5, "messages": [{"content": "x"}]})", "messages[0].role"},
      {R"({"max_tokens": 5, "messages": [{"role": "system", "content": "x"}]})",
       "messages[0].role"},
      {R"({"max_tokens": 5, "messages": [{"role": "user"}]})", "messages[0].content"},
      {with_content("3"), "messages[0].content"},
      {with_content("[]"), "messages[0].content"},
      {with_content("[3]"), "messages[0].content[0]"},
      {with_content("[{}]"), "messages[0].content[0].type"},
      {with_content(R"([{"type": "text"}])"), "messages[0].content[0].text"},
      {with_content(R"([{"type": "image", "source": {}}])"), "messages[0].content[0].type"},
      {with_content(R"([{"type": "tool_use", "id": "1", "name": "f", "input": {}}])"),
       "messages[0].content[0].type"},
      {with_content(R"([{"type": "tool_result"}])"), "messages[0].content[0].tool_use_id"},
      {with_content(R"([{"type": "tool_result", "tool_use_id": "1", "content": 3}])"),
       "messages[0].content[0].content"},
      {with_content(
           R"([{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image"}]}])"),
       "messages[0].content[0].content[0].type"},
      {with_content(R"([{"type": "tool_result", "tool_use_id": "1", "is_error": 1}])"),
       "messages[0].content[0].is_error"},
      {message_body(R"(, "system": 3)"), "system"},
      {message_body(R"(, "system": [{"type": "image"}])"), "system[0].type"},
      {message_body(R"(, "stop_sequences": [3])"), "stop_sequences"},
      {message_body(R"(, "stream": 1)"), "stream"},
      {message_body(R"(, "temperature": 3)"), "temperature"},
      {message_body(R"(, "top_k": "x")"), "top_k"},
      {message_body(R"(, "thinking": "on")"), "thinking"},
      {message_body(R"(, "thinking": {"type": "maybe"})"), "thinking.type"},
      {message_body(R"(, "thinking": {"type": "enabled", "budget_tokens": 0})"),
       "thinking.budget_tokens"},
      {message_body(R"(, "output_config": {"effort": "huge"})"), "output_config.effort"},
      {message_body(R"(, "output_config": {"format": {"type": "json_schema"}})"),
       "output_config.format.schema"},
      {message_body(R"(, "tools": {})"), "tools"},
      {message_body(R"(, "tools": [{"type": "web_search_20250305", "name": "web_search"}])"),
       "tools[0].type"},
      {message_body(R"(, "tools": [{"name": "f"}])"), "tools[0].input_schema"},
      {message_body(R"(, "tools": [{"input_schema": {}}])"), "tools[0].name"},
      {message_body(R"(, "tool_choice": "auto")"), "tool_choice"},
      {message_body(R"(, "tool_choice": {"type": "some"})"), "tool_choice.type"},
      {message_body(R"(, "tool_choice": {"type": "tool"})"), "tool_choice.name"},
      {message_body(R"(, "tool_choice": {"type": "any"})"), "tool_choice"},
      {message_body(R"(, "prompt_logprobs": 1)"), "prompt_logprobs"},
      {message_body(R"(, "mcp_servers": [{"url": "x"}])"), "mcp_servers"},
  };
  for (const Refused& refused : cases) {
    const auto request = parse_anthropic_request(
        json::parse(refused.extra).value(), served_model(), AnthropicPurpose::kMessage);
    ASSERT_FALSE(request.ok()) << refused.extra;
    EXPECT_EQ(request.error().param, refused.param) << request.error().message;
  }
}

}  // namespace
}  // namespace nibble::server
