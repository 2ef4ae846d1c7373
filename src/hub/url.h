// URLs of the hub and of its storage hosts: parsed by the same code that connects (libcurl's), so
// that the two cannot disagree about which host a token goes to.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace nibble::hub {

struct Url {
  std::string text;    // normalised
  std::string scheme;  // "http" or "https"
  std::string host;    // lower case; IPv6 in brackets
  int32_t port = 0;    // explicit or the scheme's
  std::string path;    // without query

  // Scheme, host and port: who a secret may be sent to.
  std::string origin() const;
  // Without query and fragment, which may hold signatures.
  std::string display() const;
  bool is_loopback() const;
};

// kInvalidArgument for anything but http and https, for user names in the URL, and for nonsense.
Result<Url> parse_url(std::string_view text);

// What a Location or Link header of `base` points to.
Result<Url> resolve_url(const Url& base, std::string_view reference);

// Percent-encodes everything but RFC 3986 unreserved characters; slashes stay when `keep_slashes`.
enum class Slashes { kKeep, kEncode };
std::string percent_encode(std::string_view text, Slashes slashes);

// Whether an answer of `from` may send us to `to`: never from https to http, and never from another
// machine to this one.
Result<void> check_redirect(const Url& from, const Url& to);

}  // namespace nibble::hub
