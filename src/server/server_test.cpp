#include "server/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "server/chat_reply.h"
#include "server/server_testing.h"

namespace nibble::server {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string read_stream(TestServer& server, std::string_view body) {
  const TestResponse response = server.chat(body);
  EXPECT_EQ(response.status, 200) << response.body;
  EXPECT_THAT(response.headers.at("content-type"), StartsWith("text/event-stream"));
  return response.body;
}

// Joins a string member over the events of choice 0.
std::string join(const std::vector<json::Value>& events, std::string_view path) {
  std::string joined;
  for (const json::Value& event : events) {
    const json::Value piece = at(event, path);
    if (piece.is_string()) joined += *piece.as_string();
  }
  return joined;
}

constexpr const char* kWeatherTool =
    R"(, "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}])";
constexpr std::string_view kWeatherCall =
    "\n\n<\uff5cDSML\uff5ctool_calls>\n<\uff5cDSML\uff5cinvoke name=\"get_weather\">\n"
    "<\uff5cDSML\uff5cparameter name=\"city\" string=\"true\">Rome</\uff5cDSML\uff5cparameter>\n"
    "</\uff5cDSML\uff5cinvoke>\n</\uff5cDSML\uff5ctool_calls>";

// --- small routes

TEST(Server, ListsItsModelUnderEveryName) {
  TestServer server;
  const json::Value list = json::parse(http_get(server.port(), "/v1/models").body).value();
  EXPECT_EQ(text_at(list, "object"), "list");
  EXPECT_EQ(text_at(list, "data.0.id"), "tiny");
  EXPECT_EQ(text_at(list, "data.1.id"), "alias/tiny");
  EXPECT_EQ(text_at(list, "data.1.root"), "tiny");
  EXPECT_EQ(integer_at(list, "data.0.max_model_len"), 4096);
  for (const char* path : {"/v1/models/tiny", "/v1/models/alias/tiny", "/v1/models/alias%2Ftiny"}) {
    EXPECT_EQ(http_get(server.port(), path).status, 200) << path;
  }
  const TestResponse missing = http_get(server.port(), "/v1/models/other");
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(text_at(json::parse(missing.body).value(), "error.code"), "model_not_found");
}

TEST(Server, TellsHealthReadinessAndVersion) {
  TestServer server;
  for (const char* path : {"/health", "/ping", "/ready", "/health/ready"}) {
    EXPECT_EQ(http_get(server.port(), path).status, 200) << path;
  }
  EXPECT_EQ(http_get(server.port(), "/version").body, R"({"version":"1.2.3"})");
}

TEST(Server, AnswersUnknownRoutesAndMethodsInJson) {
  TestServer server;
  const TestResponse unknown = http_get(server.port(), "/nothing/here");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(text_at(json::parse(unknown.body).value(), "error.code"), "not_found");
  const TestResponse method = http_get(server.port(), "/v1/chat/completions");
  EXPECT_EQ(method.status, 405);
  EXPECT_EQ(method.headers.at("allow"), "POST, OPTIONS");
  EXPECT_EQ(http_post(server.port(), "/health", "{}").status, 405);
  EXPECT_EQ(http_post(server.port(), "/v1/embeddings", "{}").status, 501);
}

TEST(Server, TakesWholeMethodNamesOnly) {
  TestServer server;
  for (const char* method : {"GE", "T", "HEAD,", "OST", "get"}) {
    TestClient client(server.port());
    client.send(std::string(method) + " /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_NE(client.read_response().status, 200) << method;
  }
  TestClient client(server.port());
  client.send("OST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}");
  EXPECT_EQ(client.read_response().status, 405);
}

TEST(Server, AnswersOptionsWithoutCors) {
  TestServer server;
  TestClient client(server.port());
  client.send("OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const TestResponse response = client.read_response();
  EXPECT_EQ(response.status, 204);
  EXPECT_EQ(response.headers.at("allow"), "GET, HEAD, OPTIONS");
  EXPECT_EQ(response.headers.count("access-control-allow-origin"), 0U);
}

TEST(Server, KeepsForeignHostsAndOriginsAway) {
  TestServer server;
  TestClient rebound(server.port());
  rebound.send("GET /v1/models HTTP/1.1\r\nHost: evil.test\r\n\r\n");
  EXPECT_EQ(rebound.read_response().status, 403);
  EXPECT_EQ(http_get(server.port(), "/v1/models", "Origin: http://evil.test\r\n").status, 403);
}

TEST(Server, RefusesOtherAddressesWithoutAKey) {
  const auto server = Server::listen({.http = {.host = "0.0.0.0", .port = 0}});
  ASSERT_FALSE(server.ok());
  EXPECT_EQ(server.error().code, Errc::kInvalidArgument);
  EXPECT_THAT(server.error().message, HasSubstr("--api-key-file"));
}

TEST(Server, WantsAKeyEverywhereButForHealth) {
  const Path file =
      Path(::testing::TempDir()) / ("nibble_server_test_keys." + std::to_string(::getpid()));
  std::ofstream(file) << "sesame-1\nsesame-2\n";
  TestServer server({.config = {.api_key_file = file}});
  std::filesystem::remove(file);
  EXPECT_EQ(http_get(server.port(), "/health").status, 200);
  for (const char* path : {"/v1/models", "/metrics", "/version", "/nothing"}) {
    const TestResponse response = http_get(server.port(), path);
    EXPECT_EQ(response.status, 401) << path;
    EXPECT_EQ(text_at(json::parse(response.body).value(), "error.code"), "invalid_api_key");
  }
  EXPECT_EQ(http_post(server.port(), "/v1/chat/completions", chat_body()).status, 401);
  for (const char* key : {"sesame-1", "sesame-2"}) {
    const std::string header = std::string("Authorization: Bearer ") + key + "\r\n";
    EXPECT_EQ(http_post(server.port(), "/v1/chat/completions", chat_body(), header).status, 200);
  }
}

// --- chat

TEST(ChatCompletions, AnswersInOneObject) {
  TestServer server;
  const json::Value body = server.chat_json(chat_body());
  EXPECT_THAT(text_at(body, "id"), StartsWith("chatcmpl-"));
  EXPECT_EQ(text_at(body, "object"), "chat.completion");
  EXPECT_EQ(text_at(body, "model"), "tiny");
  EXPECT_EQ(text_at(body, "choices.0.message.role"), "assistant");
  EXPECT_EQ(text_at(body, "choices.0.message.content"), "Hello there.");
  EXPECT_EQ(text_at(body, "choices.0.finish_reason"), "stop");
  EXPECT_TRUE(at(body, "choices.0.logprobs").is_null());
  EXPECT_EQ(text_at(body, "system_fingerprint"), "nibble-1.2.3");
  const int64_t prompt = integer_at(body, "usage.prompt_tokens");
  const int64_t completion = integer_at(body, "usage.completion_tokens");
  EXPECT_EQ(prompt, 5);  // begin, user tag, "Hello", assistant tag, </think>
  EXPECT_GT(completion, 1);
  EXPECT_EQ(integer_at(body, "usage.total_tokens"), prompt + completion);
  EXPECT_EQ(integer_at(body, "usage.prompt_tokens_details.cached_tokens"), 0);
  EXPECT_EQ(integer_at(body, "usage.completion_tokens_details.reasoning_tokens"), 0);
}

TEST(ChatCompletions, StreamsRoleContentFinishAndDone) {
  TestServer server;
  const std::string stream = read_stream(server, chat_body(R"(, "stream": true)"));
  EXPECT_TRUE(stream.ends_with("data: [DONE]\n\n"));
  const std::vector<json::Value> events = parse_events(stream);
  ASSERT_GE(events.size(), 3U);
  EXPECT_EQ(text_at(events.front(), "object"), "chat.completion.chunk");
  EXPECT_EQ(text_at(events.front(), "choices.0.delta.role"), "assistant");
  EXPECT_EQ(text_at(events.front(), "choices.0.delta.content"), "");
  EXPECT_EQ(join(events, "choices.0.delta.content"), "Hello there.");
  EXPECT_EQ(json::dump(at(events.back(), "choices.0.delta"), json::Style::kCompact), "{}");
  EXPECT_EQ(text_at(events.back(), "choices.0.finish_reason"), "stop");
  for (const json::Value& event : events) {
    EXPECT_EQ(event.find("usage"), nullptr);
    EXPECT_EQ(text_at(event, "id"), text_at(events.front(), "id"));
  }
}

TEST(ChatCompletions, ReturnsTokenIdsWhenAsked) {
  TestServer server;
  const json::Value whole = server.chat_json(chat_body(R"(, "return_token_ids": true)"));
  const json::Value ids = at(whole, "choices.0.token_ids");
  EXPECT_EQ(static_cast<int64_t>(ids.as_array()->size()),
            integer_at(whole, "usage.completion_tokens"));
  EXPECT_EQ(at(whole, "prompt_token_ids").as_array()->size(), 5U);
  json::Array streamed;
  const std::string body = chat_body(R"(, "return_token_ids": true, "stream": true)");
  for (const json::Value& event : parse_events(read_stream(server, body))) {
    const json::Value piece = at(event, "choices.0.token_ids");
    if (!piece.is_array()) continue;
    streamed.insert(streamed.end(), piece.as_array()->begin(), piece.as_array()->end());
  }
  EXPECT_EQ(json::dump(streamed, json::Style::kCompact), json::dump(ids, json::Style::kCompact));
  const json::Value text = server.complete_json(completion_body(R"(, "return_token_ids": true)"));
  EXPECT_FALSE(at(text, "choices.0.token_ids").as_array()->empty());
}

TEST(ChatCompletions, SendsUsageLastWhenAsked) {
  TestServer server;
  const std::string body =
      chat_body(R"(, "stream": true, "stream_options": {"include_usage": true})");
  const std::vector<json::Value> events = parse_events(read_stream(server, body));
  EXPECT_TRUE(at(events.back(), "choices").as_array()->empty());
  EXPECT_GT(integer_at(events.back(), "usage.completion_tokens"), 0);
  EXPECT_NE(events.front().find("usage"), nullptr);
  EXPECT_TRUE(at(events.front(), "usage").is_null());
}

TEST(ChatCompletions, SendsUsageWithEveryChunkWhenAsked) {
  TestServer server;
  const std::string body = chat_body(
      R"(, "stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true})");
  int64_t last = 0;
  for (const json::Value& event : parse_events(read_stream(server, body))) {
    EXPECT_EQ(integer_at(event, "usage.prompt_tokens"), 5);
    EXPECT_GE(integer_at(event, "usage.completion_tokens"), last);
    last = integer_at(event, "usage.completion_tokens");
  }
}

TEST(ChatCompletions, KeepsReasoningApart) {
  TestServer server;
  server.set_answer("I think.</think>Therefore I am.");
  const std::string extra = R"(, "thinking": {"type": "enabled"})";
  const json::Value body = server.chat_json(chat_body(extra));
  EXPECT_EQ(text_at(body, "choices.0.message.reasoning_content"), "I think.");
  EXPECT_EQ(text_at(body, "choices.0.message.content"), "Therefore I am.");
  const int64_t reasoning = integer_at(body, "usage.completion_tokens_details.reasoning_tokens");
  EXPECT_EQ(reasoning,
            static_cast<int64_t>(tiny_tokenizer().encode_with_specials("I think.")->size()));
  const auto events = parse_events(read_stream(server, chat_body(extra + R"(, "stream": true)")));
  EXPECT_EQ(join(events, "choices.0.delta.reasoning_content"), "I think.");
  EXPECT_EQ(join(events, "choices.0.delta.content"), "Therefore I am.");
}

TEST(ChatCompletions, CallReasoningAsTheOperatorSays) {
  TestServer server({.model = {.reasoning_fields = {"reasoning_content", "reasoning"}}});
  server.set_answer("I think.</think>Therefore I am.");
  const std::string extra = R"(, "thinking": {"type": "enabled"})";
  const json::Value body = server.chat_json(chat_body(extra));
  const auto events = parse_events(read_stream(server, chat_body(extra + R"(, "stream": true)")));
  for (const std::string name : {"reasoning_content", "reasoning"}) {
    EXPECT_EQ(text_at(body, "choices.0.message." + name), "I think.");
    EXPECT_EQ(join(events, "choices.0.delta." + name), "I think.");
  }
}

TEST(ChatCompletions, CloseThinkingWhenItsBudgetIsUsed) {
  TestServer server;
  const std::string answer = "one two three four five six seven eight";
  server.set_answer(answer);
  const std::vector<int32_t> ids = tiny_tokenizer().encode_with_specials(answer).value();
  const auto text_of = [&ids](size_t first, size_t last) {
    return tiny_tokenizer().decode(std::span(ids).subspan(first, last - first)).value();
  };
  for (const std::string extra : {R"(, "reasoning_effort": "high", "thinking_token_budget": 2)",
                                  R"(, "thinking": {"type": "enabled", "budget_tokens": 2})"}) {
    const json::Value body = server.chat_json(chat_body(extra));
    EXPECT_EQ(text_at(body, "choices.0.message.reasoning_content"), text_of(0, 2));
    // The end tag took the place of the third token.
    EXPECT_EQ(text_at(body, "choices.0.message.content"), text_of(3, ids.size()));
    EXPECT_EQ(integer_at(body, "usage.completion_tokens_details.reasoning_tokens"), 2);
  }
  const json::Value unlimited =
      server.chat_json(chat_body(R"(, "reasoning_effort": "high", "thinking_token_budget": -1)"));
  EXPECT_EQ(text_at(unlimited, "choices.0.message.reasoning_content"), answer);
  const json::Value chat = server.chat_json(chat_body(R"(, "thinking_token_budget": 0)"));
  EXPECT_EQ(text_at(chat, "choices.0.message.content"), answer);
}

TEST(ChatCompletions, SaysWhenItStoppedInsideReasoning) {
  TestServer server;
  server.set_answer("I think.");
  const json::Value body = server.chat_json(chat_body(R"(, "reasoning_effort": "max")"));
  EXPECT_EQ(text_at(body, "choices.0.message.reasoning_content"), "I think.");
  EXPECT_EQ(text_at(body, "choices.0.message.content"), "");
  EXPECT_EQ(text_at(body, "choices.0.finish_details.ended_in"), "reasoning");
}

TEST(ChatCompletions, NeverNullsContentWithoutAReason) {
  TestServer server;
  server.set_answer("</think>");
  const json::Value body = server.chat_json(chat_body(R"(, "max_tokens": 1)"));
  EXPECT_TRUE(at(body, "choices.0.message.content").is_string());
}

TEST(ChatCompletions, ReturnsToolCalls) {
  TestServer server;
  server.set_answer("Let me look." + std::string(kWeatherCall));
  const json::Value body = server.chat_json(chat_body(kWeatherTool));
  EXPECT_EQ(text_at(body, "choices.0.finish_reason"), "tool_calls");
  EXPECT_EQ(text_at(body, "choices.0.message.content"), "Let me look.");
  EXPECT_EQ(text_at(body, "choices.0.message.tool_calls.0.type"), "function");
  EXPECT_THAT(text_at(body, "choices.0.message.tool_calls.0.id"), StartsWith("call_"));
  EXPECT_EQ(text_at(body, "choices.0.message.tool_calls.0.function.name"), "get_weather");
  const std::string arguments = text_at(body, "choices.0.message.tool_calls.0.function.arguments");
  EXPECT_EQ(text_at(json::parse(arguments).value(), "city"), "Rome");
}

TEST(ChatCompletions, NullsContentBesideToolCalls) {
  TestServer server;
  server.set_answer(kWeatherCall);
  const json::Value body = server.chat_json(chat_body(kWeatherTool));
  EXPECT_TRUE(at(body, "choices.0.message.content").is_null());
}

TEST(ChatCompletions, StreamsToolCallsInFragments) {
  TestServer server;
  server.set_answer("Let me look." + std::string(kWeatherCall));
  const std::string stream =
      read_stream(server, chat_body(std::string(kWeatherTool) + R"(, "stream": true)"));
  EXPECT_THAT(stream, ::testing::Not(HasSubstr("DSML")));
  const auto events = parse_events(stream);
  EXPECT_EQ(join(events, "choices.0.delta.content"), "Let me look.");
  EXPECT_EQ(join(events, "choices.0.delta.tool_calls.0.function.name"), "get_weather");
  EXPECT_THAT(join(events, "choices.0.delta.tool_calls.0.id"), StartsWith("call_"));
  const std::string arguments = join(events, "choices.0.delta.tool_calls.0.function.arguments");
  EXPECT_EQ(text_at(json::parse(arguments).value(), "city"), "Rome");
  EXPECT_EQ(text_at(events.back(), "choices.0.finish_reason"), "tool_calls");
}

TEST(ChatCompletions, EndsACutToolCallWithLength) {
  TestServer server;
  server.set_answer(kWeatherCall);
  const json::Value body =
      server.chat_json(chat_body(std::string(kWeatherTool) + R"(, "max_tokens": 12)"));
  EXPECT_EQ(text_at(body, "choices.0.finish_reason"), "length");
}

TEST(ChatCompletions, TakesMarkupForTextWhenNoToolsAreOffered) {
  TestServer server;
  server.set_answer(kWeatherCall);
  const json::Value body =
      server.chat_json(chat_body(std::string(kWeatherTool) + R"(, "tool_choice": "none")"));
  EXPECT_EQ(text_at(body, "choices.0.finish_reason"), "stop");
  EXPECT_TRUE(at(body, "choices.0.message.tool_calls").is_null());
}

TEST(ChatCompletions, SkipsStraySpecialsButNotWhenTheyAreWanted) {
  TestServer server;
  server.set_answer("a<\uff5cUser\uff5c>b");
  EXPECT_EQ(text_at(server.chat_json(chat_body()), "choices.0.message.content"), "ab");
  const json::Value raw = server.chat_json(chat_body(R"(, "skip_special_tokens": false)"));
  EXPECT_EQ(text_at(raw, "choices.0.message.content"), "a<\uff5cUser\uff5c>b");
}

TEST(ChatCompletions, ReportsLogprobsOfEveryToken) {
  TestServer server;
  const json::Value body = server.chat_json(chat_body(R"(, "logprobs": true, "top_logprobs": 2)"));
  const json::Value content = at(body, "choices.0.logprobs.content");
  ASSERT_TRUE(content.is_array());
  EXPECT_EQ(static_cast<int64_t>(content.as_array()->size()),
            integer_at(body, "usage.completion_tokens"));
  EXPECT_EQ(text_at(content, "0.token"), "Hello");
  EXPECT_EQ(integer_at(content, "0.bytes.0"), 'H');
  EXPECT_LE(*at(content, "0.logprob").as_double(), 0.0);
  EXPECT_EQ(at(content, "0.top_logprobs").as_array()->size(), 2U);
}

TEST(ChatCompletions, ReportsLogprobsOfThePromptOnce) {
  TestServer server;
  const json::Value body =
      server.chat_json(chat_body(R"(, "prompt_logprobs": 2, "n": 2, "return_token_ids": true)"));
  const json::Value ids = at(body, "prompt_token_ids");
  const json::Value logprobs = at(body, "prompt_logprobs");
  ASSERT_TRUE(logprobs.is_array());
  ASSERT_EQ(logprobs.as_array()->size(), ids.as_array()->size());
  EXPECT_TRUE(at(logprobs, "0").is_null());
  for (size_t i = 1; i < ids.as_array()->size(); ++i) {
    const json::Value& entry = (*logprobs.as_array())[i];
    const int64_t id = *(*ids.as_array())[i].as_int64();
    const json::Value* own = entry.find(std::to_string(id));
    ASSERT_NE(own, nullptr);
    EXPECT_LE(*at(*own, "logprob").as_double(), 0.0);
    EXPECT_EQ(text_at(*own, "decoded_token"),
              tiny_tokenizer().token_bytes(static_cast<int32_t>(id)));
    EXPECT_GE(integer_at(*own, "rank"), 1);
    EXPECT_GE(entry.as_object()->size(), 2U);
    EXPECT_LE(entry.as_object()->size(), 3U);
  }
}

// Another choice may be the first to answer: it begins with the cached prompt, while the choice
// that gives the logprobs computes all of it.
TEST(ChatReply, TakesLogprobsOfThePromptFromTheChoiceThatHasThem) {
  ChatReply reply(
      {.envelope = {.id = "id"}, .parser = {}, .wants_prompt_logprobs = true, .num_choices = 2},
      tiny_tokenizer());
  const auto ended = [](int32_t token_id) {
    return engine::Output{.token_ids = {token_id},
                          .text = "",
                          .logprobs = {},
                          .prompt_logprobs = {},
                          .finish = engine::Finish{.reason = engine::FinishReason::kStop}};
  };
  reply.add(1, ended(3), nullptr);
  engine::Output first = ended(3);
  first.prompt_logprobs = {{.token_id = 4, .logprob = -1, .rank = 2, .top = {}}};
  reply.add(0, std::move(first), nullptr);
  const json::Value body = reply.body();
  const json::Value logprobs = at(body, "prompt_logprobs");
  ASSERT_EQ(logprobs.as_array()->size(), 2U);
  EXPECT_TRUE(at(logprobs, "0").is_null());
  EXPECT_EQ(integer_at(logprobs, "1.4.rank"), 2);
}

TEST(ChatCompletions, StreamsLogprobsOnce) {
  TestServer server;
  const auto events = parse_events(read_stream(
      server,
      chat_body(
          R"(, "logprobs": true, "stream": true, "stream_options": {"include_usage": true})")));
  int64_t num_logprobs = 0;
  for (const json::Value& event : events) {
    const json::Value content = at(event, "choices.0.logprobs.content");
    if (content.is_array()) num_logprobs += static_cast<int64_t>(content.as_array()->size());
  }
  EXPECT_EQ(num_logprobs, integer_at(events.back(), "usage.completion_tokens"));
}

TEST(ChatCompletions, StopsAtAString) {
  TestServer server;
  server.set_answer("one two three");
  const json::Value body = server.chat_json(chat_body(R"(, "stop": [" three", "x"])"));
  EXPECT_EQ(text_at(body, "choices.0.message.content"), "one two");
  EXPECT_EQ(text_at(body, "choices.0.finish_reason"), "stop");
  EXPECT_EQ(text_at(body, "choices.0.stop_reason"), " three");
}

TEST(ChatCompletions, EndsWithLengthAtMaxTokens) {
  TestServer server;
  for (const char* key : {"max_tokens", "max_completion_tokens"}) {
    const json::Value body = server.chat_json(chat_body(std::string(", \"") + key + "\": 2"));
    EXPECT_EQ(text_at(body, "choices.0.finish_reason"), "length");
    EXPECT_EQ(integer_at(body, "usage.completion_tokens"), 2);
  }
}

TEST(ChatCompletions, GivesSeveralChoices) {
  TestServer server;
  const json::Value body = server.chat_json(chat_body(R"(, "n": 3)"));
  EXPECT_EQ(at(body, "choices").as_array()->size(), 3U);
  EXPECT_EQ(integer_at(body, "choices.2.index"), 2);
  EXPECT_EQ(text_at(body, "choices.2.message.content"), "Hello there.");
  EXPECT_EQ(integer_at(body, "usage.prompt_tokens"), 5);
  const auto events = parse_events(read_stream(server, chat_body(R"(, "n": 2, "stream": true)")));
  int32_t num_finishes = 0;
  for (const json::Value& event : events)
    num_finishes += at(event, "choices.0.finish_reason").is_string();
  EXPECT_EQ(num_finishes, 2);
}

// As many may wait as run, which is one here; the choices of one request count as one.
TEST(ChatCompletions, AcceptsAllChoicesTogether) {
  TestServer server({.engine = {.max_queue_wait = std::nullopt, .eos_token_ids = {kTinyEos}}});
  const json::Value body = server.chat_json(chat_body(R"(, "n": 8)"));
  EXPECT_EQ(at(body, "choices").as_array()->size(), 8U);
}

TEST(ChatCompletions, RemarksThatSamplingActsWhileThinking) {
  TestServer server;
  const TestResponse thinking =
      server.chat(chat_body(R"(, "reasoning_effort": "high", "temperature": 1.9)"));
  EXPECT_EQ(thinking.headers.count("x-nibble-note"), 1U);
  EXPECT_EQ(server.chat(chat_body(R"(, "temperature": 1.9)")).headers.count("x-nibble-note"), 0U);
}

TEST(ChatCompletions, NamesTheNumbersWhenTheContextIsTooSmall) {
  TestServer server;
  const TestResponse response = server.chat(chat_body(R"(, "max_tokens": 5000)"));
  EXPECT_EQ(response.status, 400);
  const json::Value body = json::parse(response.body).value();
  EXPECT_EQ(text_at(body, "error.code"), "context_length_exceeded");
  EXPECT_EQ(text_at(body, "error.param"), "messages");
  EXPECT_THAT(text_at(body, "error.message"), HasSubstr("4096"));
}

// --- text completions

TEST(Completions, AnswersInOneObject) {
  TestServer server;
  const json::Value body = server.complete_json(completion_body());
  EXPECT_THAT(text_at(body, "id"), StartsWith("cmpl-"));
  EXPECT_EQ(text_at(body, "object"), "text_completion");
  EXPECT_EQ(text_at(body, "choices.0.text"), "Hello there.");
  EXPECT_EQ(text_at(body, "choices.0.finish_reason"), "stop");
  EXPECT_EQ(integer_at(body, "usage.prompt_tokens"), 3);
}

TEST(Completions, Streams) {
  TestServer server;
  const TestResponse response = server.complete(
      completion_body(R"(, "stream": true, "stream_options": {"include_usage": true})"));
  const auto events = parse_events(response.body);
  EXPECT_TRUE(response.body.ends_with("data: [DONE]\n\n"));
  EXPECT_EQ(join(events, "choices.0.text"), "Hello there.");
  EXPECT_EQ(integer_at(events.back(), "usage.prompt_tokens"), 3);
}

TEST(Completions, TakesAllFormsOfPrompts) {
  TestServer server;
  const std::string tags = "<\uff5cAssistant\uff5c></think>";
  const std::string ids = "[4, 6]";  // the same two tokens
  for (const std::string& prompt : {"\"" + tags + "\"", ids}) {
    const json::Value body =
        server.complete_json("{\"prompt\": " + prompt + ", \"max_tokens\": 100}");
    EXPECT_EQ(text_at(body, "choices.0.text"), "Hello there.") << prompt;
    EXPECT_EQ(integer_at(body, "usage.prompt_tokens"), 2) << prompt;
  }
  for (const std::string& prompts :
       {"[\"" + tags + "\", \"" + tags + "\"]", "[" + ids + "," + ids + "]"}) {
    const json::Value body =
        server.complete_json("{\"prompt\": " + prompts + ", \"max_tokens\": 100, \"n\": 2}");
    ASSERT_EQ(at(body, "choices").as_array()->size(), 4U) << prompts;
    EXPECT_EQ(integer_at(body, "choices.3.index"), 3);
    EXPECT_EQ(integer_at(body, "usage.prompt_tokens"), 4);
  }
}

TEST(Completions, DefaultsTo16Tokens) {
  TestServer server;
  server.set_answer("a b c d e f g h i j k l m n o p q r s t u v w x y z");
  const json::Value body = server.complete_json(R"({"prompt": [4, 6]})");
  EXPECT_EQ(integer_at(body, "usage.completion_tokens"), 16);
  EXPECT_EQ(text_at(body, "choices.0.finish_reason"), "length");
}

TEST(Completions, EchoesThePromptWithItsLogprobs) {
  TestServer server;
  const json::Value body =
      server.complete_json(completion_body(R"(, "echo": true, "logprobs": 1)"));
  EXPECT_EQ(text_at(body, "choices.0.text"), "Hello<\uff5cAssistant\uff5c></think>Hello there.");
  const json::Value logprobs = at(body, "choices.0.logprobs");
  EXPECT_EQ(text_at(logprobs, "tokens.0"), "Hello");
  EXPECT_TRUE(at(logprobs, "token_logprobs.0").is_null());
  EXPECT_TRUE(at(logprobs, "top_logprobs.0").is_null());
  EXPECT_LE(*at(logprobs, "token_logprobs.1").as_double(), 0.0);
  EXPECT_EQ(integer_at(logprobs, "text_offset.1"), 5);
  const size_t num_tokens = at(logprobs, "tokens").as_array()->size();
  EXPECT_EQ(static_cast<int64_t>(num_tokens), 3 + integer_at(body, "usage.completion_tokens"));
  for (const char* key : {"token_logprobs", "top_logprobs", "text_offset"}) {
    EXPECT_EQ(at(logprobs, key).as_array()->size(), num_tokens) << key;
  }
}

TEST(Completions, ScoresAPromptWithoutGenerating) {
  TestServer server;
  const json::Value body = server.complete_json(
      R"({"prompt": [3, 4, 6], "max_tokens": 0, "echo": true, "logprobs": 0})");
  EXPECT_EQ(at(body, "choices.0.logprobs.tokens").as_array()->size(), 3U);
  EXPECT_EQ(integer_at(body, "usage.completion_tokens"), 0);
  EXPECT_EQ(text_at(body, "choices.0.finish_reason"), "length");
}

TEST(Completions, ReportLogprobsOfThePromptByTokenId) {
  TestServer server;
  const json::Value body =
      server.complete_json(R"({"prompt": [3, 4, 6], "max_tokens": 1, "prompt_logprobs": 0})");
  const json::Value logprobs = at(body, "choices.0.prompt_logprobs");
  ASSERT_EQ(logprobs.as_array()->size(), 3U);
  EXPECT_TRUE(at(logprobs, "0").is_null());
  EXPECT_LE(*at(logprobs, "2.6.logprob").as_double(), 0.0);
  EXPECT_TRUE(at(body, "choices.0.logprobs").is_null());
}

// --- life cycle

TEST(Server, FreesTheSequenceOfAClientThatLeavesMidStream) {
  TestServer server;
  server.set_answer("one two three four five six seven eight nine ten");
  TestClient client(server.port());
  server.hold();
  client.send(post_request("/v1/chat/completions", chat_body(R"(, "stream": true)")));
  client.read_until("\"role\":\"assistant\"");  // accepted; the model waits in its first step
  client.close();
  const auto aborted = [&] {
    return http_get(server.port(), "/metrics")
               .body.find("nibble_requests_aborted_total{cause=\"disconnect\"} 1") !=
           std::string::npos;
  };
  while (!aborted()) std::this_thread::yield();
  server.release();
  EXPECT_TRUE(server.wait_for_stats([](const engine::EngineStats& stats) {
    return stats.requests_cancelled_total == 1 && stats.num_pages_used == 0;
  }));
  EXPECT_TRUE(server.serves());
}

TEST(Server, FreesTheSequenceOfAClientThatLeavesWhileWaiting) {
  TestServer server;
  TestClient client(server.port());
  server.hold();
  client.send(post_request("/v1/chat/completions", chat_body(R"(, "n": 2)")));
  EXPECT_TRUE(server.wait_for_stats(
      [](const engine::EngineStats& stats) { return stats.num_running + stats.num_queued == 2; }));
  client.half_close();
  EXPECT_EQ(client.read_to_end(), "");
  server.release();
  EXPECT_TRUE(server.wait_for_stats([](const engine::EngineStats& stats) {
    return stats.requests_cancelled_total == 2 && stats.num_pages_used == 0;
  }));
  EXPECT_TRUE(server.serves());
}

TEST(Server, PingsWhileTheModelReadsThePrompt) {
  TestServer server({.config = {.ping_interval = std::chrono::milliseconds(10)}});
  TestClient client(server.port());
  server.hold();
  client.send(post_request("/v1/chat/completions", chat_body(R"(, "stream": true)")));
  EXPECT_THAT(client.read_until(": ping\n\n"), HasSubstr(": ping"));
  server.release();
  EXPECT_THAT(client.read_until("[DONE]"), HasSubstr("[DONE]"));
}

TEST(Server, AsksClientsToComeBackWhenTheQueueIsFull) {
  TestServer server({.engine = {.max_queued_requests = 1, .eos_token_ids = {kTinyEos}}});
  server.hold();
  TestClient first(server.port());
  first.send(post_request("/v1/chat/completions", chat_body(R"(, "stream": true)")));
  first.read_until("assistant");
  EXPECT_TRUE(server.wait_for_stats(
      [](const engine::EngineStats& stats) { return stats.num_queued <= 1; }));
  TestResponse refused;
  do {  // how many fit depends on whether the first has left the queue
    refused = server.chat(chat_body(R"(, "n": 3)"));
  } while (refused.status == 200);
  EXPECT_EQ(refused.status, 429);
  EXPECT_GE(std::stoi(refused.headers.at("retry-after")), 1);
  EXPECT_EQ(text_at(json::parse(refused.body).value(), "error.type"), "rate_limit_error");
  server.release();
  EXPECT_THAT(first.read_until("[DONE]"), HasSubstr("[DONE]"));
  EXPECT_TRUE(server.serves());
}

TEST(Server, FinishesAcceptedWorkBeforeItEnds) {
  TestServer server;
  TestClient client(server.port());
  server.hold();
  client.send(post_request("/v1/chat/completions", chat_body(R"(, "stream": true)")));
  client.read_until("assistant");
  server.server().request_shutdown();
  EXPECT_EQ(http_get(server.port(), "/ready").status, 503);
  EXPECT_EQ(http_get(server.port(), "/health").status, 200);
  const TestResponse refused = server.chat(chat_body());
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.count("retry-after"), 1U);
  std::thread running([&] { server.server().run(); });
  server.release();
  EXPECT_THAT(client.read_until("[DONE]"), HasSubstr("[DONE]"));
  running.join();
}

TEST(Server, EndsStreamsWithAnErrorEventAfterTheShutdownTimeout) {
  TestServer server({.config = {.shutdown_timeout = Duration(0)}});
  TestClient client(server.port());
  server.hold();
  client.send(
      post_request("/v1/chat/completions", chat_body(R"(, "stream": true, "ignore_eos": true)")));
  client.read_until("assistant");
  std::thread running([&] { server.server().run(); });
  server.server().request_shutdown();
  server.release();  // thousands of steps are left to go
  const std::string rest = client.read_to_end();
  running.join();
  EXPECT_THAT(rest, HasSubstr("\"code\":\"shutting_down\""));
  EXPECT_THAT(rest, ::testing::Not(HasSubstr("[DONE]")));
}

TEST(Server, PublishesBothMetricVocabularies) {
  TestServer server({.model = {.kernels = {{"ffn.experts", "matmul.x", "first that fits"}}}});
  EXPECT_EQ(server.chat(chat_body(R"(, "surprise": 1)")).status, 200);
  EXPECT_EQ(server.chat("{}").status, 400);
  const TestResponse response = http_get(server.port(), "/metrics");
  EXPECT_THAT(response.headers.at("content-type"), StartsWith("text/plain; version=0.0.4"));
  for (const char* line : {"sglang:num_running_reqs{model_name=\"tiny\"} 0",
                           "vllm:num_requests_running{model_name=\"tiny\"} 0",
                           "vllm:num_requests_waiting{model_name=\"tiny\"} 0",
                           "sglang:num_queue_reqs{model_name=\"tiny\"} 0",
                           "vllm:prompt_tokens_total{model_name=\"tiny\"} 5",
                           "vllm:time_to_first_token_seconds_count{model_name=\"tiny\"} 1",
                           "sglang:time_to_first_token_seconds_count{model_name=\"tiny\"} 1",
                           "vllm:e2e_request_latency_seconds_count{model_name=\"tiny\"} 1",
                           "nibble_unknown_request_fields_total{model_name=\"tiny\"} 1",
                           "kernel=\"matmul.x\"",
                           "finished_reason=\"stop\"",
                           "nibble_requests_rejected_total"}) {
    EXPECT_THAT(response.body, HasSubstr(line));
  }
}

}  // namespace
}  // namespace nibble::server
