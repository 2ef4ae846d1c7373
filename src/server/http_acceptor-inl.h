// Private to the HTTP server: one listening socket. Included only by the server's parts, as it
// shows the sockets' library. Owner: the I/O thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>

#include "server/http_connection-inl.h"
#include "server/http_server.h"

namespace nibble::server {

class Acceptor final {
 public:
  Acceptor(boost::asio::io_context& io_context, Listener listener, ConnectionContext& context);

  // kUnavailable when the address is in use, kInvalidArgument for a bad one.
  Result<void> open(const BindAddress& address);
  bool is_open() const { return acceptor_.is_open(); }
  uint16_t port() const { return port_; }  // 0 until it is open

  // Makes a connection of each client that comes, from now on.
  void start();
  void close();

 private:
  using ErrorCode = boost::system::error_code;

  void accept_later(ErrorCode code);
  void admit(boost::asio::ip::tcp::socket socket);

  const Listener listener_;
  ConnectionContext& context_;
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer timer_;  // until the next attempt after a failed one
  uint16_t port_ = 0;
};

}  // namespace nibble::server
