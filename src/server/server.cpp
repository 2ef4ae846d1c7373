#include "server/server.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "server/access_policy.h"
#include "server/api.h"
#include "server/front_door.h"

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

Result<ApiKeys> load_keys(const std::optional<Path>& file) {
  return file ? ApiKeys::load(*file) : ApiKeys();
}

struct Keys {
  ApiKeys users;
  ApiKeys admins;
};

// Both files, or nothing.
Result<Keys> load_all_keys(const ServerConfig& config) {
  Keys keys;
  TRY_ASSIGN(keys.users, load_keys(config.api_key_file));
  TRY_ASSIGN(keys.admins, load_keys(config.admin_key_file));
  return keys;
}

Result<AccessPolicy> make_access_policy(const ServerConfig& config) {
  TRY_ASSIGN(Keys keys, load_all_keys(config));
  TRY(check_bind_address(config.http.host, keys.users, "--api-key-file"));
  const std::string& admin_host = config.http.admin.host;
  if (!admin_host.empty()) {
    TRY(check_bind_address(admin_host, keys.admins, "--admin-api-key-file"));
  }
  return AccessPolicy({.keys = std::move(keys.users),
                       .admin_keys = std::move(keys.admins),
                       .allowed_hosts = config.allowed_hosts});
}

}  // namespace

class Server::Impl final {
 public:
  Impl(const ServerConfig& config, AccessPolicy access)
      : config_(config), access_(std::move(access)), front_door_(access_) {}

  Result<void> listen() {
    raise_descriptor_limit(config_.http.max_connections);
    TRY_ASSIGN(request_log_, RequestLog::open(config_.request_log));
    HttpConfig http = config_.http;
    if (http.limits.body_bytes == 0) http.limits.body_bytes = body_limit(0);  // until attach()
    TRY_ASSIGN(http_, HttpServer::listen(http, front_door_.handlers()));
    return {};
  }

  uint16_t port() const { return http_->port(); }
  uint16_t admin_port() const { return http_->admin_port(); }

  void start() {
    if (config_.handles_signals) watch_signals();
    http_->start();
  }

  void attach(const ModelConfig& model, engine::Engine& engine, const text::Tokenizer& tokenizer) {
    CHECK(api_ == nullptr) << "a server has one model";
    CHECK(!model.served_names.empty()) << "a model needs a name";
    engine_ = &engine;
    watch_engine();
    api_ = std::make_unique<Api>(api_options(model), engine, tokenizer);
    api_->attach(*http_);
    if (config_.http.limits.body_bytes == 0) {
      http_->set_body_limit(body_limit(engine.max_context()));
    }
    front_door_.open(api_->handlers());
    is_attached_.store(true);
  }

  void request_shutdown() {
    {
      const std::lock_guard lock(mutex_);
      is_shutdown_requested_ = true;
    }
    api_->start_draining();
    wished_.notify_all();
  }

  Result<void> reload_keys() {
    TRY_ASSIGN(Keys loaded, load_all_keys(config_));
    const auto keys = std::make_shared<Keys>(std::move(loaded));
    http_->io()->post(
        [this, keys] { access_.replace_keys(std::move(keys->users), std::move(keys->admins)); });
    return {};
  }

  void run() {
    while (wait_for_wish() == Wish::kReload) reload_and_report();
    engine_->drain(std::chrono::steady_clock::now() + config_.shutdown_timeout);
    if (!http_->wait_until_idle(kFlushTimeout))
      log_warning("some clients did not take their last bytes");
    http_->stop();
  }

 private:
  enum class Wish { kReload, kShutdown };

  Wish wait_for_wish() {
    std::unique_lock lock(mutex_);
    wished_.wait(lock, [&] { return is_shutdown_requested_ || is_reload_requested_; });
    is_reload_requested_ = false;
    return is_shutdown_requested_ ? Wish::kShutdown : Wish::kReload;
  }

  void reload_and_report() {
    const Result<void> reloaded = reload_keys();
    if (reloaded.ok()) return log_warning("the API keys were read again");
    log_error("the API keys stay as they are: {}", reloaded.error().message);
  }

  void watch_signals() {
    http_->on_signal([this](int signal) { on_signal(signal); });
    if (!config_.api_key_file && !config_.admin_key_file) return;
    http_->on_hangup([this] {
      const std::lock_guard lock(mutex_);
      is_reload_requested_ = true;
      wished_.notify_all();
    });
  }

  void on_signal(int signal) {
    if (!is_attached_.load()) {
      if (config_.on_early_signal) return config_.on_early_signal(signal);
      CHECK(::raise(signal) == 0);
      return;
    }
    log_warning("signal {}: finishing accepted work; a second signal ends at once", signal);
    request_shutdown();
  }

  void watch_engine() {
    watchdog_.emplace(
        Watchdog::Options{.limits = config_.stall_limits, .dump_dir = config_.dump_dir},
        Watchdog::Engine{.progress =
                             [this] {
                               const engine::EngineStats stats = engine_->stats();
                               return EngineProgress{
                                   .num_steps = stats.steps_total,
                                   .has_work = stats.num_running + stats.num_queued > 0};
                             },
                         .state = [this] { return engine_->dump_state(); },
                         .give_up = [] { std::abort(); }});
  }

  Api::Options api_options(const ModelConfig& model) {
    return {.model = {.names = model.served_names,
                      .vocab_size = engine_->model_info().vocab_size,
                      .max_context = engine_->max_context(),
                      .default_sampling = model.default_sampling,
                      .default_thinking = model.default_thinking,
                      .generation = model.generation,
                      .reasoning_fields = model.reasoning_fields,
                      .completion_bos_id = model.completion_bos_id},
            .version = config_.version,
            .access = access_,
            .heartbeat_interval = config_.ping_interval,
            .request_timeout = config_.request_timeout,
            .queue_timeout = config_.queue_timeout,
            .max_unparsed_requests = static_cast<size_t>(config_.http.max_connections),
            .kernels = model.kernels,
            .load_seconds = model.load_seconds,
            .request_log = &*request_log_,
            .stalled_seconds = [this] { return watchdog_->stalled_seconds(); }};
  }

  const ServerConfig config_;
  AccessPolicy access_;  // the I/O thread's once it runs
  engine::Engine* engine_ = nullptr;
  std::atomic<bool> is_attached_ = false;

  std::mutex mutex_;
  std::condition_variable wished_;
  bool is_shutdown_requested_ = false;
  bool is_reload_requested_ = false;

  std::optional<RequestLog> request_log_;
  std::optional<Watchdog> watchdog_;
  FrontDoor front_door_;
  std::unique_ptr<Api> api_;
  std::unique_ptr<HttpServer> http_;  // stops before the API goes
};

Result<std::unique_ptr<Server>> Server::listen(const ServerConfig& config) {
  TRY_ASSIGN(AccessPolicy access, make_access_policy(config));
  auto impl = std::make_unique<Impl>(config, std::move(access));
  TRY(impl->listen());
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

uint16_t Server::port() const { return impl_->port(); }
void Server::start() { impl_->start(); }
uint16_t Server::admin_port() const { return impl_->admin_port(); }
void Server::attach(const ModelConfig& model,
                    engine::Engine& engine,
                    const text::Tokenizer& tokenizer) {
  impl_->attach(model, engine, tokenizer);
}
Result<void> Server::reload_keys() { return impl_->reload_keys(); }
void Server::request_shutdown() { impl_->request_shutdown(); }
void Server::run() { impl_->run(); }

}  // namespace nibble::server
