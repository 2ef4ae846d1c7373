// Before the model is there, at its limits, and on the admin port.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <future>
#include <string>
#include <thread>
#include <utility>

#include "server/server_testing.h"

namespace nibble::server {
namespace {

using ::testing::HasSubstr;

std::string code_of(const TestResponse& response) {
  return text_at(json::parse(response.body).value(), "error.code");
}

std::string bearer(std::string_view key) {
  return fmt::format("Authorization: Bearer {}\r\n", key);
}

TEST(Loading, IsAliveButNotReady) {
  TestServer model;  // lends its engine
  // As `nibble serve` has it: how large bodies may be follows from the context, once it is known.
  const auto server =
      Server::listen({.http = {.port = 0, .limits = {.body_bytes = 0}}, .handles_signals = false})
          .value();
  server->start();
  const uint16_t port = server->port();
  for (const char* path : {"/health", "/ping"}) EXPECT_EQ(http_get(port, path).status, 200);
  for (const char* path : {"/ready", "/health/ready", "/metrics", "/v1/models", "/nothing"}) {
    const TestResponse response = http_get(port, path);
    EXPECT_EQ(response.status, 503) << path;
    EXPECT_EQ(code_of(response), "loading") << path;
    EXPECT_EQ(response.headers.count("retry-after"), 1U) << path;
  }
  EXPECT_EQ(http_post(port, "/v1/chat/completions", chat_body()).status, 503);
  server->attach({.served_names = {"tiny"}}, model.engine(), tiny_tokenizer());
  EXPECT_EQ(http_get(port, "/ready").status, 200);
  EXPECT_EQ(http_post(port, "/v1/chat/completions", chat_body()).status, 200);
}

TEST(Loading, WantsAKeyForAllButHealth) {
  const KeyFile keys("loading_keys", "sesame\n");
  const auto server =
      Server::listen({.http = {.port = 0}, .api_key_file = keys.path(), .handles_signals = false})
          .value();
  server->start();
  EXPECT_EQ(http_get(server->port(), "/health").status, 200);
  EXPECT_EQ(http_get(server->port(), "/ready").status, 503);
  EXPECT_EQ(http_get(server->port(), "/v1/models").status, 401);
  EXPECT_EQ(http_get(server->port(), "/v1/models", bearer("sesame")).status, 503);
}

TEST(Loading, TellsOfASignalThatEndsIt) {
  std::promise<int> told;
  const auto server =
      Server::listen(
          {.http = {.port = 0}, .on_early_signal = [&](int signal) { told.set_value(signal); }})
          .value();
  server->start();
  ASSERT_EQ(::raise(SIGTERM), 0);
  EXPECT_EQ(told.get_future().get(), SIGTERM);
}

int status_with(uint16_t port, std::string_view key) {
  return http_get(port, "/v1/models", bearer(key)).status;
}

TEST(KeyReload, TakesTheKeysOfBothFilesFromThenOn) {
  const KeyFile keys("reload_keys", "old\nstays\n");
  const KeyFile admin_keys("reload_admin", "root\n");
  TestServer server({.config = {.api_key_file = keys.path(), .admin_key_file = admin_keys.path()}});
  EXPECT_EQ(status_with(server.port(), "old"), 200);
  keys.write("new\nstays\n");
  admin_keys.write("boss\n");
  EXPECT_EQ(status_with(server.port(), "new"), 401);
  ASSERT_TRUE(server.server().reload_keys().ok());
  EXPECT_EQ(status_with(server.port(), "old"), 401);
  EXPECT_EQ(status_with(server.port(), "root"), 401);
  for (const char* key : {"new", "stays", "boss"}) EXPECT_EQ(status_with(server.port(), key), 200);
}

TEST(KeyReload, KeepsAllKeysWhenOneFileIsBad) {
  const KeyFile keys("reload_keys", "old\n");
  const KeyFile admin_keys("reload_admin", "root\n");
  TestServer server({.config = {.api_key_file = keys.path(), .admin_key_file = admin_keys.path()}});
  keys.write("new\n");
  admin_keys.write("\n\n");
  const Result<void> reloaded = server.server().reload_keys();
  ASSERT_FALSE(reloaded.ok());
  EXPECT_THAT(reloaded.error().message, HasSubstr("holds no API key"));
  EXPECT_EQ(status_with(server.port(), "old"), 200);
  EXPECT_EQ(status_with(server.port(), "root"), 200);
  EXPECT_EQ(status_with(server.port(), "new"), 401);
}

TEST(KeyReload, HappensAtSighup) {
  TestServer model;  // lends its engine
  const KeyFile keys("reload_keys", "old\n");
  const auto server = Server::listen({.http = {.port = 0}, .api_key_file = keys.path()}).value();
  server->start();
  server->attach({.served_names = {"tiny"}}, model.engine(), tiny_tokenizer());
  std::thread running([&] { server->run(); });
  keys.write("new\n");
  ASSERT_EQ(::raise(SIGHUP), 0);
  while (status_with(server->port(), "new") != 200) std::this_thread::yield();
  EXPECT_EQ(status_with(server->port(), "old"), 401);
  server->request_shutdown();
  running.join();
}

TEST(QueueTimeout, EndsARequestThatWaitsLonger) {
  TestServer server({.engine = {.max_running_requests = 1, .eos_token_ids = {kTinyEos}}});
  server.hold();
  TestClient running(server.port());
  running.send(post_request("/v1/chat/completions", chat_body(R"(, "stream": true)")));
  running.read_until("assistant");
  TestClient waiting(server.port());
  waiting.send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Queue-Timeout-Ms: 1\r\n" +
      fmt::format("Content-Length: {}\r\n\r\n{}", chat_body().size(), chat_body()));
  EXPECT_TRUE(server.wait_for_stats(
      [](const engine::EngineStats& stats) { return stats.num_queued + stats.num_running == 2; }));
  const auto later = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);
  while (std::chrono::steady_clock::now() < later) std::this_thread::yield();
  server.release();
  const std::string answer = waiting.read_until("queue_timeout");
  EXPECT_THAT(answer, HasSubstr("429 Too Many Requests"));
  EXPECT_THAT(answer, HasSubstr("retry-after: "));
  EXPECT_THAT(running.read_until("[DONE]"), HasSubstr("[DONE]"));
}

TEST(Deadline, EndsARequestThatTakesLonger) {
  TestServer server;
  server.hold();
  const TestResponse response =
      http_post(server.port(), "/v1/chat/completions", chat_body(), "X-Request-Timeout-Ms: 20\r\n");
  EXPECT_EQ(response.status, 504);
  EXPECT_EQ(code_of(response), "deadline_exceeded");
  server.release();
  EXPECT_TRUE(server.wait_for_stats([](const engine::EngineStats& stats) {
    return stats.num_running == 0 && stats.requests_cancelled_total == 1;
  }));
  EXPECT_TRUE(server.serves());
  EXPECT_THAT(http_get(server.port(), "/metrics").body,
              HasSubstr("nibble_requests_aborted_total{cause=\"deadline\"} 1"));
}

TEST(Deadline, OfTheOperatorBoundsTheClients) {
  TestServer server({.config = {.request_timeout = std::chrono::milliseconds(20)}});
  server.hold();
  TestClient client(server.port());
  client.send(post_request("/v1/chat/completions",
                           chat_body(R"(, "stream": true)"),
                           "X-Request-Timeout-Ms: 3600000\r\n"));
  const TestResponse response = client.read_response();
  EXPECT_EQ(response.status, 200);  // the stream had begun
  EXPECT_THAT(response.body, HasSubstr("\"code\":\"deadline_exceeded\""));
  EXPECT_THAT(response.body, Not(HasSubstr("[DONE]")));
  server.release();
}

TEST(Deadline, MustBeANumberOfMilliseconds) {
  TestServer server;
  for (const char* text : {"0", "-1", "1e3", "soon", "", "99999999999999999999"}) {
    const std::string field = fmt::format("X-Request-Timeout-Ms: {}\r\n", text);
    const TestResponse response =
        http_post(server.port(), "/v1/chat/completions", chat_body(), field);
    EXPECT_EQ(response.status, 400) << text;
    EXPECT_THAT(response.body, HasSubstr("\"param\":\"x-request-timeout-ms\"")) << text;
  }
}

TEST(BodyBudget, RefusesBodiesBeyondWhatTheServerHolds) {
  TestServer::Options options;
  options.config.http.max_buffered_body_bytes = 5000;
  TestServer server(std::move(options));
  TestClient slow(server.port());
  const std::string body = chat_body() + std::string(4000, ' ');
  const std::string request = post_request("/v1/chat/completions", body);
  const size_t num_early = request.size() - 100;
  slow.send(request.substr(0, num_early));
  // The next one does not fit beside what the first has sent, once that has arrived.
  TestResponse refused;
  while (refused.status != 429) {
    refused = http_post(server.port(), "/v1/chat/completions", body);
    ASSERT_TRUE(refused.status == 429 || refused.status == 200) << refused.status;
  }
  EXPECT_EQ(code_of(refused), "too_many_bodies");
  EXPECT_EQ(refused.headers.count("retry-after"), 1U);
  slow.send(request.substr(num_early));
  EXPECT_EQ(slow.read_response().status, 200);
  EXPECT_EQ(http_post(server.port(), "/v1/chat/completions", body).status, 200);
}

}  // namespace
}  // namespace nibble::server
