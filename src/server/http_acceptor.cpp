#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "server/http_acceptor-inl.h"

namespace nibble::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

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

Acceptor::Acceptor(asio::io_context& io_context, Listener listener, ConnectionContext& context)
    : listener_(listener), context_(context), acceptor_(io_context), timer_(io_context) {}

Result<void> Acceptor::open(const BindAddress& address) {
  TRY_ASSIGN(const tcp::endpoint endpoint, resolve(address.host, address.port));
  TRY(open_acceptor(acceptor_, endpoint));
  error_code ignored;
  port_ = acceptor_.local_endpoint(ignored).port();
  return {};
}

void Acceptor::start() {
  acceptor_.async_accept([this](error_code code, tcp::socket socket) {
    if (!is_open()) return;
    if (code) return accept_later(code);
    admit(std::move(socket));
    start();
  });
}

// Out of file descriptors or memory: without a pause this would spin.
void Acceptor::accept_later(error_code code) {
  log_warning("cannot accept connections: {}", code.message());
  timer_.expires_after(std::chrono::milliseconds(100));
  timer_.async_wait([this](error_code cancelled) {
    if (!cancelled && is_open()) start();
  });
}

void Acceptor::admit(tcp::socket socket) {
  if (!context_.has_room(listener_)) return turn_away(std::move(socket));
  auto connection = std::make_shared<Connection>(std::move(socket), listener_, context_);
  context_.add(connection);
  connection->start();
}

void Acceptor::close() {
  error_code ignored;
  acceptor_.close(ignored);
  timer_.cancel();
}

}  // namespace nibble::server
