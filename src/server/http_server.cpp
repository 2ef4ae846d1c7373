#include "server/http_server.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/log.h"

namespace nibble::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// Bytes that a client may send ahead while its request is being answered; more ends the connection.
// Reading on is what makes a disconnect visible at once.
constexpr size_t kReadAheadMax = 64 << 10;
constexpr size_t kReadChunk = 16 << 10;
// Read and thrown away after an early refusal, so that the client sees the response and not a
// reset.
constexpr size_t kLingerBytesMax = 64 << 20;
// Status in logs and counters of an exchange whose client left (nginx's convention).
constexpr int kStatusClientGone = 499;

class Connection;

// What connections need from their server. Owner: I/O thread, except for limits and the busy count.
class ConnectionContext final {
 public:
  ConnectionContext(const HttpConfig& config, HttpHandlers handlers)
      : config_(config),
        handlers_(std::move(handlers)),
        body_bytes_max_(config.limits.body_bytes),
        body_budget_(std::make_shared<BodyBudget>(config.max_buffered_body_bytes)) {}

  const HttpConfig& config() const { return config_; }
  const HttpHandlers& handlers() const { return handlers_; }
  HttpLimits limits() const {
    HttpLimits limits = config_.limits;
    limits.body_bytes = body_bytes_max_.load(std::memory_order_relaxed);
    return limits;
  }
  void set_body_limit(uint64_t bytes) { body_bytes_max_.store(bytes, std::memory_order_relaxed); }
  const std::shared_ptr<BodyBudget>& body_budget() const { return body_budget_; }

  void add(std::shared_ptr<Connection> connection);
  void remove(Connection* connection);
  void close_all();
  int32_t num_connections() const { return num_connections_.load(std::memory_order_relaxed); }

  void add_busy(int32_t delta) {
    const std::lock_guard lock(mutex_);
    num_busy_ += delta;
    if (num_busy_ == 0) idle_.notify_all();
  }
  bool wait_until_idle(Duration timeout) {
    std::unique_lock lock(mutex_);
    return idle_.wait_for(lock, timeout, [&] { return num_busy_ == 0; });
  }

 private:
  const HttpConfig config_;
  const HttpHandlers handlers_;
  std::atomic<uint64_t> body_bytes_max_;
  // Shared with requests, which may outlive the server in a parser's queue.
  const std::shared_ptr<BodyBudget> body_budget_;
  std::unordered_map<Connection*, std::shared_ptr<Connection>>
      connections_;  // at most max_connections
  std::atomic<int32_t> num_connections_ = 0;

  std::mutex mutex_;
  std::condition_variable idle_;
  int32_t num_busy_ = 0;  // requests whose response is not yet sent
};

}  // namespace

// Links the handles of an exchange to its connection while that still serves it.
class Exchange::Impl final {
 public:
  Impl(Connection* served_by, std::string id) : connection(served_by), request_id(std::move(id)) {}

  Connection* connection;  // null once the exchange has ended
  const std::string request_id;
  std::function<void(Gone)> on_gone;
  std::string note;
};

namespace {

// One client. Requests are answered strictly one after the other, in order.
class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, Listener listener, ConnectionContext& context)
      : socket_(std::move(socket)),
        listener_(listener),
        timer_(socket_.get_executor()),
        deadline_timer_(socket_.get_executor()),
        context_(context),
        parser_(context.limits()) {}

  void start() {
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    socket_.set_option(asio::socket_base::keep_alive(true),
                       ignored);  // finds clients that vanished
    wait_within(config().header_timeout, &Connection::on_receive_timeout);
    read_more();
  }

  void watch(std::function<void(Gone)> callback) {
    exchange_->on_gone = std::move(callback);
    if (is_peer_done_) close(Gone::kDisconnect);
  }

  void watch_deadline(TimePoint deadline, std::function<void()> callback) {
    deadline_timer_.expires_at(deadline);
    deadline_timer_.async_wait(
        [of = exchange_, callback = std::move(callback)](error_code cancelled) {
          if (!cancelled && of->connection != nullptr) callback();
        });
  }

  void close(Gone why) {
    if (phase_ == Phase::kClosed) return;
    phase_ = Phase::kClosed;
    const auto self = shared_from_this();  // the context's reference goes now
    cancel_timer();
    // The handler first: who sees the connection end may rely on the work having been called off.
    if (exchange_ != nullptr) {
      const auto callback = std::move(exchange_->on_gone);
      exchange_->connection = nullptr;  // nothing more can be written
      if (callback) callback(why);
      end_exchange(kStatusClientGone);
    }
    error_code ignored;
    socket_.close(ignored);
    set_busy(false);
    context_.remove(this);
  }

  void respond(const HttpResponse& response) {
    const bool has_body = response.status != 204;
    const std::string framing =
        has_body ? fmt::format("content-length: {}", response.body.size()) : std::string();
    output_ += serialize_head(response, exchange_->request_id, framing, keep_alive_);
    if (head_.method != "HEAD") output_ += response.body;
    complete(response.status);
  }

  void start_stream(const HttpResponse& head, Exchange::Heartbeat heartbeat) {
    is_streaming_ = true;
    is_chunked_ = head_.is_http11;
    keep_alive_ = keep_alive_ && is_chunked_;
    heartbeat_ = std::move(heartbeat);
    stream_status_ = head.status;
    output_ += serialize_head(
        head, exchange_->request_id, is_chunked_ ? "transfer-encoding: chunked" : "", keep_alive_);
    flush();
  }

  void write(std::string_view bytes) {
    if (bytes.empty()) return;
    append_piece(bytes);
    const size_t num_unsent = output_.size() + in_flight_.size() - num_written_;
    if (num_unsent > config().max_unsent_bytes) return close(Gone::kSlowReader);
    flush();
  }

  void finish_stream() {
    if (is_chunked_) output_ += "0\r\n\r\n";
    complete(stream_status_);
  }

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

  // --- reading

  void read_more() {
    if (is_reading_ || phase_ == Phase::kClosed || is_peer_done_) return;
    is_reading_ = true;
    socket_.async_read_some(asio::buffer(chunk_),
                            [self = shared_from_this()](error_code code, size_t num_bytes) {
                              self->is_reading_ = false;
                              self->on_read(code, num_bytes);
                            });
  }

  void on_read(error_code code, size_t num_bytes) {
    if (phase_ == Phase::kClosed) return;
    if (code) return on_read_end(code);
    if (phase_ == Phase::kLingering) return on_lingering_bytes(num_bytes);
    input_.append(chunk_.data(), num_bytes);
    if (phase_ == Phase::kReceiving) advance();
    if (phase_ == Phase::kResponding && input_.size() > kReadAheadMax)
      return close(Gone::kDisconnect);
    read_more();
  }

  // A client that closes its side has left as soon as its request costs something: half-closing
  // counts. Responses that need no further work are still sent.
  void on_read_end(error_code code) {
    const bool is_costly = exchange_ != nullptr && exchange_->on_gone != nullptr;
    if (code != asio::error::eof || phase_ != Phase::kResponding || is_costly) {
      return close(Gone::kDisconnect);
    }
    is_peer_done_ = true;
    keep_alive_ = false;
  }

  // Parses what has arrived, up to the end of one request.
  void advance() {
    while (phase_ == Phase::kReceiving && !input_.empty()) {
      const HttpParser::Progress progress = parser_.feed(input_);
      input_.erase(0, progress.num_used);
      switch (progress.state) {
        case HttpParser::State::kNeedMore:
          if (!hold_body()) return refuse_body();
          return on_need_more();
        case HttpParser::State::kHead:
          on_head();
          break;
        case HttpParser::State::kDone:
          if (!hold_body()) return refuse_body();
          return dispatch();
        case HttpParser::State::kFault:
          return respond_fault(parser_.fault_status(), parser_.fault_text());
      }
      if (phase_ == Phase::kReceiving && receiving_ == Receiving::kBody && input_.empty()) {
        finish_empty_body();
      }
    }
  }

  // Counts what has arrived of a body against what the whole server may hold.
  bool hold_body() {
    const uint64_t num_bytes = parser_.request().body.size();
    if (num_bytes == 0) return true;
    if (body_share_ == nullptr) {
      body_share_ = std::make_shared<BodyBudget::Share>(context_.body_budget());
    }
    return body_share_->grow_to(num_bytes);
  }

  void refuse_body() {
    body_share_.reset();
    respond_fault(429, "the server holds too many request bodies; try again later");
  }

  void on_need_more() {
    if (input_.size() > context_.limits().header_bytes + kReadChunk) {
      return respond_fault(400, "malformed HTTP request");
    }
    if (receiving_ != Receiving::kFirstBytes) return;
    receiving_ = Receiving::kHead;
    wait_within(config().header_timeout, &Connection::on_receive_timeout);
  }

  void on_head() {
    head_ = parser_.request();
    head_.listener = listener_;
    keep_alive_ = head_.keep_alive;
    const std::string* id = head_.header("x-request-id");
    head_.id = id != nullptr && is_request_id(*id) ? *id : make_id("req-");
    head_.received_at = std::chrono::steady_clock::now();
    receiving_ = Receiving::kBody;
    wait_within(config().body_timeout, &Connection::on_receive_timeout);
    if (auto refusal = context_.handlers().check_head(head_)) {
      return on_refused(*refusal);
    }
    const std::string* expect = head_.header("expect");
    if (expect != nullptr && !equals_ignoring_case(*expect, "100-continue")) {
      return respond_fault(417, "only Expect: 100-continue is understood");
    }
    if (!parser_.expects_continue()) return;
    output_ += "HTTP/1.1 100 Continue\r\n\r\n";
    flush();
  }

  // A request without a body is complete with its head, though no byte follows.
  void finish_empty_body() {
    const HttpParser::Progress progress = parser_.feed({});
    if (progress.state == HttpParser::State::kDone) dispatch();
  }

  void dispatch() {
    HttpRequest request = parser_.take_request();
    request.id = head_.id;
    request.received_at = head_.received_at;
    request.listener = listener_;
    request.body_share = std::move(body_share_);
    begin_exchange();
    context_.handlers().handle(std::move(request), Exchange(exchange_));
  }

  void begin_exchange() {
    phase_ = Phase::kResponding;
    cancel_timer();
    set_busy(true);
    exchange_ = std::make_shared<Exchange::Impl>(this, head_.id);
  }

  void on_refused(const HttpResponse& response) {
    const bool has_body = parser_.feed({}).state != HttpParser::State::kDone;
    if (has_body) return refuse(response);
    begin_exchange();
    respond(response);
  }

  // Answers before the request was read to its end; the connection cannot be used further.
  void refuse(const HttpResponse& response) {
    begin_exchange();
    keep_alive_ = false;
    must_linger_ = true;
    respond(response);
  }

  void respond_fault(int status, std::string_view text) {
    if (head_.id.empty()) head_.id = make_id("req-");
    refuse(context_.handlers().fault(status, text));
  }

  void on_receive_timeout() {
    const bool is_idle = receiving_ == Receiving::kFirstBytes && input_.empty();
    if (is_idle) return close(Gone::kDisconnect);
    respond_fault(408, "the request did not arrive in time");
  }

  // --- responding

  void append_piece(std::string_view bytes) {
    if (!is_chunked_) {
      output_.append(bytes);
      return;
    }
    fmt::format_to(std::back_inserter(output_), "{:x}\r\n", bytes.size());
    output_.append(bytes).append("\r\n");
  }

  // The whole response has been handed over.
  void complete(int status) {
    end_exchange(status);
    flush();
  }

  void end_exchange(int status) {
    deadline_timer_.cancel();
    exchange_->connection = nullptr;
    exchange_->on_gone = nullptr;
    const std::string note = std::move(exchange_->note);
    exchange_.reset();
    is_streaming_ = false;
    const Duration elapsed = std::chrono::steady_clock::now() - head_.received_at;
    context_.handlers().on_response({.request = head_.method.empty() ? nullptr : &head_,
                                     .status = status,
                                     .elapsed = elapsed,
                                     .note = note});
  }

  void flush() {
    if (is_writing_ || output_.empty()) return;
    in_flight_.clear();
    std::swap(in_flight_, output_);
    num_written_ = 0;
    is_writing_ = true;
    write_more();
  }

  void write_more() {
    if (phase_ == Phase::kResponding)
      wait_within(config().write_timeout, &Connection::on_write_timeout);
    const asio::const_buffer rest(in_flight_.data() + num_written_,
                                  in_flight_.size() - num_written_);
    socket_.async_write_some(rest, [self = shared_from_this()](error_code code, size_t num_bytes) {
      self->on_written(code, num_bytes);
    });
  }

  void on_written(error_code code, size_t num_bytes) {
    if (phase_ == Phase::kClosed) return;
    if (code) return close(Gone::kDisconnect);
    num_written_ += num_bytes;
    if (num_written_ < in_flight_.size()) return write_more();
    is_writing_ = false;
    in_flight_.clear();
    num_written_ = 0;
    if (!output_.empty()) return flush();
    if (phase_ != Phase::kResponding) return;
    cancel_timer();
    if (exchange_ == nullptr) return on_response_sent();
    if (is_streaming_) wait_within(heartbeat_.interval, &Connection::on_heartbeat);
  }

  void on_heartbeat() { write(heartbeat_.text); }
  void on_write_timeout() { close(Gone::kSlowReader); }

  void on_response_sent() {
    set_busy(false);
    if (must_linger_ && !is_peer_done_) return linger();
    if (!keep_alive_) return shut_down();
    head_ = {};
    parser_ = HttpParser(context_.limits());
    phase_ = Phase::kReceiving;
    receiving_ = Receiving::kFirstBytes;
    wait_within(config().idle_timeout, &Connection::on_receive_timeout);
    advance();
    read_more();
  }

  void shut_down() {
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_both, ignored);
    close(Gone::kDisconnect);
  }

  void linger() {
    phase_ = Phase::kLingering;
    input_.clear();
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    wait_within(config().linger_timeout, &Connection::shut_down);
    read_more();
  }

  void on_lingering_bytes(size_t num_bytes) {
    num_lingered_ += num_bytes;
    if (num_lingered_ > kLingerBytesMax) return shut_down();
    read_more();
  }

  void set_busy(bool is_busy) {
    if (is_busy == is_busy_) return;
    is_busy_ = is_busy;
    context_.add_busy(is_busy ? 1 : -1);
  }

  // --- time: at most one thing is waited for

  void wait_within(Duration timeout, Expiry expiry) {
    timer_.expires_after(timeout);
    timer_.async_wait(
        [self = shared_from_this(), expiry, ticket = ++timer_ticket_](error_code code) {
          const bool is_current = !code && ticket == self->timer_ticket_;
          if (is_current && self->phase_ != Phase::kClosed) (self.get()->*expiry)();
        });
  }
  void cancel_timer() {
    ++timer_ticket_;
    timer_.cancel();
  }

  tcp::socket socket_;
  const Listener listener_;
  asio::steady_timer timer_;
  asio::steady_timer deadline_timer_;  // of the exchange
  uint64_t timer_ticket_ = 0;
  ConnectionContext& context_;
  Phase phase_ = Phase::kReceiving;

  HttpParser parser_;
  Receiving receiving_ = Receiving::kFirstBytes;
  std::array<char, kReadChunk> chunk_;
  std::string input_;  // at most a head, or kReadAheadMax while responding, and one chunk
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

  std::string
      output_;  // handed over, not yet given to the socket; streams: at most max_unsent_bytes
  std::string in_flight_;  // being written
  size_t num_written_ = 0;
  bool is_writing_ = false;
};

void ConnectionContext::add(std::shared_ptr<Connection> connection) {
  Connection* const key = connection.get();
  connections_.emplace(key, std::move(connection));
  num_connections_.fetch_add(1, std::memory_order_relaxed);
}

void ConnectionContext::remove(Connection* connection) {
  if (connections_.erase(connection) == 1) num_connections_.fetch_sub(1, std::memory_order_relaxed);
}

void ConnectionContext::close_all() {
  auto closing = connections_;
  for (const auto& entry : closing) entry.second->close(Gone::kStopped);
}

// Best effort: the client may see a reset instead when it has sent something already.
void turn_away(tcp::socket socket) {
  constexpr std::string_view kResponse =
      "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
      "content-length: 114\r\nconnection: close\r\n\r\n"
      "{\"error\":{\"message\":\"too many connections\",\"type\":\"server_error\",\"param\":null,"
      "\"code\":\"too_many_connections\"}}     ";
  error_code ignored;
  socket.non_blocking(true, ignored);
  socket.write_some(asio::buffer(kResponse.data(), kResponse.size()), ignored);
  socket.shutdown(tcp::socket::shutdown_both, ignored);
}

Result<tcp::endpoint> resolve(const std::string& host, uint16_t port) {
  error_code code;
  const std::string& literal = host == "localhost" ? std::string("127.0.0.1") : host;
  const asio::ip::address address = asio::ip::make_address(literal, code);
  if (code) {
    return invalid_argument(
        fmt::format("host '{}': expected an IP address such as 127.0.0.1, 0.0.0.0 or ::", host));
  }
  return tcp::endpoint(address, port);
}

Result<void> open_acceptor(tcp::acceptor& acceptor, const tcp::endpoint& endpoint) {
  error_code code;
  acceptor.open(endpoint.protocol(), code);
  if (!code) acceptor.set_option(tcp::acceptor::reuse_address(true), code);
  if (!code) acceptor.bind(endpoint, code);
  if (!code) acceptor.listen(asio::socket_base::max_listen_connections, code);
  if (!code) return {};
  const std::string where = fmt::format("{}:{}", endpoint.address().to_string(), endpoint.port());
  if (code == asio::error::address_in_use) {
    return unavailable(where +
                       ": the address is in use; stop the other server or choose another --port");
  }
  return invalid_argument(fmt::format("{}: cannot listen: {}", where, code.message()));
}

}  // namespace

// --- IoThread

struct IoThread::State {
  std::mutex mutex;
  std::function<void(std::function<void()>)> post;  // empty once closed
};

IoThread::IoThread(std::function<void(std::function<void()>)> post)
    : state_(std::make_unique<State>()) {
  state_->post = std::move(post);
}
IoThread::~IoThread() = default;

void IoThread::post(std::function<void()> task) {
  const std::lock_guard lock(state_->mutex);
  if (state_->post) state_->post(std::move(task));
}

void IoThread::close() {
  const std::lock_guard lock(state_->mutex);
  state_->post = nullptr;
}

// --- Exchange

Exchange::Exchange(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

bool Exchange::is_open() const { return impl_->connection != nullptr; }
const std::string& Exchange::request_id() const { return impl_->request_id; }

void Exchange::respond(const HttpResponse& response) {
  if (is_open()) impl_->connection->respond(response);
}
void Exchange::start_stream(const HttpResponse& head, Heartbeat heartbeat) {
  if (is_open()) impl_->connection->start_stream(head, std::move(heartbeat));
}
void Exchange::write(std::string_view bytes) {
  if (is_open()) impl_->connection->write(bytes);
}
void Exchange::finish_stream() {
  if (is_open()) impl_->connection->finish_stream();
}
void Exchange::set_note(std::string note) { impl_->note = std::move(note); }
void Exchange::at_deadline(TimePoint deadline, std::function<void()> callback) {
  if (is_open()) impl_->connection->watch_deadline(deadline, std::move(callback));
}
void Exchange::on_gone(std::function<void(Gone)> callback) {
  if (is_open()) impl_->connection->watch(std::move(callback));
}

// --- HttpServer

class HttpServer::Impl final {
 public:
  Impl(const HttpConfig& config, HttpHandlers handlers)
      : context_(config, std::move(handlers)),
        io_context_(1),
        work_(asio::make_work_guard(io_context_)),
        main_(io_context_),
        admin_(io_context_),
        signals_(io_context_),
        io_(std::make_shared<IoThread>(
            [this](std::function<void()> task) { asio::post(io_context_, std::move(task)); })) {}
  ~Impl() { stop(); }

  Result<void> listen() {
    const HttpConfig& config = context_.config();
    TRY(main_.open({config.host, config.port}));
    if (!config.admin.host.empty()) TRY(admin_.open(config.admin));
    return {};
  }

  uint16_t port() const { return main_.port; }
  uint16_t admin_port() const { return admin_.port; }
  void set_body_limit(uint64_t bytes) { context_.set_body_limit(bytes); }
  uint64_t num_buffered_body_bytes() const { return context_.body_budget()->bytes_held(); }
  const std::shared_ptr<IoThread>& io() const { return io_; }
  int32_t num_connections() const { return context_.num_connections(); }
  bool wait_until_idle(Duration timeout) { return context_.wait_until_idle(timeout); }

  void start() {
    accept(main_, Listener::kMain);
    if (admin_.acceptor.is_open()) accept(admin_, Listener::kAdmin);
    thread_ = std::thread([this] { run(); });
  }

  void on_signal(std::function<void(int)> callback) {
    error_code code;
    signals_.add(SIGTERM, code);
    signals_.add(SIGINT, code);
    signals_.async_wait([this, callback = std::move(callback)](error_code failed, int signal) {
      if (failed) return;
      error_code ignored;
      signals_.clear(ignored);
      callback(signal);
    });
  }

  void stop() {
    io_->close();
    if (!thread_.joinable()) return;
    CHECK(thread_.get_id() != std::this_thread::get_id()) << "stop() on the I/O thread";
    asio::post(io_context_, [this] {
      error_code ignored;
      main_.close();
      admin_.close();
      signals_.cancel(ignored);
      context_.close_all();
      work_.reset();
    });
    thread_.join();
  }

 private:
  struct Acceptor {
    explicit Acceptor(asio::io_context& io_context) : acceptor(io_context), timer(io_context) {}

    Result<void> open(const BindAddress& address) {
      TRY_ASSIGN(const tcp::endpoint endpoint, resolve(address.host, address.port));
      TRY(open_acceptor(acceptor, endpoint));
      error_code ignored;
      port = acceptor.local_endpoint(ignored).port();
      return {};
    }
    void close() {
      error_code ignored;
      acceptor.close(ignored);
      timer.cancel();
    }

    tcp::acceptor acceptor;
    asio::steady_timer timer;  // until the next attempt after a failed one
    uint16_t port = 0;
  };

  // Boost throws where it has no error code to give, and allocation may fail: the other connections
  // go on.
  void run() {
    while (true) {
      try {
        io_context_.run();
        return;
      } catch (const std::exception& fault) {
        log_error("I/O thread: {}", fault.what());
      }
    }
  }

  void accept(Acceptor& from, Listener listener) {
    from.acceptor.async_accept([this, &from, listener](error_code code, tcp::socket socket) {
      if (!from.acceptor.is_open()) return;
      if (code) return accept_later(from, listener, code);
      admit(std::move(socket), listener);
      accept(from, listener);
    });
  }

  // Out of file descriptors or memory: without a pause this would spin.
  void accept_later(Acceptor& from, Listener listener, error_code code) {
    log_warning("cannot accept connections: {}", code.message());
    from.timer.expires_after(std::chrono::milliseconds(100));
    from.timer.async_wait([this, &from, listener](error_code cancelled) {
      if (!cancelled && from.acceptor.is_open()) accept(from, listener);
    });
  }

  // The admin port stays reachable when clients have taken all connections of the other one.
  void admit(tcp::socket socket, Listener listener) {
    constexpr int32_t kAdminReserve = 16;
    const int32_t reserve = listener == Listener::kAdmin ? kAdminReserve : 0;
    if (context_.num_connections() >= context_.config().max_connections + reserve) {
      return turn_away(std::move(socket));
    }
    auto connection = std::make_shared<Connection>(std::move(socket), listener, context_);
    context_.add(connection);
    connection->start();
  }

  ConnectionContext context_;
  asio::io_context io_context_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  Acceptor main_;
  Acceptor admin_;  // not open without an admin port
  asio::signal_set signals_;
  std::shared_ptr<IoThread> io_;
  std::thread thread_;
};

Result<std::unique_ptr<HttpServer>> HttpServer::listen(const HttpConfig& config,
                                                       HttpHandlers handlers) {
  auto impl = std::make_unique<Impl>(config, std::move(handlers));
  TRY(impl->listen());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

uint16_t HttpServer::port() const { return impl_->port(); }
uint16_t HttpServer::admin_port() const { return impl_->admin_port(); }
void HttpServer::set_body_limit(uint64_t bytes) { impl_->set_body_limit(bytes); }
const std::shared_ptr<IoThread>& HttpServer::io() const { return impl_->io(); }
void HttpServer::start() { impl_->start(); }
void HttpServer::on_signal(std::function<void(int)> callback) {
  impl_->on_signal(std::move(callback));
}
bool HttpServer::wait_until_idle(Duration timeout) { return impl_->wait_until_idle(timeout); }
void HttpServer::stop() { impl_->stop(); }
int32_t HttpServer::num_connections() const { return impl_->num_connections(); }
uint64_t HttpServer::num_buffered_body_bytes() const { return impl_->num_buffered_body_bytes(); }

bool is_loopback_address(std::string_view host) {
  if (equals_ignoring_case(host, "localhost")) return true;
  error_code code;
  const asio::ip::address address = asio::ip::make_address(std::string(host), code);
  return !code && address.is_loopback();
}

}  // namespace nibble::server
