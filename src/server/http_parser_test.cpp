#include "server/http_parser.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

namespace nibble::server {
namespace {

using State = HttpParser::State;

constexpr HttpLimits kLimits = {.header_bytes = 4096, .body_bytes = 1000};

// Feeds `bytes` in pieces of `step`, keeping what the parser leaves, until done or faulty.
State feed_in_steps(HttpParser& parser, std::string_view bytes, size_t step) {
  std::string input;
  for (size_t at = 0; at < bytes.size(); at += step) {
    input += bytes.substr(at, step);
    while (true) {
      const HttpParser::Progress progress = parser.feed(input);
      input.erase(0, progress.num_used);
      if (progress.state == State::kDone || progress.state == State::kFault) return progress.state;
      if (progress.state == State::kNeedMore) break;
    }
  }
  return parser.feed(input).state;
}

std::string repeated(std::string_view text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

TEST(HttpParser, GivesTheSameRequestForEverySplit) {
  const std::string bytes =
      "POST /v1/x?y=1 HTTP/1.1\r\nHost: a\r\nX-Request-Id: id1\r\nContent-Length: 5\r\n\r\nhello";
  for (size_t step = 1; step <= bytes.size(); ++step) {
    HttpParser parser(kLimits);
    ASSERT_EQ(feed_in_steps(parser, bytes, step), State::kDone) << step;
    const HttpRequest request = parser.take_request();
    EXPECT_EQ(request.method, "POST");
    EXPECT_EQ(request.target, "/v1/x?y=1");
    EXPECT_EQ(request.path, "/v1/x");
    EXPECT_EQ(*request.header("x-request-ID"), "id1");
    EXPECT_EQ(request.body, "hello");
    EXPECT_TRUE(request.keep_alive);
  }
}

TEST(HttpParser, JudgesAHeadWhenItIsComplete) {
  const std::string head = "POST / HTTP/1.1\r\nContent-Length: 5\xec\nHost: a\r\n";
  for (size_t step = 1; step <= head.size(); ++step) {
    HttpParser parser(kLimits);
    ASSERT_EQ(feed_in_steps(parser, head, step), State::kNeedMore) << step;
    ASSERT_EQ(parser.feed(head + "\r\n").state, State::kFault) << step;
    EXPECT_EQ(parser.fault_status(), 400);
  }
}

TEST(HttpParser, JudgesAHeadWithoutWhatFollowsIt) {
  const std::string bytes = "POST /v0/Content-Length: 3\r\n\r\n{}GET ";
  for (size_t step = 1; step <= bytes.size(); ++step) {
    HttpParser parser(kLimits);
    ASSERT_EQ(feed_in_steps(parser, bytes, step), State::kFault) << step;
    EXPECT_EQ(parser.fault_status(), 400) << step;
  }
}

TEST(HttpParser, JoinsChunksForEverySplit) {
  const std::string bytes =
      "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: "
      "chunked\r\n\r\n3\r\nabc\r\n4;ext=1\r\ndefg\r\n0\r\n\r\n";
  for (size_t step = 1; step <= bytes.size(); ++step) {
    HttpParser parser(kLimits);
    ASSERT_EQ(feed_in_steps(parser, bytes, step), State::kDone) << step;
    EXPECT_EQ(parser.take_request().body, "abcdefg");
  }
}

TEST(HttpParser, RefusesMalformedTrailers) {
  const std::string head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const char* body : {"0\r\nHt:\r\n\n", "0\r\nHt\r\n\r\n", "0\r\n \r\n\r\n"}) {
    for (const size_t step : {size_t{1}, size_t{1000}}) {
      HttpParser parser(kLimits);
      EXPECT_EQ(feed_in_steps(parser, head + body, step), State::kFault) << body;
      EXPECT_EQ(parser.fault_status(), 400);
    }
  }
}

TEST(HttpParser, LeavesTheNextRequestAlone) {
  const std::string first = "GET /a HTTP/1.1\r\nHost: a\r\n\r\n";
  HttpParser parser(kLimits);
  const HttpParser::Progress head = parser.feed(first + "GET /b HTTP/1.1\r\n");
  EXPECT_EQ(head.state, State::kHead);
  EXPECT_EQ(head.num_used, first.size());
  EXPECT_EQ(parser.feed("GET /b HTTP/1.1\r\n").state, State::kDone);
}

TEST(HttpParser, RefusesMalformedRequestsWithAStatus) {
  const std::vector<std::tuple<std::string, int>> cases = {
      {"nonsense\r\n\r\n", 400},
      {"GET / HTTP/3.0\r\nHost: a\r\n\r\n", 505},
      {"GET / HTTP/1.1\r\nHost a\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHo st: a\r\n\r\n", 400},
      {"GET  / HTTP/1.1\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nContent-Length: abc\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nContent-Length: 1001\r\n\r\n", 413},
      {"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
      {"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" + std::string(1001, 'x'),
       413},
      {"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n", 400},
      {"GET / HTTP/1.1\r\nX: " + std::string(5000, 'x') + "\r\n\r\n", 431},
      {"GET /" + std::string(5000, 'x') + " HTTP/1.1\r\n\r\n", 431},
      {"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501},
      {"POST / HTTP/1.1\r\nTransfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n", 501},
      {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n" + repeated("A: b\r\n", 1000), 431},
      {"GET / HTTP/1.1\r\n" + repeated("A: b\r\n", 1000) + "\r\n", 431},
      {std::string("GET /\0 HTTP/1.1\r\n\r\n", 19), 400},
  };
  for (const auto& [bytes, status] : cases) {
    for (const size_t step : {size_t{1}, bytes.size()}) {
      HttpParser parser(kLimits);
      EXPECT_EQ(feed_in_steps(parser, bytes, step), State::kFault) << bytes.substr(0, 80);
      EXPECT_EQ(parser.fault_status(), status) << bytes.substr(0, 80);
      EXPECT_STRNE(parser.fault_text(), "");
    }
  }
}

TEST(HttpParser, SeesExpectContinueOnlyWhileABodyIsDue) {
  HttpParser with_body(kLimits);
  with_body.feed("POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_TRUE(with_body.expects_continue());
  HttpParser old(kLimits);
  old.feed("POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_FALSE(old.expects_continue());
}

TEST(HttpParser, KeepsHttp10ConnectionsOnlyOnRequest) {
  HttpParser plain(kLimits);
  plain.feed("GET / HTTP/1.0\r\n\r\n");
  EXPECT_FALSE(plain.request().keep_alive);
  HttpParser asked(kLimits);
  asked.feed("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_TRUE(asked.request().keep_alive);
}

}  // namespace
}  // namespace nibble::server
