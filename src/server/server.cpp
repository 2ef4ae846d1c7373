#include "server/server.h"

#include <sys/resource.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "server/access_policy.h"
#include "server/api.h"

namespace nibble::server {
namespace {

// A prompt token takes at most about this many bytes of JSON, whether as text or as an id.
constexpr uint64_t kBodyBytesPerToken = 16;
constexpr uint64_t kBodyBytesBesidesPrompt = 2 << 20;
// How long clients get to take their last bytes after the engine is done.
constexpr Duration kFlushTimeout = std::chrono::seconds(2);

uint64_t body_limit(int32_t max_context) {
  return kBodyBytesBesidesPrompt + kBodyBytesPerToken * static_cast<uint64_t>(max_context);
}

// One descriptor per connection, and some for everything else.
void raise_descriptor_limit(int32_t max_connections) {
  constexpr rlim_t kReserve = 64;
  const rlim_t needed = static_cast<rlim_t>(max_connections) + kReserve;
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  limit.rlim_cur = std::min(needed, limit.rlim_max);
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < needed) {
    log_warning(
        "file descriptors: {} allowed, {} wanted; raise LimitNOFILE", limit.rlim_cur, needed);
  }
}

Result<ApiKeys> load_keys(const std::optional<Path>& api_key_file) {
  return api_key_file ? ApiKeys::load(*api_key_file) : ApiKeys();
}

Result<AccessPolicy> make_access_policy(const ServerConfig& config) {
  TRY_ASSIGN(ApiKeys keys, load_keys(config.api_key_file));
  TRY(check_bind_address(config.http.host, keys, "--api-key-file"));
  return AccessPolicy({.keys = std::move(keys), .allowed_hosts = config.allowed_hosts});
}

}  // namespace

class Server::Impl final {
 public:
  Impl(const ServerConfig& config,
       AccessPolicy access,
       engine::Engine& engine,
       const text::Tokenizer& tokenizer)
      : config_(config),
        engine_(engine),
        api_({.model = {.names = config.served_names,
                        .vocab_size = engine.model_info().vocab_size,
                        .max_context = engine.max_context(),
                        .default_sampling = config.default_sampling,
                        .default_thinking = config.default_thinking,
                        .generation = config.generation,
                        .completion_bos_id = config.completion_bos_id},
              .version = config.version,
              .access = std::move(access),
              .heartbeat_interval = config.ping_interval,
              .max_unparsed_requests = static_cast<size_t>(config.http.max_connections),
              .kernels = config.kernels},
             engine,
             tokenizer) {}

  Result<void> listen() {
    HttpConfig http = config_.http;
    if (http.limits.body_bytes == 0) http.limits.body_bytes = body_limit(engine_.max_context());
    raise_descriptor_limit(http.max_connections);
    TRY_ASSIGN(http_, HttpServer::listen(http, api_.handlers()));
    api_.attach(*http_);
    if (config_.handles_signals) {
      http_->on_signal([this](int signal) {
        log_warning("signal {}: finishing accepted work; a second signal ends at once", signal);
        request_shutdown();
      });
    }
    return {};
  }

  uint16_t port() const { return http_->port(); }
  void start() { http_->start(); }

  void request_shutdown() {
    {
      const std::lock_guard lock(mutex_);
      is_shutdown_requested_ = true;
    }
    api_.start_draining();
    shutdown_.notify_all();
  }

  void run() {
    {
      std::unique_lock lock(mutex_);
      shutdown_.wait(lock, [&] { return is_shutdown_requested_; });
    }
    engine_.drain(std::chrono::steady_clock::now() + config_.shutdown_timeout);
    if (!http_->wait_until_idle(kFlushTimeout))
      log_warning("some clients did not take their last bytes");
    http_->stop();
  }

 private:
  const ServerConfig config_;
  engine::Engine& engine_;

  std::mutex mutex_;
  std::condition_variable shutdown_;
  bool is_shutdown_requested_ = false;

  Api api_;
  std::unique_ptr<HttpServer> http_;  // stops before the API goes
};

Result<void> check_access(std::string_view host, const std::optional<Path>& api_key_file) {
  TRY_ASSIGN(const ApiKeys keys, load_keys(api_key_file));
  return check_bind_address(host, keys, "--api-key-file");
}

Result<std::unique_ptr<Server>> Server::create(const ServerConfig& config,
                                               engine::Engine& engine,
                                               const text::Tokenizer& tokenizer) {
  CHECK(!config.served_names.empty()) << "a model needs a name";
  TRY_ASSIGN(AccessPolicy access, make_access_policy(config));
  auto impl = std::make_unique<Impl>(config, std::move(access), engine, tokenizer);
  TRY(impl->listen());
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

uint16_t Server::port() const { return impl_->port(); }
void Server::start() { impl_->start(); }
void Server::request_shutdown() { impl_->request_shutdown(); }
void Server::run() { impl_->run(); }

Result<void> run_server(const ServerConfig& config,
                        engine::Engine& engine,
                        const text::Tokenizer& tokenizer,
                        const std::function<void(uint16_t port)>& on_listening) {
  TRY_ASSIGN(const std::unique_ptr<Server> server, Server::create(config, engine, tokenizer));
  if (on_listening) on_listening(server->port());
  server->start();
  server->run();
  return {};
}

}  // namespace nibble::server
