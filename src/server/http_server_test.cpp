#include "server/http_server.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "server/http_testing.h"

namespace nibble::server {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

// A value set on the I/O thread and waited for by the test.
template <class T>
class Signal final {
 public:
  void set(T value) {
    const std::lock_guard lock(mutex_);
    value_ = value;
    ready_.notify_all();
  }
  std::optional<T> wait() {
    std::unique_lock lock(mutex_);
    ready_.wait_for(lock, std::chrono::seconds(20), [&] { return value_.has_value(); });
    return value_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::optional<T> value_;
};

// Echoes POST bodies at once; /hold and /think answer nothing; /stream opens a stream and sends one
// piece.
class HttpServerTest : public ::testing::Test {
 protected:
  void serve(HttpConfig config = {}) {
    config.port = 0;
    HttpHandlers handlers;
    handlers.check_head = [](const HttpRequest& head) -> std::optional<HttpResponse> {
      if (head.path == "/refused") return HttpResponse{.status = 403, .body = "no"};
      return std::nullopt;
    };
    handlers.handle = [this](HttpRequest request, Exchange exchange) {
      handle(std::move(request), std::move(exchange));
    };
    handlers.fault = [](int status, std::string_view text) {
      return HttpResponse{.status = status, .body = std::string(text)};
    };
    handlers.on_response = [this](const HttpOutcome& outcome) { last_status_.set(outcome.status); };
    auto server = HttpServer::listen(config, std::move(handlers));
    ASSERT_TRUE(server.ok()) << server.error().message;
    server_ = std::move(server).value();
    server_->start();
  }

  void handle(HttpRequest request, Exchange exchange) {
    if (request.path == "/hold" || request.path == "/stream") {
      exchange.on_gone([this](Gone why) { gone_.set(why); });
    }
    if (request.path == "/hold") return;
    if (request.path == "/think") {
      thinking_ = std::move(exchange);
      return is_thinking_.set(true);
    }
    if (request.path != "/stream") {
      return exchange.respond({.body = request.method + " " + request.body});
    }
    exchange.start_stream({.content_type = "text/event-stream"}, heartbeat_);
    exchange.write("data: 1\n\n");
    if (request.body == "end") exchange.finish_stream();
    if (request.body == "flood") flood(std::move(exchange));
  }

  // Writes without waiting for the client, until the server cuts the exchange off.
  void flood(Exchange exchange) {
    const std::string piece(64 << 10, 'x');
    while (exchange.is_open()) exchange.write(piece);
  }

  uint16_t port() const { return server_->port(); }

  Exchange::Heartbeat heartbeat_ = {.text = ": ping\n\n", .interval = hours(1)};
  Signal<Gone> gone_;
  Signal<bool> is_thinking_;
  std::optional<Exchange> thinking_;  // of /think
  Signal<int> last_status_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersAndKeepsTheConnection) {
  serve();
  TestClient client(port());
  for (int i = 0; i < 3; ++i) {
    client.send(post_request("/", "body"));
    const TestResponse response = client.read_response();
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.body, "POST body");
    EXPECT_EQ(response.headers.at("connection"), "keep-alive");
  }
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  serve();
  TestClient client(port());
  std::string bytes;
  for (int i = 0; i < 50; ++i) bytes += post_request("/", std::to_string(i));
  client.send(bytes);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(client.read_response().body, "POST " + std::to_string(i));
}

TEST_F(HttpServerTest, ReturnsTheCallersRequestIdIfItIsAToken) {
  serve();
  EXPECT_EQ(http_get(port(), "/", "X-Request-Id: abc-1.2_3\r\n").headers.at("x-request-id"),
            "abc-1.2_3");
  const std::string forged =
      http_get(port(), "/", "X-Request-Id: a b\x1b[1m\r\n").headers.at("x-request-id");
  EXPECT_TRUE(forged.starts_with("req-")) << forged;
}

TEST_F(HttpServerTest, SendsNoBodyToHead) {
  serve();
  TestClient client(port());
  client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
  const TestResponse response = client.read_response(/*is_head=*/true);
  EXPECT_EQ(response.headers.at("content-length"), "5");
  client.send(get_request("/"));
  EXPECT_EQ(client.read_response().body, "GET ");
}

TEST_F(HttpServerTest, InvitesABodyThatWaitsForContinue) {
  serve();
  TestClient client(port());
  client.send("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("ok");
  EXPECT_EQ(client.read_response().body, "POST ok");
}

TEST_F(HttpServerTest, IgnoresAnExpectationWithoutABody) {
  serve();
  EXPECT_EQ(http_get(port(), "/", "Expect: 100-continue\r\n").status, 200);
  TestClient old(port());  // HTTP/1.0 has no expectations
  old.send("POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nok");
  EXPECT_EQ(old.read_response().body, "POST ok");
}

TEST_F(HttpServerTest, RefusesOtherExpectations) {
  serve();
  EXPECT_EQ(http_get(port(), "/", "Expect: miracles\r\n").status, 417);
}

TEST_F(HttpServerTest, RefusesByHeadBeforeTheBodyIsSent) {
  serve();
  TestClient client(port());
  client.send("POST /refused HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
  const TestResponse response = client.read_response();
  EXPECT_EQ(response.status, 403);
  EXPECT_EQ(response.headers.at("connection"), "close");
}

TEST_F(HttpServerTest, ShowsTheRefusalOfALargeBodyToAClientThatSendsItAll) {
  serve({.limits = {.body_bytes = 1000}});
  TestClient client(port());
  client.send(post_request("/", std::string(10 << 20, 'x')));
  EXPECT_EQ(client.read_response().status, 413);
  EXPECT_EQ(http_post(port(), "/", "still here").body, "POST still here");
}

TEST_F(HttpServerTest, RefusesAHugeHeader) {
  serve();
  const TestResponse response = http_get(port(), "/", "X: " + std::string(40000, 'x') + "\r\n");
  EXPECT_EQ(response.status, 431);
  EXPECT_TRUE(response.headers.at("x-request-id").starts_with("req-"));
}

TEST_F(HttpServerTest, EndsAHeadThatTricklesIn) {
  serve({.header_timeout = milliseconds(50)});
  TestClient client(port());
  client.send("GET / HT");
  EXPECT_EQ(client.read_response().status, 408);
}

TEST_F(HttpServerTest, EndsABodyThatTricklesIn) {
  serve({.body_timeout = milliseconds(50)});
  TestClient client(port());
  client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_EQ(client.read_response().status, 408);
}

TEST_F(HttpServerTest, ClosesSilentConnections) {
  serve({.header_timeout = milliseconds(50)});
  TestClient client(port());
  EXPECT_EQ(client.read_to_end(), "");
}

TEST_F(HttpServerTest, TurnsConnectionsAwayBeyondTheCap) {
  serve({.max_connections = 1});
  TestClient first(port());
  first.send(get_request("/"));
  EXPECT_EQ(first.read_response().status, 200);
  TestClient second(port());
  const TestResponse refusal = second.read_response();
  EXPECT_EQ(refusal.status, 503);
  EXPECT_EQ(refusal.headers.at("retry-after"), "1");
}

TEST_F(HttpServerTest, ReportsADisconnectWhileTheHandlerWorks) {
  serve();
  TestClient client(port());
  client.send(get_request("/hold"));
  client.close();
  EXPECT_EQ(gone_.wait(), Gone::kDisconnect);
  EXPECT_EQ(last_status_.wait(), 499);
}

// Between a request and the work on it lies its parsing, on another thread.
TEST_F(HttpServerTest, ReportsAtOnceThatAClientHasLeftBefore) {
  serve();
  TestClient client(port());
  client.send(get_request("/think"));
  ASSERT_TRUE(is_thinking_.wait());
  client.reset();
  ASSERT_EQ(last_status_.wait(), 499);
  EXPECT_FALSE(thinking_->is_open());
  std::optional<Gone> why;
  thinking_->on_gone([&](Gone gone) { why = gone; });
  EXPECT_EQ(why, Gone::kDisconnect);
}

TEST_F(HttpServerTest, TakesHalfClosingForLeaving) {
  serve();
  TestClient client(port());
  client.send(get_request("/hold"));
  client.half_close();
  EXPECT_EQ(gone_.wait(), Gone::kDisconnect);
}

TEST_F(HttpServerTest, AnswersCheapRequestsOfHalfClosedConnections) {
  serve();
  TestClient client(port());
  client.send(get_request("/"));
  client.half_close();
  EXPECT_EQ(client.read_response().status, 200);
}

TEST_F(HttpServerTest, StreamsInChunksAndKeepsTheConnection) {
  serve();
  TestClient client(port());
  for (int i = 0; i < 2; ++i) {
    client.send(post_request("/stream", "end"));
    const TestResponse response = client.read_response();
    EXPECT_EQ(response.body, "data: 1\n\n");
    EXPECT_EQ(response.headers.at("content-type"), "text/event-stream");
  }
}

TEST_F(HttpServerTest, StreamsToHttp10UntilItCloses) {
  serve();
  TestClient client(port());
  client.send("POST /stream HTTP/1.0\r\nContent-Length: 3\r\n\r\nend");
  const std::string all = client.read_to_end();
  EXPECT_EQ(all.find("transfer-encoding"), std::string::npos);
  EXPECT_TRUE(all.ends_with("\r\n\r\ndata: 1\n\n")) << all;
}

TEST_F(HttpServerTest, SendsHeartbeatsWhileAStreamIsSilent) {
  heartbeat_.interval = milliseconds(20);
  serve();
  TestClient client(port());
  client.send(get_request("/stream"));
  client.read_until("data: 1");
  EXPECT_NE(client.read_until(": ping\n\n").find(": ping"), std::string::npos);
}

TEST_F(HttpServerTest, CutsOffAClientThatDoesNotRead) {
  serve({.max_unsent_bytes = 256 << 10});
  TestClient client(port());
  client.send(post_request("/stream", "flood"));
  EXPECT_EQ(gone_.wait(), Gone::kSlowReader);
}

TEST_F(HttpServerTest, CutsOffAClientThatSendsAheadWithoutEnd) {
  serve();
  TestClient client(port());
  client.send(get_request("/hold"));
  while (client.send(std::string(32 << 10, 'x'))) {
  }
  EXPECT_EQ(gone_.wait(), Gone::kDisconnect);
}

TEST_F(HttpServerTest, EndsOpenExchangesWhenItStops) {
  serve();
  TestClient client(port());
  client.send(get_request("/stream"));
  client.read_until("data: 1");
  EXPECT_FALSE(server_->wait_until_idle(milliseconds(1)));
  server_->stop();
  EXPECT_EQ(gone_.wait(), Gone::kStopped);
  EXPECT_TRUE(server_->wait_until_idle(milliseconds(0)));
}

TEST_F(HttpServerTest, DropsTasksPostedAfterItsEnd) {
  serve();
  const std::shared_ptr<IoThread> io = server_->io();
  server_.reset();
  io->post([] { FAIL() << "ran after the end"; });
}

TEST_F(HttpServerTest, SaysThatThePortIsTaken) {
  serve();
  const auto second = HttpServer::listen({.port = port()}, {});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, Errc::kUnavailable);
}

TEST(HttpServer, WantsAnAddress) {
  const auto server = HttpServer::listen({.host = "example.test"}, {});
  ASSERT_FALSE(server.ok());
  EXPECT_EQ(server.error().code, Errc::kInvalidArgument);
}

TEST(LoopbackAddress, CoversBothFamiliesAndTheName) {
  for (const char* host : {"localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "::1"}) {
    EXPECT_TRUE(is_loopback_address(host)) << host;
  }
  for (const char* host :
       {"0.0.0.0", "::", "10.0.0.1", "localhost.evil.test", "127.0.0.1.evil.test", ""}) {
    EXPECT_FALSE(is_loopback_address(host)) << host;
  }
}

}  // namespace
}  // namespace nibble::server
