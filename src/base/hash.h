// Fast 64-bit hash of bytes (XXH3): checksums of our own snapshots, fingerprints. Not
// cryptographic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace nibble {

uint64_t hash_bytes(std::span<const std::byte> bytes, uint64_t seed = 0);

}  // namespace nibble
