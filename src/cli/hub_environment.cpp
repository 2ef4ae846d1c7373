#include "cli/hub_environment.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <string_view>

namespace nibble::cli {
namespace {

constexpr std::chrono::seconds kDefaultConnectTimeout{10};

// The first of `names` that is set and not empty.
std::string variable(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') return value;
  }
  return {};
}

Path expand_home(const std::string& path) {
  if (path == "~") return variable({"HOME"});
  if (path.rfind("~/", 0) == 0) return Path(variable({"HOME"})) / path.substr(2);
  return path;
}

// Where hub tools keep everything; empty without HF_HOME, XDG_CACHE_HOME and HOME.
Path hub_home() {
  const std::string own = variable({"HF_HOME"});
  if (!own.empty()) return expand_home(own);
  const std::string caches = variable({"XDG_CACHE_HOME"});
  if (!caches.empty()) return expand_home(caches) / "huggingface";
  const std::string home = variable({"HOME"});
  return home.empty() ? Path() : Path(home) / ".cache" / "huggingface";
}

std::string trim(std::string text) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; };
  while (!text.empty() && is_blank(text.back())) text.pop_back();
  text.erase(text.begin(), std::find_if_not(text.begin(), text.end(), is_blank));
  return text;
}

Result<std::string> find_token(const Path& home) {
  const std::string token = variable({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"});
  if (!token.empty()) return trim(token);
  const std::string named = variable({"HF_TOKEN_PATH"});
  if (named.empty() && home.empty()) return std::string();
  Result<std::string> text = read_file(named.empty() ? home / "token" : expand_home(named), 4096);
  if (text.ok()) return trim(std::move(text).value());
  if (named.empty() && text.error().code == Errc::kNotFound) return std::string();
  return invalid_argument(fmt::format("hub token: {}", text.error().message));
}

bool is_true(std::string text) {
  for (char& c : text) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return text == "1" || text == "ON" || text == "YES" || text == "TRUE";
}

// The value of a variable in seconds, or `otherwise` when it is not set.
Result<std::chrono::seconds> read_timeout(const char* name, std::chrono::seconds otherwise) {
  const std::string text = variable({name});
  if (text.empty()) return otherwise;
  int32_t seconds = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (fault != std::errc() || end != text.data() + text.size() || seconds < 1 || seconds > 86'400) {
    return invalid_argument(fmt::format("{}: is \"{}\", expected 1 to 86400 seconds", name, text));
  }
  return std::chrono::seconds(seconds);
}

}  // namespace

Result<hub::HubConfig> hub_config_from_environment() {
  hub::HubConfig config;
  const Path home = hub_home();
  const std::string cache = variable({"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"});
  if (cache.empty() && home.empty()) {
    return invalid_argument("no place for the hub cache: set HF_HOME, HF_HUB_CACHE or HOME");
  }
  config.cache_dir = cache.empty() ? home / "hub" : expand_home(cache);
  TRY_ASSIGN(config.token, find_token(home));
  const std::string endpoint = variable({"HF_ENDPOINT"});
  if (!endpoint.empty()) config.endpoint = endpoint;
  config.is_offline = is_true(variable({"HF_HUB_OFFLINE"}));
  config.has_symlinks = !is_true(variable({"HF_HUB_DISABLE_SYMLINKS"}));
  TRY_ASSIGN(config.transport.stall_timeout,
             read_timeout("HF_HUB_DOWNLOAD_TIMEOUT", config.transport.stall_timeout));
  TRY_ASSIGN(config.transport.connect_timeout,
             read_timeout("HF_HUB_ETAG_TIMEOUT", kDefaultConnectTimeout));
  config.transport.https_proxy = variable({"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"});
  // Not HTTP_PROXY: a server that passes on request headers as variables would let strangers set
  // it.
  config.transport.http_proxy = variable({"http_proxy", "all_proxy", "ALL_PROXY"});
  config.transport.no_proxy = variable({"no_proxy", "NO_PROXY"});
  config.transport.ca_file = variable({"SSL_CERT_FILE"});
  return config;
}

}  // namespace nibble::cli
