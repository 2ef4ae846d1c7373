// A deliberately primitive HTTP client on a blocking socket: tests send exactly the bytes they
// want.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace nibble::server {

struct TestResponse {
  int status = 0;                              // 0: the connection ended before a complete response
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined
};

class TestClient final {
 public:
  explicit TestClient(uint16_t port);
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;
  ~TestClient();

  // False when the connection broke.
  bool send(std::string_view bytes);
  // Reads one response by its framing. `is_head`: no body follows.
  TestResponse read_response(bool is_head = false);
  // Reads until `marker` was seen in the stream or the connection ended; everything read so far.
  std::string read_until(std::string_view marker);
  // Reads until the server closes; everything not yet consumed.
  std::string read_to_end();
  void half_close();
  void close();
  // Closes with a reset instead of an orderly end.
  void reset();

 private:
  bool fill();

  int fd_ = -1;
  std::string buffer_;
};

// "GET /path HTTP/1.1" with a Host field and an empty line.
std::string get_request(std::string_view path, std::string_view extra_headers = {});
std::string post_request(std::string_view path,
                         std::string_view body,
                         std::string_view extra_headers = {});

TestResponse http_get(uint16_t port, std::string_view path, std::string_view extra_headers = {});
TestResponse http_post(uint16_t port,
                       std::string_view path,
                       std::string_view body,
                       std::string_view extra_headers = {});

}  // namespace nibble::server
