#include "server/http_message.h"

#include <fmt/format.h>
#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/check.h"

namespace nibble::server {
namespace {

char to_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = to_lower(c);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

bool is_id_char(char c) {
  const char lower = to_lower(c);
  return (lower >= 'a' && lower <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
         c == '-';
}

}  // namespace

const std::string* HttpRequest::header(std::string_view name) const {
  for (const Header& field : headers) {
    if (equals_ignoring_case(field.name, name)) return &field.value;
  }
  return nullptr;
}

int32_t HttpRequest::count_header(std::string_view name) const {
  return static_cast<int32_t>(
      std::count_if(headers.begin(), headers.end(), [&](const Header& field) {
        return equals_ignoring_case(field.name, name);
      }));
}

const char* reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    case 529:
      return "Overloaded";
    default:
      return "Unknown";
  }
}

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return to_lower(x) == to_lower(y);
  });
}

std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::string percent_decode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const bool has_two_more = i + 2 < text.size();
    const int high = text[i] == '%' && has_two_more ? hex_digit(text[i + 1]) : -1;
    const int low = high >= 0 ? hex_digit(text[i + 2]) : -1;
    if (low < 0) {
      out.push_back(text[i]);
      continue;
    }
    out.push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  return out;
}

std::optional<std::string> query_value(std::string_view target, std::string_view name) {
  target.remove_prefix(std::min(target.find('?'), target.size()));
  while (!target.empty()) {
    target.remove_prefix(1);  // '?' or '&'
    const std::string_view member = target.substr(0, target.find('&'));
    target.remove_prefix(member.size());
    const size_t equals = std::min(member.find('='), member.size());
    if (percent_decode(member.substr(0, equals)) != name) continue;
    return percent_decode(member.substr(std::min(equals + 1, member.size())));
  }
  return std::nullopt;
}

std::optional<int64_t> parse_integer(std::string_view text) {
  int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [parsed_to, fault] = std::from_chars(text.data(), end, value);
  return fault == std::errc() && parsed_to == end ? std::optional(value) : std::nullopt;
}

bool is_request_id(std::string_view text) {
  constexpr size_t kMaxLength = 128;
  return !text.empty() && text.size() <= kMaxLength &&
         std::all_of(text.begin(), text.end(), is_id_char);
}

std::string make_id(std::string_view prefix) {
  std::array<unsigned char, 12> bytes = {};
  CHECK(RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1) << "no random bytes";
  std::string id(prefix);
  for (const unsigned char byte : bytes) fmt::format_to(std::back_inserter(id), "{:02x}", byte);
  return id;
}

std::string serialize_head(const HttpResponse& response,
                           std::string_view request_id,
                           std::string_view framing,
                           bool keep_alive) {
  std::string head =
      fmt::format("HTTP/1.1 {} {}\r\n", response.status, reason_phrase(response.status));
  const auto add = [&head](std::string_view name, std::string_view value) {
    fmt::format_to(std::back_inserter(head), "{}: {}\r\n", name, value);
  };
  if (!response.content_type.empty()) add("content-type", response.content_type);
  if (!framing.empty()) head.append(framing).append("\r\n");
  add("x-request-id", request_id);
  add("x-content-type-options", "nosniff");
  for (const Header& field : response.headers) add(field.name, field.value);
  add("connection", keep_alive ? "keep-alive" : "close");
  head.append("\r\n");
  return head;
}

}  // namespace nibble::server
