#include "server/request_log.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "server/request_record.h"
#include "server/server_testing.h"

namespace nibble::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A log file in the temporary directory that goes with the object.
class LogFile final {
 public:
  explicit LogFile(std::string_view name)
      : path_(Path(::testing::TempDir()) / fmt::format("nibble_{}.{}.log", name, ::getpid())) {}
  ~LogFile() { std::filesystem::remove(path_); }
  const Path& path() const { return path_; }

  // The lines as JSON, once there are `count`.
  std::vector<json::Value> wait_for(size_t count) const {
    std::vector<json::Value> lines;
    while (lines.size() < count) {
      lines.clear();
      const Result<std::string> text = read_file(path_, 1 << 20);
      std::string_view rest = text.ok() ? std::string_view(*text) : std::string_view();
      for (size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
        lines.push_back(json::parse(rest.substr(0, end)).value());
        rest.remove_prefix(end + 1);
      }
    }
    return lines;
  }

 private:
  Path path_;
};

TEST(RequestLog, HasOneLineOfJsonPerRequest) {
  const LogFile log("request_log");
  TestServer server({.config = {.request_log = log.path()}});
  EXPECT_EQ(http_post(server.port(),
                      "/v1/chat/completions",
                      chat_body(R"(, "max_tokens": 2)"),
                      "X-Request-Id: cut\r\n")
                .status,
            200);
  EXPECT_EQ(server.chat(chat_body(R"(, "n": 2)")).status, 200);
  EXPECT_EQ(server.chat("{}").status, 400);
  EXPECT_EQ(http_get(server.port(), "/nothing?secret=query").status, 404);
  const std::vector<json::Value> lines = log.wait_for(4);
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(text_at(lines[0], "id"), "cut");
  EXPECT_EQ(text_at(lines[0], "path"), "/v1/chat/completions");
  EXPECT_EQ(integer_at(lines[0], "status"), 200);
  EXPECT_EQ(text_at(lines[0], "end"), "length");
  EXPECT_EQ(integer_at(lines[0], "prompt_tokens"), 5);
  EXPECT_EQ(integer_at(lines[0], "completion_tokens"), 2);
  EXPECT_EQ(integer_at(lines[1], "choices"), 2);
  EXPECT_EQ(text_at(lines[1], "end"), "stop");
  EXPECT_EQ(integer_at(lines[2], "status"), 400);
  EXPECT_EQ(text_at(lines[3], "path"), "/nothing");
}

TEST(RequestLog, SaysHowARequestEnded) {
  const LogFile log("request_log_ends");
  TestServer server({.config = {.request_log = log.path()},
                     .engine = {.max_queued_requests = 1, .eos_token_ids = {kTinyEos}}});
  server.hold();
  {
    TestClient client(server.port());
    client.send(
        post_request("/v1/chat/completions", chat_body(R"(, "stream": true, "ignore_eos": true)")));
    client.read_until("assistant");
  }
  const json::Value left = log.wait_for(1)[0];
  EXPECT_EQ(text_at(left, "end"), "disconnect");
  EXPECT_EQ(integer_at(left, "status"), 499);
  EXPECT_EQ(integer_at(left, "prompt_tokens"), 5);
  EXPECT_EQ(integer_at(left, "completion_tokens"), 0);  // the model is held before the first
  EXPECT_EQ(server.chat(chat_body(R"(, "n": 16)")).status, 429);
  EXPECT_EQ(integer_at(log.wait_for(2)[1], "status"), 429);
}

TEST(RequestRecord, CountsWhatAChoiceGotBeforeItWasLeft) {
  const TimePoint start{};
  ChoiceProgress choice{.prompt_tokens = 5};
  RequestRecord record;
  record.add(choice);
  choice.note_output(1, start);
  choice.note_output(2, start + std::chrono::seconds(1));
  choice.note_output(1, start + std::chrono::seconds(4));
  record.add(choice);
  EXPECT_EQ(record.prompt_tokens, 10);
  EXPECT_EQ(record.completion_tokens, 4);
  EXPECT_EQ(record.decode_seconds, 4);
  EXPECT_EQ(record.longest_gap_seconds, 3);
}

TEST(RequestLog, NeverHoldsText) {
  const LogFile log("request_log_text");
  TestServer server({.config = {.request_log = log.path()}});
  server.set_answer("An answer nobody else may read.");
  const std::string body = R"({"messages": [{"role": "user", "content": "Top secret question"}]})";
  EXPECT_EQ(server.chat(body).status, 200);
  log.wait_for(1);
  const std::string text = read_file(log.path(), 1 << 20).value();
  EXPECT_THAT(text, Not(HasSubstr("secret")));
  EXPECT_THAT(text, Not(HasSubstr("answer")));
}

TEST(RequestLog, EscapesWhatClientsChoose) {
  HttpRequest request;
  request.id = "id";
  request.method = "GET\"\n";
  request.path = std::string(10'000, 'x');
  const std::string line =
      to_json_line({.request = request, .owner = {.value = 0xab}, .status = 404});
  EXPECT_LT(line.size(), 600U);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const json::Value parsed = json::parse(line).value();
  EXPECT_EQ(text_at(parsed, "method"), "GET\"\n");
  EXPECT_EQ(text_at(parsed, "key"), "00000000000000ab");
}

TEST(RequestLog, SaysWhyAFileCannotBeWritten) {
  const auto server =
      Server::listen({.http = {.port = 0}, .request_log = Path("/nonexistent/log")});
  ASSERT_FALSE(server.ok());
  EXPECT_THAT(server.error().message, HasSubstr("/nonexistent/log"));
}

}  // namespace
}  // namespace nibble::server
