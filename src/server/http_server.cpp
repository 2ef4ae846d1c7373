#include "server/http_server.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <mutex>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/thread_name.h"
#include "server/http_acceptor-inl.h"
#include "server/http_connection-inl.h"

namespace nibble::server {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

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

// --- HttpServer

class HttpServer::Impl final {
 public:
  Impl(const HttpConfig& config, HttpHandlers handlers)
      : context_(config, std::move(handlers)),
        io_context_(1),
        work_(asio::make_work_guard(io_context_)),
        main_(io_context_, Listener::kMain, context_),
        admin_(io_context_, Listener::kAdmin, context_),
        signals_(io_context_),
        hangup_(io_context_),
        io_(std::make_shared<IoThread>(
            [this](std::function<void()> task) { asio::post(io_context_, std::move(task)); })) {}
  ~Impl() { stop(); }

  Result<void> listen() {
    const HttpConfig& config = context_.config();
    TRY(main_.open({config.host, config.port}));
    if (!config.admin.host.empty()) TRY(admin_.open(config.admin));
    return {};
  }

  uint16_t port() const { return main_.port(); }
  uint16_t admin_port() const { return admin_.port(); }
  void set_body_limit(uint64_t bytes) { context_.set_body_limit(bytes); }
  uint64_t num_buffered_body_bytes() const { return context_.body_budget()->bytes_held(); }
  const std::shared_ptr<IoThread>& io() const { return io_; }
  int32_t num_connections() const { return context_.num_connections(); }
  bool wait_until_idle(Duration timeout) { return context_.wait_until_idle(timeout); }

  void start() {
    main_.start();
    if (admin_.is_open()) admin_.start();
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

  void on_hangup(std::function<void()> callback) {
    error_code code;
    hangup_.add(SIGHUP, code);
    await_hangup(std::move(callback));
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
      hangup_.cancel(ignored);
      context_.close_all();
      work_.reset();
    });
    thread_.join();
  }

 private:
  void await_hangup(std::function<void()> callback) {
    hangup_.async_wait([this, callback = std::move(callback)](error_code failed, int) mutable {
      if (failed) return;
      callback();
      await_hangup(std::move(callback));
    });
  }

  // Boost throws where it has no error code to give, and allocation may fail: the other connections
  // go on.
  void run() {
    name_this_thread("nibble-io");
    while (true) {
      try {
        io_context_.run();
        return;
      } catch (const std::exception& fault) {
        log_error("I/O thread: {}", fault.what());
      }
    }
  }

  ConnectionContext context_;
  asio::io_context io_context_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  Acceptor main_;
  Acceptor admin_;  // not open without an admin port
  asio::signal_set signals_;
  asio::signal_set hangup_;
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
void HttpServer::on_hangup(std::function<void()> callback) {
  impl_->on_hangup(std::move(callback));
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
