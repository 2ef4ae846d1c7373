#include <utility>

#include "server/http_connection-inl.h"

namespace nibble::server {
namespace {

// Connections of the admin port beyond max_connections.
constexpr int32_t kAdminReserve = 16;

}  // namespace

ConnectionContext::ConnectionContext(const HttpConfig& config, HttpHandlers handlers)
    : config_(config),
      handlers_(std::move(handlers)),
      body_bytes_max_(config.limits.body_bytes),
      body_budget_(std::make_shared<BodyBudget>(config.max_buffered_body_bytes)) {}

HttpLimits ConnectionContext::limits() const {
  HttpLimits limits = config_.limits;
  limits.body_bytes = body_bytes_max_.load(std::memory_order_relaxed);
  return limits;
}

bool ConnectionContext::has_room(Listener listener) const {
  const int32_t reserve = listener == Listener::kAdmin ? kAdminReserve : 0;
  return num_connections() < config_.max_connections + reserve;
}

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

void ConnectionContext::add_busy(int32_t delta) {
  const std::lock_guard lock(mutex_);
  num_busy_ += delta;
  if (num_busy_ == 0) idle_.notify_all();
}

bool ConnectionContext::wait_until_idle(Duration timeout) {
  std::unique_lock lock(mutex_);
  return idle_.wait_for(lock, timeout, [&] { return num_busy_ == 0; });
}

}  // namespace nibble::server
