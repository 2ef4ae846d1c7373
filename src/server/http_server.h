// The transport: accepts connections, reads requests, writes responses and streams. Knows HTTP,
// nothing of models. One I/O thread owns all connections; handlers run on it and must not block.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "server/http_message.h"
#include "server/http_parser.h"

namespace nibble::server {

struct BindAddress {
  std::string host = "127.0.0.1";  // an address, or "localhost"
  uint16_t port = 0;               // 0: any free one
};

struct HttpConfig {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;
  BindAddress admin = {.host = ""};  // a second port, for Listener::kAdmin; no host: none
  HttpLimits limits = {};
  uint64_t max_buffered_body_bytes = 256 << 20;  // of all bodies that are not yet parsed
  int32_t max_connections = 512;
  size_t max_unsent_bytes = 1 << 20;  // of a stream; a client that reads slower is cut off

  Duration header_timeout =
      std::chrono::seconds(10);  // from the first byte (or accept) to the end of the head
  Duration body_timeout = std::chrono::seconds(60);   // for the whole body
  Duration idle_timeout = std::chrono::seconds(75);   // between requests of a connection
  Duration write_timeout = std::chrono::seconds(30);  // without any byte taken by the client
  Duration linger_timeout = std::chrono::seconds(2);  // reading on after an early response
};

// Why an exchange ended before its response was complete.
enum class Gone {
  kDisconnect,  // the client closed its side or the connection broke
  kSlowReader,  // more than max_unsent_bytes waited, or a write timed out
  kStopped,     // the server stops
};

// Tasks for the I/O thread from any thread. Outlives the server: tasks posted after its end are
// dropped.
class IoThread final {
 public:
  explicit IoThread(std::function<void(std::function<void()>)> post);
  ~IoThread();
  void post(std::function<void()> task);
  void close();  // no task starts after the return of the server's stop()

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The response side of one request. A cheap handle: copies mean the same exchange. All calls on the
// I/O thread; calls after the end do nothing.
class Exchange final {
 public:
  class Impl;
  explicit Exchange(std::shared_ptr<Impl> impl);

  bool is_open() const;
  const std::string& request_id() const;

  // The whole response at once.
  void respond(const HttpResponse& response);

  // Or a stream: the head (its body is ignored), pieces as they come, the end. Whenever nothing was
  // sent for `interval`, `text` goes out, so that proxies do not give up on a long prefill.
  struct Heartbeat {
    std::string text;
    Duration interval = std::chrono::seconds(15);
  };
  void start_stream(const HttpResponse& head, Heartbeat heartbeat);
  void write(std::string_view bytes);
  void finish_stream();

  // Called at most once, when the exchange ends before its response was handed over completely; at
  // once if the client has left already. Set it before costly work: only then does a half-closed
  // connection count as left.
  void on_gone(std::function<void(Gone)> callback);
  // For HttpOutcome. Before the response is complete, or from on_gone's callback.
  void set_note(std::string note);
  // Calls back when the exchange is still open at `deadline`. One per exchange.
  void at_deadline(TimePoint deadline, std::function<void()> callback);

 private:
  std::shared_ptr<Impl> impl_;  // shared with the connection, which may die first
};

// A response that has been handed over, or a client that left before.
struct HttpOutcome {
  const HttpRequest* request = nullptr;  // without its body; null for a fault before its head
  int status = 0;
  Duration elapsed{};
  std::string_view note;  // what set_note() said
};

struct HttpHandlers {
  // After the head, before the body is read: a response here refuses the request and ends the
  // connection.
  std::function<std::optional<HttpResponse>(const HttpRequest&)> check_head;
  std::function<void(HttpRequest, Exchange)> handle;
  // A response for a fault of the transport (status and text), e.g. 413.
  std::function<HttpResponse(int, std::string_view)> fault;
  // After each response: for logs and counters.
  std::function<void(const HttpOutcome&)> on_response;
};

class HttpServer final {
 public:
  // Binds and listens. kUnavailable when the address is in use, kInvalidArgument for a bad one.
  static Result<std::unique_ptr<HttpServer>> listen(const HttpConfig& config,
                                                    HttpHandlers handlers);
  ~HttpServer();  // stops

  uint16_t port() const;
  uint16_t admin_port() const;  // 0: there is none
  // From now on; before that, it is that of the configuration. Any thread.
  void set_body_limit(uint64_t bytes);
  const std::shared_ptr<IoThread>& io() const;  // shared with sinks that may outlive the server

  void start();  // runs the I/O thread
  // Calls back on the I/O thread at the first SIGTERM or SIGINT. Afterwards both have their default
  // action again, so that a second one ends the process at once.
  void on_signal(std::function<void(int)> callback);
  // Calls back on the I/O thread at every SIGHUP.
  void on_hangup(std::function<void()> callback);
  // Waits until no exchange is open, or `timeout` has passed. Any thread but the I/O thread.
  bool wait_until_idle(Duration timeout);
  // Closes everything and joins the I/O thread.
  void stop();

  int32_t num_connections() const;
  uint64_t num_buffered_body_bytes() const;

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// True when `host` ("localhost", 127.x.y.z, ::1) can be reached from this machine only. False for
// other names.
bool is_loopback_address(std::string_view host);

}  // namespace nibble::server
