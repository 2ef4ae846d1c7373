// One line of JSON per HTTP request, into a file or among the log lines. Owner: the I/O thread.
#pragma once

#include <cstdio>
#include <memory>
#include <optional>
#include <string_view>

#include "base/clock.h"
#include "base/file.h"
#include "base/result.h"
#include "server/http_message.h"

namespace nibble::server {

struct LoggedRequest {
  const HttpRequest& request;
  KeyId owner;
  int status = 0;
  Duration elapsed{};
  std::string_view work;  // JSON members about a completion; empty: it was none
};

// {"time":"...","id":"...","method":"POST","path":"...","status":200,"key":"...","ms":1.5,...}.
// `key` is the id of the key, not the key. Without a query, which a client may have written
// anything into.
std::string to_json_line(const LoggedRequest& entry);

class RequestLog final {
 public:
  // Appends to `file`; without one, lines go to the log: completions and errors at level info,
  // others at debug.
  static Result<RequestLog> open(const std::optional<Path>& file);

  void write(const LoggedRequest& entry);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  RequestLog() = default;

  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace nibble::server
