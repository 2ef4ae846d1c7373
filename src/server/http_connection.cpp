#include <fmt/format.h>

#include <boost/asio/buffer.hpp>
#include <chrono>
#include <iterator>
#include <utility>

#include "server/http_connection-inl.h"

namespace nibble::server {
namespace {

namespace asio = boost::asio;

// Bytes that a client may send ahead while its request is being answered; more ends the connection.
// Reading on is what makes a disconnect visible at once.
constexpr size_t kReadAheadMax = 64 << 10;
// Read and thrown away after an early refusal, so that the client sees the response and not a
// reset.
constexpr size_t kLingerBytesMax = 64 << 20;
// Status in logs and counters of an exchange whose client left (nginx's convention).
constexpr int kStatusClientGone = 499;

}  // namespace

Connection::Connection(Socket socket, Listener listener, ConnectionContext& context)
    : socket_(std::move(socket)),
      listener_(listener),
      timer_(socket_.get_executor()),
      deadline_timer_(socket_.get_executor()),
      context_(context),
      parser_(context.limits()) {}

void Connection::start() {
  ErrorCode ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket_.set_option(asio::socket_base::keep_alive(true),
                     ignored);  // finds clients that vanished
  wait_within(config().header_timeout, &Connection::on_receive_timeout);
  read_more();
}

void Connection::watch(std::function<void(Gone)> callback) {
  exchange_->on_gone = std::move(callback);
  if (is_peer_done_) close(Gone::kDisconnect);
}

void Connection::watch_deadline(TimePoint deadline, std::function<void()> callback) {
  deadline_timer_.expires_at(deadline);
  deadline_timer_.async_wait([of = exchange_, callback = std::move(callback)](ErrorCode cancelled) {
    if (!cancelled && of->connection != nullptr) callback();
  });
}

void Connection::close(Gone why) {
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  const auto self = shared_from_this();  // the context's reference goes now
  timer_.cancel();
  // The handler first: who sees the connection end may rely on the work having been called off.
  if (exchange_ != nullptr) {
    const auto callback = std::move(exchange_->on_gone);
    exchange_->connection = nullptr;  // nothing more can be written
    exchange_->gone = why;
    if (callback) callback(why);
    end_exchange(kStatusClientGone);
  }
  ErrorCode ignored;
  socket_.close(ignored);
  set_busy(false);
  context_.remove(this);
}

void Connection::respond(const HttpResponse& response) {
  const bool has_body = response.status != 204;
  const std::string framing =
      has_body ? fmt::format("content-length: {}", response.body.size()) : std::string();
  output_ += serialize_head(response, exchange_->request_id, framing, keep_alive_);
  if (head_.method != "HEAD") output_ += response.body;
  complete(response.status);
}

void Connection::start_stream(const HttpResponse& head, Exchange::Heartbeat heartbeat) {
  is_streaming_ = true;
  is_chunked_ = head_.is_http11;
  keep_alive_ = keep_alive_ && is_chunked_;
  heartbeat_ = std::move(heartbeat);
  stream_status_ = head.status;
  output_ += serialize_head(
      head, exchange_->request_id, is_chunked_ ? "transfer-encoding: chunked" : "", keep_alive_);
  flush();
}

void Connection::write(std::string_view bytes) {
  if (bytes.empty()) return;
  append_piece(bytes);
  const size_t num_unsent = output_.size() + in_flight_.size() - num_written_;
  if (num_unsent > config().max_unsent_bytes) return close(Gone::kSlowReader);
  flush();
}

void Connection::finish_stream() {
  if (is_chunked_) output_ += "0\r\n\r\n";
  complete(stream_status_);
}

// --- reading

void Connection::read_more() {
  if (is_reading_ || phase_ == Phase::kClosed || is_peer_done_) return;
  is_reading_ = true;
  socket_.async_read_some(asio::buffer(chunk_),
                          [self = shared_from_this()](ErrorCode code, size_t num_bytes) {
                            self->is_reading_ = false;
                            self->on_read(code, num_bytes);
                          });
}

void Connection::on_read(ErrorCode code, size_t num_bytes) {
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
void Connection::on_read_end(ErrorCode code) {
  const bool is_costly = exchange_ != nullptr && exchange_->on_gone != nullptr;
  if (code != asio::error::eof || phase_ != Phase::kResponding || is_costly) {
    return close(Gone::kDisconnect);
  }
  is_peer_done_ = true;
  keep_alive_ = false;
}

// Parses what has arrived, up to the end of one request.
void Connection::advance() {
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
bool Connection::hold_body() {
  const uint64_t num_bytes = parser_.request().body.size();
  if (num_bytes == 0) return true;
  if (body_share_ == nullptr) {
    body_share_ = std::make_shared<BodyBudget::Share>(context_.body_budget());
  }
  return body_share_->grow_to(num_bytes);
}

void Connection::refuse_body() {
  body_share_.reset();
  respond_fault(429, "the server holds too many request bodies; try again later");
}

void Connection::on_need_more() {
  if (input_.size() > context_.limits().header_bytes + kReadChunk) {
    return respond_fault(400, "malformed HTTP request");
  }
  if (receiving_ != Receiving::kFirstBytes) return;
  receiving_ = Receiving::kHead;
  wait_within(config().header_timeout, &Connection::on_receive_timeout);
}

void Connection::on_head() {
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
void Connection::finish_empty_body() {
  const HttpParser::Progress progress = parser_.feed({});
  if (progress.state == HttpParser::State::kDone) dispatch();
}

void Connection::dispatch() {
  HttpRequest request = parser_.take_request();
  request.id = head_.id;
  request.received_at = head_.received_at;
  request.listener = listener_;
  request.body_share = std::move(body_share_);
  begin_exchange();
  context_.handlers().handle(std::move(request), Exchange(exchange_));
}

void Connection::begin_exchange() {
  phase_ = Phase::kResponding;
  stop_waiting();
  set_busy(true);
  exchange_ = std::make_shared<Exchange::Impl>(this, head_.id);
}

void Connection::on_refused(const HttpResponse& response) {
  const bool has_body = parser_.feed({}).state != HttpParser::State::kDone;
  if (has_body) return refuse(response);
  begin_exchange();
  respond(response);
}

// Answers before the request was read to its end; the connection cannot be used further.
void Connection::refuse(const HttpResponse& response) {
  begin_exchange();
  keep_alive_ = false;
  must_linger_ = true;
  respond(response);
}

void Connection::respond_fault(int status, std::string_view text) {
  if (head_.id.empty()) head_.id = make_id("req-");
  refuse(context_.handlers().fault(status, text));
}

void Connection::on_receive_timeout() {
  const bool is_idle = receiving_ == Receiving::kFirstBytes && input_.empty();
  if (is_idle) return close(Gone::kDisconnect);
  respond_fault(408, "the request did not arrive in time");
}

// --- responding

void Connection::append_piece(std::string_view bytes) {
  if (!is_chunked_) {
    output_.append(bytes);
    return;
  }
  fmt::format_to(std::back_inserter(output_), "{:x}\r\n", bytes.size());
  output_.append(bytes).append("\r\n");
}

// The whole response has been handed over.
void Connection::complete(int status) {
  end_exchange(status);
  flush();
}

void Connection::end_exchange(int status) {
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

void Connection::flush() {
  if (is_writing_ || output_.empty()) return;
  in_flight_.clear();
  std::swap(in_flight_, output_);
  num_written_ = 0;
  is_writing_ = true;
  write_more();
}

void Connection::write_more() {
  if (phase_ == Phase::kResponding)
    wait_within(config().write_timeout, &Connection::on_write_timeout);
  const asio::const_buffer rest(in_flight_.data() + num_written_, in_flight_.size() - num_written_);
  socket_.async_write_some(rest, [self = shared_from_this()](ErrorCode code, size_t num_bytes) {
    self->on_written(code, num_bytes);
  });
}

void Connection::on_written(ErrorCode code, size_t num_bytes) {
  if (phase_ == Phase::kClosed) return;
  if (code) return close(Gone::kDisconnect);
  num_written_ += num_bytes;
  if (num_written_ < in_flight_.size()) return write_more();
  is_writing_ = false;
  in_flight_.clear();
  num_written_ = 0;
  if (!output_.empty()) return flush();
  if (phase_ != Phase::kResponding) return;
  stop_waiting();
  if (exchange_ == nullptr) return on_response_sent();
  if (is_streaming_) wait_within(heartbeat_.interval, &Connection::on_heartbeat);
}

void Connection::on_response_sent() {
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

void Connection::shut_down() {
  ErrorCode ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  close(Gone::kDisconnect);
}

void Connection::linger() {
  phase_ = Phase::kLingering;
  input_.clear();
  ErrorCode ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  wait_within(config().linger_timeout, &Connection::shut_down);
  read_more();
}

void Connection::on_lingering_bytes(size_t num_bytes) {
  num_lingered_ += num_bytes;
  if (num_lingered_ > kLingerBytesMax) return shut_down();
  read_more();
}

void Connection::set_busy(bool is_busy) {
  if (is_busy == is_busy_) return;
  is_busy_ = is_busy;
  context_.add_busy(is_busy ? 1 : -1);
}

// --- time

void Connection::wait_within(Duration timeout, Expiry expiry) {
  on_expiry_ = expiry;
  wait_end_ = std::chrono::steady_clock::now() + timeout;
  if (!timer_end_ || wait_end_ < *timer_end_) arm_timer();
}

void Connection::arm_timer() {
  timer_end_ = wait_end_;
  timer_.expires_at(wait_end_);
  timer_.async_wait([self = shared_from_this()](ErrorCode cancelled) {
    if (!cancelled) self->on_timer();
  });
}

void Connection::on_timer() {
  timer_end_.reset();
  if (phase_ == Phase::kClosed || on_expiry_ == nullptr) return;
  if (std::chrono::steady_clock::now() < wait_end_) return arm_timer();
  const Expiry expiry = std::exchange(on_expiry_, nullptr);
  (this->*expiry)();
}

}  // namespace nibble::server
