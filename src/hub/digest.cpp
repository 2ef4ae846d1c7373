#include "hub/digest.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>

#include "base/check.h"

namespace nibble::hub {

struct Digest::Context {
  EVP_MD_CTX* evp = EVP_MD_CTX_new();

  explicit Context(const EVP_MD* algorithm) {
    CHECK(evp != nullptr && EVP_DigestInit_ex(evp, algorithm, nullptr) == 1);
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context() { EVP_MD_CTX_free(evp); }
};

Digest::Digest(std::unique_ptr<Context> context) : context_(std::move(context)) {}
Digest::Digest(Digest&&) noexcept = default;
Digest& Digest::operator=(Digest&&) noexcept = default;
Digest::~Digest() = default;

Digest Digest::sha256() { return Digest(std::make_unique<Context>(EVP_sha256())); }

Digest Digest::git_blob(int64_t size) {
  Digest digest(std::make_unique<Context>(EVP_sha1()));
  const std::string prefix = fmt::format("blob {}", size);
  digest.update(std::as_bytes(std::span(prefix.c_str(), prefix.size() + 1)));
  return digest;
}

Digest Digest::for_name(std::string_view etag, int64_t size) {
  CHECK(is_blob_name(etag)) << etag;
  return etag.size() == 64 ? sha256() : git_blob(size);
}

void Digest::update(std::span<const std::byte> bytes) {
  CHECK(EVP_DigestUpdate(context_->evp, bytes.data(), bytes.size()) == 1);
}

std::string Digest::finish_hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> value = {};
  unsigned int size = 0;
  CHECK(EVP_DigestFinal_ex(context_->evp, value.data(), &size) == 1);
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) hex += fmt::format("{:02x}", value[i]);
  return hex;
}

bool is_blob_name(std::string_view etag) {
  const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return (etag.size() == 40 || etag.size() == 64) && std::all_of(etag.begin(), etag.end(), is_hex);
}

}  // namespace nibble::hub
