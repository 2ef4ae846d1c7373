// What operators ask for, and who may ask.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "server/server_testing.h"

namespace nibble::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string bearer(std::string_view key) {
  return fmt::format("Authorization: Bearer {}\r\n", key);
}

std::string as(std::string_view key, std::string_view id) {
  return fmt::format("Authorization: Bearer {}\r\nX-Request-Id: {}\r\n", key, id);
}

json::Value body_of(const TestResponse& response) { return json::parse(response.body).value(); }

// A request that is being computed until it is aborted.
class Running final {
 public:
  Running(TestServer& server, std::string_view headers, std::string_view fields = {})
      : client_(server.port()) {
    server.hold();
    client_.send(
        post_request("/v1/chat/completions",
                     chat_body(R"(, "stream": true, "ignore_eos": true)" + std::string(fields)),
                     headers));
    client_.read_until("assistant");
  }
  // What came after the first event, up to the end of the response.
  std::string rest() { return client_.read_until("0\r\n\r\n"); }

 private:
  TestClient client_;
};

TEST(AdminRoutes, SayWhatTheServerIs) {
  TestServer server({.model = {.kernels = {{"ffn.experts", "matmul.x", "first that fits"}}}});
  for (const char* path : {"/server_info", "/get_server_info"}) {
    const json::Value info = body_of(http_get(server.port(), path));
    EXPECT_EQ(text_at(info, "version"), "1.2.3");
    EXPECT_EQ(text_at(info, "served_model_names.1"), "alias/tiny");
    EXPECT_EQ(text_at(info, "kernels.0.kernel"), "matmul.x");
    EXPECT_EQ(integer_at(info, "max_model_len"), server.engine().max_context());
  }
  const json::Value model = body_of(http_get(server.port(), "/get_model_info"));
  EXPECT_EQ(text_at(model, "served_model_name"), "tiny");
  EXPECT_TRUE(*at(model, "is_generation").as_bool());
}

TEST(AdminRoutes, ReportTheLoad) {
  TestServer server;
  Running running(server, "");
  ASSERT_TRUE(server.wait_for_stats(
      [](const engine::EngineStats& stats) { return stats.num_running + stats.num_queued == 1; }));
  for (const char* path : {"/v1/loads", "/get_load"}) {
    const json::Value load = body_of(http_get(server.port(), path));
    EXPECT_EQ(integer_at(load, "num_reqs"), 1);
    EXPECT_FALSE(*at(load, "is_draining").as_bool());
  }
  server.release();
}

TEST(AdminRoutes, FlushTheCache) {
  TestServer server;
  EXPECT_EQ(http_post(server.port(), "/flush_cache", "").status, 200);
  EXPECT_EQ(http_get(server.port(), "/flush_cache").status, 200);
  EXPECT_TRUE(server.serves());
}

TEST(AdminRoutes, AskTheModelForATokenOnceASecond) {
  TestServer server;
  const TestResponse first = http_get(server.port(), "/health_generate");
  EXPECT_EQ(first.status, 200) << first.body;
  EXPECT_EQ(integer_at(body_of(first), "usage.completion_tokens"), 1);
  TestResponse second;
  do {  // a slow machine may take a second for one
    second = http_get(server.port(), "/health_generate");
  } while (second.status == 200);
  EXPECT_EQ(second.status, 429);
  EXPECT_EQ(second.headers.count("retry-after"), 1U);
}

TEST(AbortRequest, EndsARequestById) {
  TestServer server;
  Running running(server, "X-Request-Id: mine\r\n");
  const TestResponse response = http_post(server.port(), "/abort_request", R"({"rid": "mine"})");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(integer_at(body_of(response), "aborted"), 1);
  const std::string rest = running.rest();
  EXPECT_THAT(rest, HasSubstr(R"("code":"aborted")"));
  EXPECT_THAT(rest, Not(HasSubstr("[DONE]")));
  server.release();
  EXPECT_TRUE(server.wait_for_stats(
      [](const engine::EngineStats& stats) { return stats.requests_cancelled_total == 1; }));
  EXPECT_EQ(integer_at(body_of(http_post(server.port(), "/abort_request", R"({"rid": "mine"})")),
                       "aborted"),
            0);
}

TEST(AbortRequest, KnowsTheIdsOfBodies) {
  for (const std::string key : {"rid", "request_id"}) {
    TestServer server;
    Running running(server, "", ", \"" + key + "\": \"mine\"");
    EXPECT_EQ(integer_at(body_of(http_post(server.port(), "/abort_request", R"({"rid": "mine"})")),
                         "aborted"),
              1);
    EXPECT_THAT(running.rest(), HasSubstr("aborted"));
  }
}

TEST(AbortRequest, WantsAnId) {
  TestServer server;
  for (const char* body : {"{}", "[]", "{", R"({"rid": 3})", R"({"abort_all": "yes"})"}) {
    EXPECT_EQ(http_post(server.port(), "/abort_request", body).status, 400) << body;
  }
}

class WithKeys : public ::testing::Test {
 protected:
  const KeyFile keys_{"admin_test_keys", "anna\nbert\n"};
  const KeyFile admin_keys_{"admin_test_admin_keys", "root\n"};
};

TEST_F(WithKeys, ARequestIsVisibleToItsKeyOnly) {
  TestServer server(
      {.config = {.api_key_file = keys_.path(), .admin_key_file = admin_keys_.path()}});
  Running running(server, as("anna", "mine"));
  const auto abort_as = [&server](std::string_view key) {
    const TestResponse response =
        http_post(server.port(), "/abort_request", R"({"rid": "mine"})", bearer(key));
    return integer_at(body_of(response), "aborted");
  };
  EXPECT_EQ(abort_as("bert"), 0);
  EXPECT_EQ(abort_as("anna"), 1);
  EXPECT_THAT(running.rest(), HasSubstr(R"("code":"aborted")"));
}

TEST_F(WithKeys, AnAdministratorMayAbortAll) {
  TestServer server(
      {.config = {.api_key_file = keys_.path(), .admin_key_file = admin_keys_.path()}});
  Running annas(server, as("anna", "a"));
  Running berts(server, as("bert", "b"));
  const char* body = R"({"abort_all": true})";
  EXPECT_EQ(http_post(server.port(), "/abort_request", body, bearer("anna")).status, 403);
  const TestResponse response = http_post(server.port(), "/abort_request", body, bearer("root"));
  EXPECT_EQ(integer_at(body_of(response), "aborted"), 2);
  EXPECT_THAT(annas.rest(), HasSubstr(R"("code":"aborted")"));
  EXPECT_THAT(berts.rest(), HasSubstr(R"("code":"aborted")"));
}

TEST_F(WithKeys, AdminRoutesNeedAnAdminKey) {
  TestServer with_admin_key(
      {.config = {.api_key_file = keys_.path(), .admin_key_file = admin_keys_.path()}});
  EXPECT_EQ(http_post(with_admin_key.port(), "/flush_cache", "", bearer("anna")).status, 401);
  EXPECT_EQ(http_post(with_admin_key.port(), "/flush_cache", "", bearer("root")).status, 200);
  TestServer without({.config = {.api_key_file = keys_.path()}});
  EXPECT_EQ(http_post(without.port(), "/flush_cache", "", bearer("anna")).status, 403);
}

TEST_F(WithKeys, TheAdminPortServesAdministratorsOnly) {
  TestServer::Options options;
  options.config.http.admin.host = "127.0.0.1";
  options.config.api_key_file = keys_.path();
  options.config.admin_key_file = admin_keys_.path();
  TestServer server(std::move(options));
  const uint16_t admin = server.server().admin_port();
  ASSERT_NE(admin, 0);
  EXPECT_EQ(http_post(admin, "/flush_cache", "", bearer("root")).status, 200);
  EXPECT_EQ(http_get(admin, "/metrics", bearer("root")).status, 200);
  EXPECT_EQ(http_get(admin, "/metrics", bearer("anna")).status, 401);
  EXPECT_EQ(http_get(admin, "/health").status, 200);
  EXPECT_EQ(http_post(admin, "/v1/chat/completions", chat_body(), bearer("root")).status, 404);
  EXPECT_EQ(http_post(server.port(), "/flush_cache", "", bearer("root")).status, 404);
  EXPECT_EQ(http_post(server.port(), "/v1/chat/completions", chat_body(), bearer("anna")).status,
            200);
}

TEST(AdminPort, BeyondLoopbackNeedsAKey) {
  const auto server = Server::listen({.http = {.port = 0, .admin = {.host = "0.0.0.0"}}});
  ASSERT_FALSE(server.ok());
  EXPECT_THAT(server.error().message, HasSubstr("--admin-api-key-file"));
}

TEST(Metrics, SpeakOpenMetricsIfAsked) {
  TestServer server;
  EXPECT_EQ(server.chat(chat_body()).status, 200);
  const TestResponse response = http_get(
      server.port(), "/metrics", "Accept: application/openmetrics-text; version=1.0.0\r\n");
  EXPECT_THAT(response.headers.at("content-type"), HasSubstr("application/openmetrics-text"));
  EXPECT_THAT(response.body, ::testing::EndsWith("# EOF\n"));
  EXPECT_THAT(response.body, HasSubstr("# TYPE vllm:prompt_tokens counter\n"));
  EXPECT_THAT(response.body, HasSubstr("\nvllm:prompt_tokens_total{model_name=\"tiny\"} 5"));
  EXPECT_THAT(http_get(server.port(), "/metrics").body, Not(HasSubstr("# EOF")));
}

TEST(Metrics, HaveEveryNameThatDashboardsKnow) {
  TestServer server;
  EXPECT_EQ(server.chat(chat_body()).status, 200);
  const std::string text = http_get(server.port(), "/metrics").body;
  for (const char* name : {"sglang:num_running_reqs",
                           "sglang:num_queue_reqs",
                           "sglang:token_usage",
                           "sglang:num_used_tokens",
                           "sglang:kv_used_tokens",
                           "sglang:kv_available_tokens",
                           "sglang:kv_evictable_tokens",
                           "sglang:prompt_tokens_total",
                           "sglang:generation_tokens_total",
                           "sglang:cache_hit_rate",
                           "sglang:cached_tokens_total",
                           "sglang:time_to_first_token_seconds_bucket",
                           "sglang:inter_token_latency_seconds_bucket",
                           "sglang:time_per_output_token_seconds_bucket",
                           "sglang:e2e_request_latency_seconds_bucket",
                           "sglang:queue_time_seconds_bucket",
                           "sglang:num_requests_total",
                           "sglang:num_aborted_requests_total",
                           "sglang:num_retracted_requests_total",
                           "sglang:gen_throughput",
                           "sglang:weight_load_duration_seconds",
                           "vllm:num_requests_running",
                           "vllm:num_requests_waiting",
                           "vllm:kv_cache_usage_perc",
                           "vllm:prompt_tokens_total",
                           "vllm:generation_tokens_total",
                           "vllm:prefix_cache_queries_total",
                           "vllm:prefix_cache_hits_total",
                           "vllm:time_to_first_token_seconds_bucket",
                           "vllm:inter_token_latency_seconds_bucket",
                           "vllm:request_time_per_output_token_seconds_bucket",
                           "vllm:e2e_request_latency_seconds_bucket",
                           "vllm:request_queue_time_seconds_bucket",
                           "vllm:request_prefill_time_seconds_bucket",
                           "vllm:request_decode_time_seconds_bucket",
                           "vllm:request_success_total",
                           "vllm:num_preemptions_total",
                           "nibble_longest_token_gap_seconds",
                           "nibble_stalled_seconds",
                           "nibble_steps_total",
                           "nibble_buffered_body_bytes"}) {
    EXPECT_THAT(text, HasSubstr(fmt::format("\n{}{{", name))) << name;
  }
}

}  // namespace
}  // namespace nibble::server
