// /v1/responses over HTTP, with a model that says what the test wants.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "server/response_items.h"
#include "server/responses_request.h"
#include "server/server_testing.h"

namespace nibble::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kTools =
    R"(, "tools": [{"type": "function", "name": "get_weather", "parameters": {"type": "object"}}])";
constexpr std::string_view kCall =
    "Let me look.\n\n<\uff5cDSML\uff5ctool_calls>\n<\uff5cDSML\uff5cinvoke name=\"get_weather\">\n"
    "<\uff5cDSML\uff5cparameter name=\"city\" string=\"true\">Rome</\uff5cDSML\uff5cparameter>\n"
    "</\uff5cDSML\uff5cinvoke>\n</\uff5cDSML\uff5ctool_calls>";

std::string response_body(std::string_view extra = {}) {
  return R"({"input": "Hello")" + std::string(extra) + "}";
}

TestResponse post(TestServer& server, std::string_view body, std::string_view headers = {}) {
  return http_post(server.port(), "/v1/responses", body, headers);
}

json::Value post_json(TestServer& server, std::string_view body) {
  const TestResponse response = post(server, body);
  EXPECT_EQ(response.status, 200) << response.body;
  return json::parse(response.body).value();
}

TestResponse send(TestServer& server, std::string_view method, std::string_view path) {
  TestClient client(server.port());
  client.send(std::string(method) + " " + std::string(path) +
              " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
  return client.read_response();
}

// The payloads of a stream, whose event names and sequence numbers, from `first` on, are checked.
std::vector<json::Value> checked_events(std::string_view stream, int64_t first = 0) {
  std::vector<json::Value> payloads;
  for (Event& event : parse_named_events(stream)) {
    EXPECT_EQ(text_at(event.data, "type"), event.name);
    EXPECT_EQ(integer_at(event.data, "sequence_number"),
              first + static_cast<int64_t>(payloads.size()));
    payloads.push_back(std::move(event.data));
  }
  return payloads;
}

std::vector<json::Value> stream_events(TestServer& server, std::string_view body) {
  return checked_events(post(server, body).body);
}

// The types in order, without "response."; deltas of one kind in a row count once.
std::vector<std::string> outline(const std::vector<json::Value>& events) {
  std::vector<std::string> types;
  for (const json::Value& event : events) {
    std::string type = text_at(event, "type").substr(std::string("response.").size());
    if (type == "output_item.added") type += " " + text_at(event, "item.type");
    types.push_back(std::move(type));
  }
  return without_repeats(std::move(types));
}

TEST(Responses, AnswerInOneObject) {
  TestServer server;
  const json::Value body =
      post_json(server, response_body(R"(, "instructions": "Be brief.", "metadata": {"a": "b"})"));
  EXPECT_THAT(text_at(body, "id"), StartsWith("resp_"));
  EXPECT_EQ(text_at(body, "object"), "response");
  EXPECT_EQ(text_at(body, "status"), "completed");
  EXPECT_EQ(text_at(body, "model"), "tiny");
  EXPECT_TRUE(at(body, "error").is_null());
  EXPECT_TRUE(at(body, "incomplete_details").is_null());
  EXPECT_EQ(text_at(body, "output.0.type"), "message");
  EXPECT_EQ(text_at(body, "output.0.status"), "completed");
  EXPECT_EQ(text_at(body, "output.0.content.0.type"), "output_text");
  EXPECT_EQ(text_at(body, "output.0.content.0.text"), "Hello there.");
  EXPECT_EQ(text_at(body, "instructions"), "Be brief.");
  EXPECT_EQ(text_at(body, "metadata.a"), "b");
  EXPECT_EQ(text_at(body, "tool_choice"), "auto");
  EXPECT_EQ(text_at(body, "text.format.type"), "text");
  EXPECT_GT(integer_at(body, "usage.input_tokens"), 5);
  EXPECT_EQ(integer_at(body, "usage.total_tokens"),
            integer_at(body, "usage.input_tokens") + integer_at(body, "usage.output_tokens"));
}

TEST(Responses, StreamTypedEventsInOrder) {
  TestServer server;
  const std::vector<json::Value> events =
      stream_events(server, response_body(R"(, "stream": true)"));
  EXPECT_THAT(outline(events),
              ElementsAre("created",
                          "in_progress",
                          "output_item.added message",
                          "content_part.added",
                          "output_text.delta",
                          "output_text.done",
                          "content_part.done",
                          "output_item.done",
                          "completed"));
  std::string text;
  std::string id;
  for (const json::Value& event : events) {
    const std::string type = text_at(event, "type");
    if (type == "response.output_item.added") id = text_at(event, "item.id");
    if (type == "response.output_text.delta") {
      text += text_at(event, "delta");
      EXPECT_EQ(text_at(event, "item_id"), id);
    }
  }
  EXPECT_EQ(text, "Hello there.");
  EXPECT_EQ(text_at(events.back(), "response.output.0.content.0.text"), text);
  EXPECT_EQ(text_at(events.back(), "response.output.0.id"), id);
  EXPECT_EQ(text_at(events.front(), "response.status"), "in_progress");
}

TEST(Responses, StreamReasoningMessageAndCallAsItems) {
  TestServer server;
  server.set_answer(std::string("I wonder.</think>") + std::string(kCall));
  const std::vector<json::Value> events = stream_events(
      server,
      response_body(std::string(kTools) + R"(, "stream": true, "reasoning": {"effort": "high"})"));
  EXPECT_THAT(outline(events),
              ElementsAre("created",
                          "in_progress",
                          "output_item.added reasoning",
                          "content_part.added",
                          "reasoning_text.delta",
                          "reasoning_text.done",
                          "content_part.done",
                          "output_item.done",
                          "output_item.added message",
                          "content_part.added",
                          "output_text.delta",
                          "output_text.done",
                          "content_part.done",
                          "output_item.done",
                          "output_item.added function_call",
                          "function_call_arguments.delta",
                          "function_call_arguments.done",
                          "output_item.done",
                          "completed"));
  const json::Value& done = events[events.size() - 3];
  EXPECT_EQ(text_at(json::parse(text_at(done, "arguments")).value(), "city"), "Rome");
  EXPECT_EQ(text_at(events.back(), "response.output.2.name"), "get_weather");
  EXPECT_GT(integer_at(events.back(), "response.usage.output_tokens_details.reasoning_tokens"), 0);
}

TEST(Responses, SayWhenTheyWereCut) {
  TestServer server;
  const json::Value body = post_json(server, response_body(R"(, "max_output_tokens": 1)"));
  EXPECT_EQ(text_at(body, "status"), "incomplete");
  EXPECT_EQ(text_at(body, "incomplete_details.reason"), "max_output_tokens");
  EXPECT_EQ(text_at(body, "output.0.status"), "incomplete");
  const std::vector<json::Value> events =
      stream_events(server, response_body(R"(, "max_output_tokens": 1, "stream": true)"));
  EXPECT_EQ(text_at(events.back(), "type"), "response.incomplete");
}

TEST(Responses, AreKeptUntilDeleted) {
  TestServer server;
  const TestResponse made = post(server, response_body());
  const std::string path = "/v1/responses/" + text_at(json::parse(made.body).value(), "id");
  EXPECT_EQ(http_get(server.port(), path).body, made.body);
  const TestResponse deleted = send(server, "DELETE", path);
  EXPECT_EQ(deleted.status, 200);
  EXPECT_THAT(deleted.body, HasSubstr("\"deleted\":true"));
  EXPECT_EQ(http_get(server.port(), path).status, 404);
  EXPECT_EQ(send(server, "DELETE", path).status, 404);
}

TEST(Responses, AreNotKeptWhenToldNotTo) {
  TestServer server;
  const json::Value body = post_json(server, response_body(R"(, "store": false)"));
  EXPECT_EQ(http_get(server.port(), "/v1/responses/" + text_at(body, "id")).status, 404);
}

TEST(Responses, ContinueEarlierOnes) {
  TestServer server;
  const json::Value first = post_json(server, response_body());
  const std::string extra = R"(, "previous_response_id": ")" + text_at(first, "id") + "\"";
  const json::Value second = post_json(server, response_body(extra));
  const json::Value third = post_json(
      server, response_body(R"(, "previous_response_id": ")" + text_at(second, "id") + "\""));
  EXPECT_EQ(text_at(second, "previous_response_id"), text_at(first, "id"));
  EXPECT_GT(integer_at(second, "usage.input_tokens"), integer_at(first, "usage.input_tokens"));
  EXPECT_GT(integer_at(third, "usage.input_tokens"), integer_at(second, "usage.input_tokens"));
  const json::Value by_hand = post_json(server,
                                        R"({"input": [{"role": "user", "content": "Hello"},
          {"type": "message", "role": "assistant",
           "content": [{"type": "output_text", "text": "Hello there.", "annotations": []}]},
          {"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]})");
  EXPECT_EQ(integer_at(by_hand, "usage.input_tokens"), integer_at(second, "usage.input_tokens"));
  const TestResponse missing = post(server, response_body(R"(, "previous_response_id": "x")"));
  EXPECT_EQ(missing.status, 400);
  EXPECT_THAT(missing.body, HasSubstr("previous_response_not_found"));
}

TEST(Responses, AreVisibleOnlyWithTheKeyThatMadeThem) {
  const Path file =
      Path(::testing::TempDir()) / ("nibble_responses_test_keys." + std::to_string(::getpid()));
  std::ofstream(file) << "key-a\nkey-b\n";
  TestServer server({.config = {.api_key_file = file}});
  std::filesystem::remove(file);
  const TestResponse made = post(server, response_body(), "Authorization: Bearer key-a\r\n");
  ASSERT_EQ(made.status, 200) << made.body;
  const std::string id = text_at(json::parse(made.body).value(), "id");
  const auto get_as = [&](const char* key) {
    return http_get(server.port(),
                    "/v1/responses/" + id,
                    std::string("Authorization: Bearer ") + key + "\r\n")
        .status;
  };
  EXPECT_EQ(get_as("key-a"), 200);
  EXPECT_EQ(get_as("key-b"), 404);
  const TestResponse stolen = post(server,
                                   response_body(R"(, "previous_response_id": ")" + id + "\""),
                                   "Authorization: Bearer key-b\r\n");
  EXPECT_EQ(stolen.status, 400);
}

std::string wait_for_end(TestServer& server, const std::string& path) {
  for (int i = 0; i < 100'000; ++i) {
    const json::Value body = json::parse(http_get(server.port(), path).body).value();
    if (text_at(body, "status") != "in_progress") return text_at(body, "status");
  }
  return "in_progress";
}

TEST(Responses, WorkInTheBackground) {
  TestServer server;
  server.hold();
  const json::Value begun = post_json(server, response_body(R"(, "background": true)"));
  EXPECT_EQ(text_at(begun, "status"), "in_progress");
  const std::string path = "/v1/responses/" + text_at(begun, "id");
  EXPECT_EQ(text_at(json::parse(http_get(server.port(), path).body).value(), "status"),
            "in_progress");
  const TestResponse early =
      post(server, response_body(R"(, "previous_response_id": ")" + text_at(begun, "id") + "\""));
  EXPECT_EQ(early.status, 400);
  server.release();
  EXPECT_EQ(wait_for_end(server, path), "completed");
}

TEST(Responses, InTheBackgroundAreStreamedToClientsThatComeLater) {
  TestServer server;
  server.hold();
  const json::Value begun = post_json(server, response_body(R"(, "background": true)"));
  const std::string path = "/v1/responses/" + text_at(begun, "id");
  TestClient follower(server.port());
  follower.send(get_request(path + "?stream=true"));
  const std::string head = follower.read_until("response.in_progress");
  EXPECT_THAT(head, HasSubstr("text/event-stream"));
  TestClient resumed(server.port());
  resumed.send(get_request(path + "?stream=true&starting_after=0"));
  EXPECT_THAT(resumed.read_until("response.in_progress"),
              ::testing::Not(HasSubstr("response.created")));
  server.release();
  EXPECT_THAT(follower.read_until("event: response.completed"), HasSubstr("Hello"));
  EXPECT_THAT(resumed.read_until("event: response.completed"), HasSubstr("Hello"));
  EXPECT_EQ(wait_for_end(server, path), "completed");

  const std::string all = http_get(server.port(), path + "?stream=true").body;
  const std::vector<json::Value> events = checked_events(all);
  EXPECT_EQ(text_at(events.back(), "type"), "response.completed");
  EXPECT_EQ(text_at(events.back(), "response.output.0.content.0.text"), "Hello there.");
  for (size_t seen = 0; seen < events.size(); ++seen) {
    const std::string rest =
        http_get(server.port(), path + "?stream=true&starting_after=" + std::to_string(seen)).body;
    EXPECT_TRUE(all.ends_with(rest));
    EXPECT_EQ(checked_events(rest, static_cast<int64_t>(seen) + 1).size(),
              events.size() - seen - 1);
  }
  EXPECT_EQ(http_get(server.port(), path + "?stream=true&starting_after=x").status, 400);
}

TEST(Responses, InTheBackgroundLetLateClientsCatchUp) {
  TestServer server;
  std::string answer;
  for (int i = 0; i < 1500; ++i) answer += "one two ";
  server.set_answer(answer);
  const json::Value begun = post_json(server, response_body(R"(, "background": true)"));
  const std::string path = "/v1/responses/" + text_at(begun, "id");
  EXPECT_TRUE(server.wait_for_stats(
      [](const engine::EngineStats& stats) { return stats.generation_tokens_total > 1000; }));
  server.hold();
  TestClient client(server.port());
  client.send(get_request(path + "?stream=true"));
  EXPECT_EQ(http_get(server.port(), path).status, 200);  // by then the client follows
  server.release();
  const std::string followed = client.read_response().body;
  EXPECT_EQ(wait_for_end(server, path), "completed");
  EXPECT_EQ(followed, http_get(server.port(), path + "?stream=true").body);
  EXPECT_THAT(followed, HasSubstr("event: response.completed"));
}

TEST(Responses, StreamedInTheBackgroundGoOnWithoutTheirClient) {
  TestServer server;
  server.hold();
  std::string path = "/v1/responses/";
  {
    TestClient client(server.port());
    client.send(
        post_request("/v1/responses", response_body(R"(, "background": true, "stream": true)")));
    const std::string begun = client.read_until("response.in_progress");
    path += begun.substr(begun.find("resp_"), std::string("resp_").size() + 24);
  }
  server.release();
  EXPECT_EQ(wait_for_end(server, path), "completed");
  EXPECT_EQ(outline(checked_events(http_get(server.port(), path + "?stream=true").body)).back(),
            "completed");
}

TEST(Responses, InTheForegroundAreNotStreamedAgain) {
  TestServer server;
  const json::Value made = post_json(server, response_body());
  const TestResponse refused =
      http_get(server.port(), "/v1/responses/" + text_at(made, "id") + "?stream=true");
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("background"));
}

TEST(Responses, ListWhatTheyAnswered) {
  TestServer server;
  const json::Value first = post_json(server, R"({"input": [
      {"role": "user", "content": "One"}, {"role": "assistant", "content": "Two"},
      {"id": "msg_mine", "role": "user", "content": [{"type": "input_text", "text": "Three"}]}]})");
  const json::Value second = post_json(
      server, response_body(R"(, "previous_response_id": ")" + text_at(first, "id") + "\""));
  const auto list = [&](const json::Value& response, const std::string& query) {
    const std::string path = "/v1/responses/" + text_at(response, "id") + "/input_items" + query;
    const TestResponse page = http_get(server.port(), path);
    EXPECT_EQ(page.status, 200) << page.body;
    return json::parse(page.body).value();
  };
  const json::Value newest = list(first, "");
  EXPECT_EQ(text_at(newest, "object"), "list");
  EXPECT_EQ(at(newest, "data").as_array()->size(), 3U);
  EXPECT_EQ(text_at(newest, "first_id"), "msg_mine");
  EXPECT_EQ(text_at(newest, "data.0.content.0.text"), "Three");
  EXPECT_EQ(text_at(newest, "data.1.content.0.type"), "output_text");
  EXPECT_EQ(text_at(newest, "data.2.content.0.type"), "input_text");
  EXPECT_FALSE(*at(newest, "has_more").as_bool());

  // Earlier responses belong to it; the same ids page by page.
  std::vector<std::string> texts;
  std::string query = "?order=asc&limit=2";
  json::Value page;
  do {
    page = list(second, query);
    const json::Value data = at(page, "data");
    for (const json::Value& item : *data.as_array()) {
      texts.push_back(text_at(item, "content.0.text"));
    }
    query = "?order=asc&limit=2&after=" + text_at(page, "last_id");
  } while (*at(page, "has_more").as_bool());
  EXPECT_THAT(texts, ElementsAre("One", "Two", "Three", "Hello there.", "Hello"));

  const std::string path = "/v1/responses/" + text_at(first, "id") + "/input_items";
  for (const char* bad : {"?limit=0", "?limit=101", "?limit=x", "?order=up", "?after=msg_none"}) {
    EXPECT_EQ(http_get(server.port(), path + bad).status, 400) << bad;
  }
  EXPECT_EQ(http_get(server.port(), "/v1/responses/resp_none/input_items").status, 404);
}

constexpr const char* kCustomTool =
    R"(, "tools": [{"type": "custom", "name": "patch", "description": "Applies a patch"}])";
constexpr std::string_view kCustomCall =
    "\n\n<\uff5cDSML\uff5ctool_calls>\n<\uff5cDSML\uff5cinvoke name=\"patch\">\n"
    "<\uff5cDSML\uff5cparameter name=\"input\" string=\"true\">*** a\n+ "
    "\"b\"</\uff5cDSML\uff5cparameter>\n"
    "</\uff5cDSML\uff5cinvoke>\n</\uff5cDSML\uff5ctool_calls>";

TEST(Responses, CallCustomToolsWithFreeText) {
  TestServer server;
  server.set_answer(kCustomCall);
  const json::Value body = post_json(server, response_body(kCustomTool));
  EXPECT_EQ(text_at(body, "output.0.type"), "custom_tool_call");
  EXPECT_THAT(text_at(body, "output.0.id"), StartsWith("ctc_"));
  EXPECT_EQ(text_at(body, "output.0.name"), "patch");
  EXPECT_EQ(text_at(body, "output.0.input"), "*** a\n+ \"b\"");
  EXPECT_EQ(text_at(body, "output.0.status"), "completed");
  const std::vector<json::Value> events =
      stream_events(server, response_body(std::string(kCustomTool) + R"(, "stream": true)"));
  EXPECT_THAT(outline(events),
              ElementsAre("created",
                          "in_progress",
                          "output_item.added custom_tool_call",
                          "custom_tool_call_input.delta",
                          "custom_tool_call_input.done",
                          "output_item.done",
                          "completed"));
  EXPECT_EQ(text_at(events[events.size() - 3], "input"), "*** a\n+ \"b\"");
}

TEST(Responses, ForceCustomToolsOfAPattern) {
  TestServer server;
  server.set_answer("I would rather not.");
  const json::Value body = post_json(server,
                                     response_body(
                                         R"(, "tools": [{"type": "custom", "name": "dial", "format":
               {"type": "grammar", "syntax": "regex", "definition": "[0-9]{2}"}}],
             "tool_choice": {"type": "custom", "name": "dial"}, "temperature": 0)"));
  EXPECT_EQ(text_at(body, "output.0.type"), "custom_tool_call");
  EXPECT_THAT(text_at(body, "output.0.input"), ::testing::MatchesRegex("[0-9][0-9]"));
}

TEST(Responses, ShowLarkGrammarsAndSaySo) {
  TestServer server;
  const TestResponse response =
      post(server, response_body(R"(, "tools": [{"type": "custom", "name": "f", "format":
          {"type": "grammar", "syntax": "lark", "definition": "start: \"x\""}}])"));
  EXPECT_EQ(response.status, 200) << response.body;
  EXPECT_THAT(response.headers.at("x-nibble-note"), HasSubstr("not enforced"));
}

TEST(Responses, AreCancelledInTheBackground) {
  TestServer server;
  server.hold();
  const json::Value begun = post_json(server, response_body(R"(, "background": true)"));
  const std::string path = "/v1/responses/" + text_at(begun, "id");
  const TestResponse cancelled = send(server, "POST", path + "/cancel");
  EXPECT_EQ(cancelled.status, 200);
  EXPECT_EQ(text_at(json::parse(cancelled.body).value(), "status"), "cancelled");
  EXPECT_EQ(text_at(json::parse(http_get(server.port(), path).body).value(), "status"),
            "cancelled");
  server.release();
  EXPECT_TRUE(server.wait_for_stats(
      [](const engine::EngineStats& stats) { return stats.num_running == 0; }));
}

TEST(Responses, InTheForegroundAreNotCancelled) {
  TestServer server;
  const json::Value made = post_json(server, response_body());
  EXPECT_EQ(send(server, "POST", "/v1/responses/" + text_at(made, "id") + "/cancel").status, 400);
  EXPECT_EQ(send(server, "POST", "/v1/responses/resp_none/cancel").status, 404);
}

TEST(Responses, DeletedWhileTheyAreMadeStayDeleted) {
  TestServer server;
  server.hold();
  const json::Value begun = post_json(server, response_body(R"(, "background": true)"));
  const std::string path = "/v1/responses/" + text_at(begun, "id");
  EXPECT_EQ(send(server, "DELETE", path).status, 200);
  server.release();
  EXPECT_TRUE(server.serves());
  EXPECT_EQ(http_get(server.port(), path).status, 404);
}

TEST(Responses, CarryReasoningOpaquely) {
  TestServer server;
  server.set_answer("I wonder.</think>Hello.");
  const json::Value body = post_json(
      server,
      response_body(
          R"(, "store": false, "reasoning": {"effort": "low"}, "include": ["reasoning.encrypted_content"])"));
  EXPECT_EQ(text_at(body, "output.0.type"), "reasoning");
  EXPECT_EQ(text_at(body, "output.0.content.0.text"), "I wonder.");
  EXPECT_EQ(text_at(body, "output.0.encrypted_content"), opaque_reasoning("I wonder."));
}

TEST(Responses, OfferNoWebSearchAndSaySo) {
  TestServer server;
  const TestResponse response =
      post(server, response_body(R"(, "tools": [{"type": "web_search"}])"));
  EXPECT_EQ(response.status, 200);
  EXPECT_THAT(response.headers.at("x-nibble-note"), HasSubstr("tools[0]"));
  EXPECT_THAT(response.body, HasSubstr("\"tools\":[]"));
}

// --- requests

Result<ResponsesRequest> parse(std::string_view body) {
  static const ServedModel model = {
      .names = {"tiny"}, .vocab_size = 4096, .max_context = 4096, .default_sampling = {}};
  return parse_responses_request(
      json::parse(body).value(), model, [](const std::string&) -> Result<json::Array> {
        return not_found("none");
      });
}

TEST(ResponsesRequest, MakesOneMessageOfWhatTheAssistantSaidInATurn) {
  const ResponsesRequest request = parse(R"({"instructions": "i", "input": [
      {"role": "developer", "content": "d"}, {"role": "user", "content": "u"},
      {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
      {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
      {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
      {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "1", "output": "x"},
      {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "y"}]},
      {"type": "reasoning", "id": "s", "summary": [], "encrypted_content": "nibble:z"},
      {"type": "message", "role": "assistant", "content": "b"},
      {"role": "user", "content": "v"}]})")
                                       .value();
  const std::vector<text::Message>& messages = request.chat.messages;
  ASSERT_EQ(messages.size(), 7U);
  EXPECT_EQ(messages[0].content, "i\n\nd");
  EXPECT_EQ(messages[2].reasoning_content, "t");
  EXPECT_EQ(messages[2].content, "a");
  EXPECT_EQ(messages[2].tool_calls.size(), 2U);
  EXPECT_EQ(messages[3].tool_call_id, "1");
  EXPECT_EQ(messages[4].content, "y");
  EXPECT_EQ(messages[5].reasoning_content, "z");
  EXPECT_EQ(messages[5].content, "b");
  EXPECT_EQ(request.items.size(), 11U);
}

TEST(ResponsesRequest, ReadsCallsOfCustomTools) {
  const ResponsesRequest request = parse(R"({"input": [
      {"role": "user", "content": "u"},
      {"type": "custom_tool_call", "call_id": "1", "name": "f", "input": "a \"b\""},
      {"type": "custom_tool_call_output", "call_id": "1", "output": "x"}]})")
                                       .value();
  const std::vector<text::Message>& messages = request.chat.messages;
  EXPECT_EQ(messages[1].tool_calls.front().arguments, R"({"input": "a \"b\""})");
  EXPECT_EQ(messages[2].content, "x");
}

TEST(ResponsesRequest, NamesTheFieldThatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{}", "input"},
      {R"({"input": 3})", "input"},
      {R"({"input": []})", "input"},
      {R"({"input": [3]})", "input[0]"},
      {R"({"input": [{"type": "item_reference", "id": "x"}]})", "input[0].type"},
      {R"({"input": [{"role": "user"}]})", "input[0].content"},
      {R"({"input": [{"content": "x"}]})", "input[0].role"},
      {R"({"input": [{"role": "wizard", "content": "x"}]})", "input[0].role"},
      {R"({"input": [{"role": "user", "content": [{"type": "input_image"}]}]})",
       "input[0].content[0].type"},
      {R"({"input": [{"role": "user", "content": [{"type": "input_text"}]}]})",
       "input[0].content[0].text"},
      {R"({"input": [{"role": "assistant", "content": "x"}]})", "input"},
      {R"({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]})",
       "input[0].call_id"},
      {R"({"input": [{"type": "function_call", "call_id": "1", "name": "a<b", "arguments": ""}]})",
       "input[0].name"},
      {R"({"input": [{"type": "function_call_output", "call_id": "1"}]})", "input[0].output"},
      {R"({"input": [{"type": "reasoning", "encrypted_content": "gAAA"}]})",
       "input[0].encrypted_content"},
      {response_body(R"(, "instructions": 3)"), "instructions"},
      {response_body(R"(, "max_output_tokens": 0)"), "max_output_tokens"},
      {response_body(R"(, "temperature": "x")"), "temperature"},
      {response_body(R"(, "stream": "x")"), "stream"},
      {response_body(R"(, "store": 1)"), "store"},
      {response_body(R"(, "background": true, "store": false)"), "background"},
      {response_body(R"(, "tools": {})"), "tools"},
      {response_body(R"(, "tools": [{"type": "mcp"}])"), "tools[0].type"},
      {response_body(R"(, "tools": [{"type": "function"}])"), "tools[0].name"},
      {response_body(R"(, "tools": [{"type": "function", "name": "f", "parameters": 3}])"),
       "tools[0].parameters"},
      {response_body(R"(, "tools": [{"type": "custom", "name": "f", "format": 3}])"),
       "tools[0].format"},
      {response_body(R"(, "tools": [{"type": "custom", "name": "f", "format": {"type": "x"}}])"),
       "tools[0].format.type"},
      {response_body(R"(, "tools": [{"type": "custom", "name": "f", "format":
           {"type": "grammar", "syntax": "bnf", "definition": ""}}])"),
       "tools[0].format.syntax"},
      {R"({"input": [{"type": "custom_tool_call", "call_id": "1", "name": "f"}]})",
       "input[0].input"},
      {response_body(R"(, "prompt_logprobs": 1)"), "prompt_logprobs"},
      {response_body(R"(, "tool_choice": 3)"), "tool_choice"},
      {response_body(R"(, "tool_choice": "some")"), "tool_choice"},
      {response_body(R"(, "tool_choice": {"type": "mcp"})"), "tool_choice.type"},
      {response_body(R"(, "tool_choice": "required")"), "tool_choice"},
      {response_body(R"(, "text": {"format": {"type": "yaml"}})"), "text.format.type"},
      {response_body(R"(, "text": {"format": {"type": "json_schema"}})"), "text.format.schema"},
      {response_body(R"(, "reasoning": {"effort": "huge"})"), "reasoning.effort"},
      {response_body(R"(, "reasoning": 3)"), "reasoning"},
      {response_body(R"(, "include": [3])"), "include"},
      {response_body(R"(, "truncation": "maybe")"), "truncation"},
      {response_body(R"(, "metadata": 3)"), "metadata"},
      {response_body(R"(, "top_logprobs": 21)"), "top_logprobs"},
      {response_body(R"(, "conversation": "c")"), "conversation"},
      {response_body(R"(, "prompt": {"id": "p"})"), "prompt"},
  };
  for (const auto& [body, param] : cases) {
    const Result<ResponsesRequest> request = parse(body);
    ASSERT_FALSE(request.ok()) << body;
    EXPECT_EQ(request.error().param, param) << request.error().message;
  }
}

}  // namespace
}  // namespace nibble::server
