#include "server/status_page.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <regex>

#include "server/http_testing.h"
#include "server/server_testing.h"

namespace nibble::server {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kFiles[] = {"/",
                                  "/status/page.css",
                                  "/status/main.js",
                                  "/status/api.js",
                                  "/status/status.js",
                                  "/status/chat.js",
                                  "/status/icon.svg"};

std::string header_of(const TestResponse& response, const std::string& name) {
  const auto found = response.headers.find(name);
  return found == response.headers.end() ? std::string() : found->second;
}

Path write_keys(std::string_view name, std::string_view keys) {
  const Path file = Path(testing::TempDir()) / fmt::format("{}.{}", name, ::getpid());
  std::ofstream(file) << keys;
  std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  return file;
}

json::Value status_of(TestServer& server) {
  const TestResponse response = http_get(server.port(), "/status/data");
  EXPECT_EQ(response.status, 200);
  return json::parse(response.body).value();
}

TEST(StatusPage, EveryFileForbidsEverythingForeign) {
  TestServer server;
  for (const char* path : kFiles) {
    const TestResponse response = http_get(server.port(), path);
    EXPECT_EQ(response.status, 200) << path;
    const std::string policy = header_of(response, "content-security-policy");
    EXPECT_THAT(policy, HasSubstr("default-src 'none'; script-src 'self'; style-src 'self'"));
    EXPECT_THAT(policy, HasSubstr("require-trusted-types-for 'script'"));
    EXPECT_THAT(policy, Not(HasSubstr("unsafe")));
    EXPECT_EQ(header_of(response, "x-content-type-options"), "nosniff");
    EXPECT_THAT(header_of(response, "content-type"), testing::MatchesRegex("(text|image)/.*"))
        << path;
  }
  EXPECT_EQ(header_of(http_get(server.port(), "/"), "content-type"), "text/html; charset=utf-8");
}

TEST(StatusPage, IsWhatItsDirectoryHolds) {
  const Path directory = Path(NIBBLE_SOURCE_DIR) / "src/server/status_page";
  size_t num_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    EXPECT_EQ(status_page_text(name), read_file(entry.path(), 1 << 20).value()) << name;
    ++num_files;
  }
  EXPECT_EQ(num_files, std::size(kFiles));
}

// Scripts and styles come from files of our own, and text never becomes markup.
TEST(StatusPage, HasNoInlineCodeNoForeignResourceAndNoMarkupFromText) {
  const std::string page(status_page_text("index.html"));
  EXPECT_FALSE(
      std::regex_search(page, std::regex("<script>|<style|style=|\\son[a-z]+=|javascript:")));
  for (const char* name : {"index.html", "page.css", "main.js", "api.js", "status.js", "chat.js"}) {
    const std::string text(status_page_text(name));
    EXPECT_THAT(text, Not(HasSubstr("://"))) << name;
    EXPECT_FALSE(std::regex_search(
        text,
        std::regex("innerHTML|outerHTML|insertAdjacent|document\\.write|\\beval\\b|new Function")))
        << name;
  }
}

TEST(StatusPage, OtherPathsOfItsFolderAreNotThere) {
  TestServer server;
  for (const char* path : {"/status/", "/status/index.html", "/status/../api.h", "/status"}) {
    EXPECT_EQ(http_get(server.port(), path).status, 404) << path;
  }
  EXPECT_EQ(http_post(server.port(), "/", "{}").status, 405);
}

TEST(StatusPage, TheDataHoldsModelKernelsLoadAndTotals) {
  TestServer::Options options;
  options.model.kernels = {{"attn.wq_a", "matmul.bf16", "first choice"}};
  TestServer server(options);
  server.chat_json(chat_body());
  const json::Value data = status_of(server);
  EXPECT_EQ(text_at(data, "model.names.0"), "tiny");
  EXPECT_EQ(text_at(data, "version"), "1.2.3");
  EXPECT_EQ(text_at(data, "state"), "ready");
  EXPECT_EQ(text_at(data, "kernels.0.layer_class"), "attn.wq_a");
  EXPECT_EQ(text_at(data, "kernels.0.reason"), "first choice");
  EXPECT_EQ(integer_at(data, "load.running"), 0);
  EXPECT_EQ(integer_at(data, "load.kv_pages_total"), 64);
  EXPECT_GT(integer_at(data, "totals.generation_tokens"), 0);
  EXPECT_EQ(text_at(data, "recent.0.outcome"), "stop");
  EXPECT_GT(integer_at(data, "recent.0.prompt_tokens"), 0);
  EXPECT_GT(integer_at(data, "recent.0.completion_tokens"), 0);
}

TEST(StatusPage, TheDataHoldsNoTextOfRequestsAndNoId) {
  TestServer server;
  server.set_answer("A secret answer.");
  http_post(server.port(),
            "/v1/chat/completions",
            R"({"messages": [{"role": "user", "content": "zanzibar"}], "user": "mallory"})");
  const std::string data = http_get(server.port(), "/status/data").body;
  EXPECT_THAT(data, HasSubstr("\"outcome\""));
  for (const char* text : {"zanzibar", "secret", "mallory", "chatcmpl", "chat-"}) {
    EXPECT_THAT(data, Not(HasSubstr(text)));
  }
}

TEST(StatusPage, TheListOfRequestsIsBounded) {
  RecentRequests recent;
  for (int32_t i = 0; i < 200; ++i) recent.add({.usage = {.prompt_tokens = i}});
  ASSERT_EQ(recent.newest_first().size(), RecentRequests::kCapacity);
  EXPECT_EQ(recent.newest_first().front().usage.prompt_tokens, 199);
}

TEST(StatusPage, WithKeysThePageIsPublicAndItsDataIsNot) {
  TestServer::Options options;
  options.config.api_key_file = write_keys("status_page_keys", "sesame\n");
  TestServer server(options);
  EXPECT_EQ(http_get(server.port(), "/").status, 200);
  EXPECT_EQ(http_get(server.port(), "/status/chat.js").status, 200);
  EXPECT_EQ(http_get(server.port(), "/status/data").status, 401);
}

TEST(StatusPage, AKeySeesItsOwnRequestsAndTheAdminKeySeesAll) {
  TestServer::Options options;
  options.config.api_key_file = write_keys("status_page_two_keys", "anna\nbert\n");
  options.config.admin_key_file = write_keys("status_page_admin_key", "admin\n");
  TestServer server(options);
  const auto ask = [&](std::string_view key) {
    const std::string header = fmt::format("authorization: Bearer {}\r\n", key);
    return http_post(server.port(), "/v1/chat/completions", chat_body(), header).status;
  };
  const auto count = [&](std::string_view key) {
    const std::string header = fmt::format("authorization: Bearer {}\r\n", key);
    const TestResponse response = http_get(server.port(), "/status/data", header);
    return at(json::parse(response.body).value(), "recent").as_array()->size();
  };
  EXPECT_EQ(ask("anna"), 200);
  EXPECT_EQ(ask("anna"), 200);
  EXPECT_EQ(ask("bert"), 200);
  EXPECT_EQ(count("anna"), 2U);
  EXPECT_EQ(count("bert"), 1U);
  EXPECT_EQ(count("admin"), 3U);
}

}  // namespace
}  // namespace nibble::server
