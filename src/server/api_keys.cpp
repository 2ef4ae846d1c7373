#include "server/api_keys.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <sys/stat.h>

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/log.h"

namespace nibble::server {
namespace {

constexpr int64_t kMaxFileBytes = 1 << 20;
constexpr size_t kMaxKeyBytes = 512;

std::array<uint8_t, 32> sha256(std::string_view text) {
  std::array<uint8_t, 32> digest = {};
  unsigned int size = 0;
  CHECK(EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr) == 1);
  CHECK(size == digest.size());
  return digest;
}

// A second digest: an id may be logged, and must not help to guess the first.
KeyId id_of(const std::array<uint8_t, 32>& digest) {
  std::string text = "nibble key id";
  text.append(digest.begin(), digest.end());
  const std::array<uint8_t, 32> hash = sha256(text);
  KeyId id;
  for (size_t i = 0; i < sizeof(id.value); ++i) id.value = id.value << 8 | hash[i];
  id.value |= 1;  // 0 means: no key
  return id;
}

bool is_key(std::string_view text) {
  return text.size() <= kMaxKeyBytes &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < '\x7f'; });
}

std::string_view trim_line(std::string_view line) {
  constexpr std::string_view kSpaces = " \t\r";
  const size_t first = line.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return {};
  return line.substr(first, line.find_last_not_of(kSpaces) - first + 1);
}

void warn_if_readable_by_others(const Path& file) {
  struct stat info = {};
  if (::stat(file.c_str(), &info) == 0 && (info.st_mode & S_IROTH) != 0) {
    log_warning("{}: everybody on this machine may read the API keys; chmod o-r", file.string());
  }
}

}  // namespace

Result<ApiKeys> ApiKeys::load(const Path& file) {
  TRY_ASSIGN(const std::string text, read_file(file, kMaxFileBytes));
  warn_if_readable_by_others(file);
  return parse(text, file.string());
}

Result<ApiKeys> ApiKeys::parse(std::string_view text, std::string_view file_name) {
  ApiKeys keys;
  int32_t line_number = 0;
  while (!text.empty()) {
    const std::string_view raw = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), raw.size() + 1));
    ++line_number;
    const std::string_view line = trim_line(raw);
    if (line.empty()) continue;
    if (!is_key(line)) {
      return invalid_argument(
          fmt::format("{}: line {}: expected a key of at most {} printable ASCII "
                      "characters without spaces",
                      file_name,
                      line_number,
                      kMaxKeyBytes));
    }
    keys.digests_.push_back(sha256(line));
  }
  if (keys.empty()) {
    return invalid_argument(fmt::format("{}: holds no API key; expected one a line", file_name));
  }
  return keys;
}

std::optional<KeyId> ApiKeys::find(std::string_view key) const {
  const Digest digest = sha256(key);
  int num_equal = 0;
  for (const Digest& known : digests_) {
    num_equal += CRYPTO_memcmp(known.data(), digest.data(), digest.size()) == 0 ? 1 : 0;
  }
  if (num_equal == 0) return std::nullopt;
  return id_of(digest);
}

}  // namespace nibble::server
