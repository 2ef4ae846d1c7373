#include "hub/url.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "base/utf8.h"
#include "hub/errors.h"

namespace nibble::hub {
namespace {

struct CurlUrlDelete {
  void operator()(CURLU* handle) const { curl_url_cleanup(handle); }
};
using CurlUrl = std::unique_ptr<CURLU, CurlUrlDelete>;

Error bad_url(std::string_view text, std::string_view why) {
  // The query may hold a signature.
  const std::string_view shown = text.substr(0, text.find('?'));
  return invalid_argument(fmt::format(
      "{}: {}, expected http://HOST/... or https://HOST/...", escape_for_display(shown), why));
}

std::string part_of(CURLU* handle, CURLUPart part, unsigned int flags) {
  char* text = nullptr;
  if (curl_url_get(handle, part, &text, flags) != CURLUE_OK) return {};
  std::string copy(text);
  curl_free(text);
  return copy;
}

std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return text;
}

bool has_control_characters(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) <= 0x20 || c == 0x7F;
  });
}

Result<Url> read_parts(CURLU* handle, std::string_view text) {
  Url url;
  url.scheme = lower_case(part_of(handle, CURLUPART_SCHEME, 0));
  if (url.scheme != "http" && url.scheme != "https") return bad_url(text, "is not an HTTP address");
  if (!part_of(handle, CURLUPART_USER, 0).empty() ||
      !part_of(handle, CURLUPART_PASSWORD, 0).empty()) {
    return bad_url(text, "holds a user name or password");
  }
  url.host = lower_case(part_of(handle, CURLUPART_HOST, 0));
  if (url.host.empty()) return bad_url(text, "names no host");
  const std::string port = part_of(handle, CURLUPART_PORT, CURLU_DEFAULT_PORT);
  std::from_chars(port.data(), port.data() + port.size(), url.port);
  url.path = part_of(handle, CURLUPART_PATH, 0);
  curl_url_set(handle, CURLUPART_FRAGMENT, nullptr, 0);
  url.text = part_of(handle, CURLUPART_URL, 0);
  return url;
}

Result<void> set_url(CURLU* handle, std::string_view text) {
  if (text.size() > 16'384) return bad_url(text.substr(0, 100), "is longer than 16384 bytes");
  if (has_control_characters(text)) return bad_url(text, "holds blanks or control characters");
  if (curl_url_set(handle, CURLUPART_URL, std::string(text).c_str(), 0) != CURLUE_OK) {
    return bad_url(text, "is not an HTTP address");
  }
  return {};
}

bool is_unreserved(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '.' || c == '_' || c == '~';
}

}  // namespace

std::string Url::origin() const { return fmt::format("{}://{}:{}", scheme, host, port); }

std::string Url::display() const {
  const bool is_default_port = port == (scheme == "https" ? 443 : 80);
  return is_default_port ? fmt::format("{}://{}{}", scheme, host, path)
                         : fmt::format("{}://{}:{}{}", scheme, host, port, path);
}

bool Url::is_loopback() const {
  // libcurl has turned every spelling of an IPv4 address into dotted decimals.
  if (host == "localhost" || host == "[::1]") return true;
  return host.rfind("127.", 0) == 0 && host.find_first_not_of("0123456789.") == std::string::npos;
}

Result<Url> parse_url(std::string_view text) {
  const CurlUrl handle(curl_url());
  TRY(set_url(handle.get(), text));
  return read_parts(handle.get(), text);
}

Result<Url> resolve_url(const Url& base, std::string_view reference) {
  const CurlUrl handle(curl_url());
  TRY(set_url(handle.get(), base.text));
  TRY(set_url(handle.get(), reference));
  return read_parts(handle.get(), reference);
}

std::string percent_encode(std::string_view text, Slashes slashes) {
  std::string out;
  for (const char c : text) {
    if (is_unreserved(c) || (c == '/' && slashes == Slashes::kKeep)) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

Result<void> check_redirect(const Url& from, const Url& to) {
  const char* why = nullptr;
  if (from.scheme == "https" && to.scheme != "https") why = "to an unencrypted address";
  if (to.is_loopback() && !from.is_loopback()) why = "to this machine itself";
  if (why == nullptr) return {};
  return network_error(
      fmt::format("{}: redirects {}, {}; refused. Check HF_ENDPOINT and the proxy.",
                  from.display(),
                  why,
                  to.display()));
}

}  // namespace nibble::hub
