// Fast 64-bit hash of bytes (XXH3): checksums of our own snapshots, fingerprints. Not
// cryptographic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace nibble {

uint64_t hash_bytes(std::span<const std::byte> bytes, uint64_t seed = 0);

// hash_bytes of bytes that arrive in pieces.
class HashStream final {
 public:
  HashStream();
  HashStream(HashStream&&) noexcept;
  HashStream& operator=(HashStream&&) noexcept;
  ~HashStream();

  void update(std::span<const std::byte> bytes);
  // Of everything since construction or reset().
  uint64_t digest() const;
  void reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nibble
