// The two hashes by which a hub names files: SHA-256 of large files, and git's SHA-1 of a blob for
// the rest. Streaming. libcrypto's, in digest.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace nibble::hub {

class Digest final {
 public:
  static Digest sha256();
  // SHA-1 of "blob SIZE\0" and the bytes, as git computes object names.
  static Digest git_blob(int64_t size);
  // By the length of the expected name in hexadecimal: 64 is SHA-256, 40 a git blob.
  static Digest for_name(std::string_view etag, int64_t size);

  Digest(Digest&&) noexcept;
  Digest& operator=(Digest&&) noexcept;
  ~Digest();

  void update(std::span<const std::byte> bytes);
  // Lower-case hexadecimal. Ends the digest; call it once.
  std::string finish_hex();

 private:
  struct Context;
  explicit Digest(std::unique_ptr<Context> context);
  std::unique_ptr<Context> context_;
};

// Whether `etag` is 40 or 64 lower-case hexadecimal digits, the only names that blobs may have.
bool is_blob_name(std::string_view etag);

}  // namespace nibble::hub
