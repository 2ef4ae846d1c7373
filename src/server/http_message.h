// HTTP requests and responses as plain values: what crosses from the transport to the protocol and
// back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "server/body_budget.h"
#include "server/key_id.h"

namespace nibble::server {

struct Header {
  std::string name;
  std::string value;
};

// The port that a request came through.
enum class Listener { kMain, kAdmin };

struct HttpRequest {
  std::string method;  // as sent; methods are case-sensitive
  std::string target;  // as sent
  std::string path;    // the target without its query, percent-encoding kept
  std::vector<Header> headers;
  std::string body;
  bool is_http11 = true;
  bool keep_alive = true;
  std::string id;  // the caller's x-request-id when it is a sane token, else made here
  TimePoint received_at;
  Listener listener = Listener::kMain;
  std::shared_ptr<BodyBudget::Share> body_share;  // of `body`; copies of a request keep it, too
  KeyId owner = {};  // of the key it came with; set once the key was accepted

  // Value of the first field of that name (any case), or nullptr.
  const std::string* header(std::string_view name) const;
  // How often a field of that name appears.
  int32_t count_header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<Header> headers = {};  // beyond those that the transport writes
  std::string body = {};
};

const char* reason_phrase(int status);

// True for equal ASCII text in any case.
bool equals_ignoring_case(std::string_view a, std::string_view b);
// Without leading and trailing spaces and tabs.
std::string_view trim(std::string_view text);
// %XX decoded; ill-formed escapes stay as they are. '+' is not a space in paths.
std::string percent_decode(std::string_view text);

// The decoded value of the first member `name` of the target's query, or nullopt.
std::optional<std::string> query_value(std::string_view target, std::string_view name);

// A decimal integer, with '-' before it perhaps, and nothing else.
std::optional<int64_t> parse_integer(std::string_view text);

// A request id that may be echoed and logged: 1 to 128 letters, digits, '.', '_' and '-'.
bool is_request_id(std::string_view text);
// `prefix` and 24 random hexadecimal digits (96 bits: ids never collide in practice).
std::string make_id(std::string_view prefix);

// Status line and header fields, with the empty line. `framing` is the Content-Length or
// Transfer-Encoding line's text without CRLF, or empty for a body that ends with the connection.
std::string serialize_head(const HttpResponse& response,
                           std::string_view request_id,
                           std::string_view framing,
                           bool keep_alive);

}  // namespace nibble::server
