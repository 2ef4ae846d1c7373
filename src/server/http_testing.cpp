#include "server/http_testing.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <utility>

#include "base/check.h"
#include "server/http_message.h"

namespace nibble::server {
namespace {

// A server that never answers fails the test instead of hanging it.
constexpr timeval kPatience = {.tv_sec = 20, .tv_usec = 0};

std::map<std::string, std::string> parse_fields(std::string_view head) {
  std::map<std::string, std::string> fields;
  while (!head.empty()) {
    const std::string_view line = head.substr(0, head.find("\r\n"));
    head.remove_prefix(std::min(head.size(), line.size() + 2));
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    std::string name(line.substr(0, colon));
    std::transform(name.begin(), name.end(), name.begin(), [](char c) {
      return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    });
    fields[name] = std::string(trim(line.substr(colon + 1)));
  }
  return fields;
}

}  // namespace

TestClient::TestClient(uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  CHECK(fd_ >= 0);
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
  ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof(kPatience));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
}

TestClient::~TestClient() { close(); }

bool TestClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t num_sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (num_sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(num_sent));
  }
  return true;
}

bool TestClient::fill() {
  char chunk[4096];
  const ssize_t num_read = ::recv(fd_, chunk, sizeof(chunk), 0);
  if (num_read <= 0) return false;
  buffer_.append(chunk, static_cast<size_t>(num_read));
  return true;
}

std::string TestClient::read_until(std::string_view marker) {
  size_t at = std::string::npos;
  while ((at = buffer_.find(marker)) == std::string::npos) {
    if (!fill()) return std::exchange(buffer_, {});
  }
  std::string found = buffer_.substr(0, at + marker.size());
  buffer_.erase(0, at + marker.size());
  return found;
}

std::string TestClient::read_to_end() {
  while (fill()) {
  }
  return std::exchange(buffer_, {});
}

TestResponse TestClient::read_response(bool is_head) {
  TestResponse response;
  const std::string head = read_until("\r\n\r\n");
  if (head.size() < 12 || !head.ends_with("\r\n\r\n")) return response;
  response.headers = parse_fields(head);
  const int status = std::atoi(head.c_str() + sizeof("HTTP/1.1"));
  if (status == 100) return read_response(is_head);
  if (response.headers.count("transfer-encoding") != 0) {
    while (true) {
      const size_t size = std::strtoul(read_until("\r\n").c_str(), nullptr, 16);
      while (buffer_.size() < size + 2) {
        if (!fill()) return response;
      }
      response.body.append(buffer_, 0, size);
      buffer_.erase(0, size + 2);
      if (size == 0) break;
    }
  } else if (!is_head && response.headers.count("content-length") != 0) {
    const size_t size = std::strtoul(response.headers["content-length"].c_str(), nullptr, 10);
    while (buffer_.size() < size) {
      if (!fill()) return response;
    }
    response.body = buffer_.substr(0, size);
    buffer_.erase(0, size);
  }
  response.status = status;
  return response;
}

void TestClient::half_close() { ::shutdown(fd_, SHUT_WR); }

void TestClient::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void TestClient::reset() {
  const linger at_once = {.l_onoff = 1, .l_linger = 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  close();
}

std::string get_request(std::string_view path, std::string_view extra_headers) {
  return fmt::format("GET {} HTTP/1.1\r\nHost: 127.0.0.1\r\n{}\r\n", path, extra_headers);
}

std::string post_request(std::string_view path,
                         std::string_view body,
                         std::string_view extra_headers) {
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
      "Content-Length: {}\r\n{}\r\n{}",
      path,
      body.size(),
      extra_headers,
      body);
}

TestResponse http_get(uint16_t port, std::string_view path, std::string_view extra_headers) {
  TestClient client(port);
  client.send(get_request(path, extra_headers));
  return client.read_response();
}

TestResponse http_post(uint16_t port,
                       std::string_view path,
                       std::string_view body,
                       std::string_view extra_headers) {
  TestClient client(port);
  client.send(post_request(path, body, extra_headers));
  return client.read_response();
}

}  // namespace nibble::server
