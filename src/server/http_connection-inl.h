// Private to the HTTP server: one client's connection, and what all connections share. Included
// only by its parts, as it shows the sockets' library. Owner: the I/O thread.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "server/body_budget.h"
#include "server/http_parser.h"
#include "server/http_server.h"

namespace nibble::server {

class Connection;

// What connections need from their server: its configuration, its handlers, and its limits on all
// of them together.
class ConnectionContext final {
 public:
  ConnectionContext(const HttpConfig& config, HttpHandlers handlers);

  const HttpConfig& config() const { return config_; }
  const HttpHandlers& handlers() const { return handlers_; }
  HttpLimits limits() const;
  void set_body_limit(uint64_t bytes) { body_bytes_max_.store(bytes, std::memory_order_relaxed); }
  const std::shared_ptr<BodyBudget>& body_budget() const { return body_budget_; }

  // The admin port stays reachable when clients have taken all connections of the other one.
  bool has_room(Listener listener) const;
  void add(std::shared_ptr<Connection> connection);
  void remove(Connection* connection);
  void close_all();
  int32_t num_connections() const { return num_connections_.load(std::memory_order_relaxed); }

  // Any thread.
  void add_busy(int32_t delta);
  bool wait_until_idle(Duration timeout);

 private:
  const HttpConfig config_;
  const HttpHandlers handlers_;
  std::atomic<uint64_t> body_bytes_max_;
  // Shared with requests, which may outlive the server in a parser's queue.
  const std::shared_ptr<BodyBudget> body_budget_;
  // At most max_connections and the reserve of the admin port.
  std::unordered_map<Connection*, std::shared_ptr<Connection>> connections_;
  std::atomic<int32_t> num_connections_ = 0;

  std::mutex mutex_;
  std::condition_variable idle_;
  int32_t num_busy_ = 0;  // requests whose response is not yet sent
};

// Links the handles of an exchange to its connection while that still serves it.
class Exchange::Impl final {
 public:
  Impl(Connection* served_by, std::string id) : connection(served_by), request_id(std::move(id)) {}

  Connection* connection;  // null once the exchange has ended
  const std::string request_id;
  std::function<void(Gone)> on_gone;
  std::optional<Gone> gone;  // why it ended before its response was handed over
  std::string note;
};

// One client. Requests are answered strictly one after the other, in order.
class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  using ErrorCode = boost::system::error_code;

  Connection(Socket socket, Listener listener, ConnectionContext& context);

  void start();
  void close(Gone why);

  // The exchange's side; see there.
  void watch(std::function<void(Gone)> callback);
  void watch_deadline(TimePoint deadline, std::function<void()> callback);
  void respond(const HttpResponse& response);
  void start_stream(const HttpResponse& head, Exchange::Heartbeat heartbeat);
  void write(std::string_view bytes);
  void finish_stream();

 private:
  enum class Phase {
    kReceiving,   // a request
    kResponding,  // the handler has it, or its response is being sent
    kLingering,   // response sent early; reading on so that the client can see it
    kClosed,
  };
  enum class Receiving { kFirstBytes, kHead, kBody };
  using Expiry = void (Connection::*)();

  const HttpConfig& config() const { return context_.config(); }

  void read_more();
  void on_read(ErrorCode code, size_t num_bytes);
  void on_read_end(ErrorCode code);
  void advance();
  bool hold_body();
  void refuse_body();
  void on_need_more();
  void on_head();
  void finish_empty_body();
  void on_receive_timeout();

  void dispatch();
  void begin_exchange();
  void on_refused(const HttpResponse& response);
  void refuse(const HttpResponse& response);
  void respond_fault(int status, std::string_view text);

  void append_piece(std::string_view bytes);
  void complete(int status);
  void end_exchange(int status);
  void flush();
  void write_more();
  void on_written(ErrorCode code, size_t num_bytes);
  void on_heartbeat() { write(heartbeat_.text); }
  void on_write_timeout() { close(Gone::kSlowReader); }
  void on_response_sent();

  void shut_down();
  void linger();
  void on_lingering_bytes(size_t num_bytes);
  void set_busy(bool is_busy);

  // At most one thing is waited for.
  void wait_within(Duration timeout, Expiry expiry);
  void stop_waiting() { on_expiry_ = nullptr; }
  void arm_timer();
  void on_timer();

  // A read takes at most so much.
  static constexpr size_t kReadChunk = 16 << 10;

  Socket socket_;
  const Listener listener_;
  // Streams wait for something else with every piece. The timer runs on meanwhile, looks when it
  // ends what is waited for by then, and is set anew only for what ends earlier.
  boost::asio::steady_timer timer_;
  std::optional<TimePoint> timer_end_;  // when it is running
  TimePoint wait_end_;
  Expiry on_expiry_ = nullptr;                // null: nothing is waited for
  boost::asio::steady_timer deadline_timer_;  // of the exchange
  ConnectionContext& context_;
  Phase phase_ = Phase::kReceiving;

  HttpParser parser_;
  Receiving receiving_ = Receiving::kFirstBytes;
  std::array<char, kReadChunk> chunk_;
  std::string input_;  // at most a head, or what may be sent ahead while responding, and one chunk
  bool is_reading_ = false;
  bool is_peer_done_ = false;
  size_t num_lingered_ = 0;

  HttpRequest head_;                               // of the current request, without its body
  std::shared_ptr<BodyBudget::Share> body_share_;  // of the body that is arriving
  std::shared_ptr<Exchange::Impl> exchange_;
  bool keep_alive_ = false;
  bool must_linger_ = false;
  bool is_busy_ = false;

  bool is_streaming_ = false;
  bool is_chunked_ = false;
  int stream_status_ = 200;
  Exchange::Heartbeat heartbeat_;

  // Handed over, not yet given to the socket; of streams at most max_unsent_bytes.
  std::string output_;
  std::string in_flight_;  // being written
  size_t num_written_ = 0;
  bool is_writing_ = false;
};

}  // namespace nibble::server
