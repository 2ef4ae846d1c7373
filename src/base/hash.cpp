#include "base/hash.h"

#include <xxhash.h>

#include "base/check.h"

namespace nibble {

uint64_t hash_bytes(std::span<const std::byte> bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

struct HashStream::State {
  XXH3_state_t* xxh3 = XXH3_createState();

  State() { CHECK(xxh3 != nullptr); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { XXH3_freeState(xxh3); }
};

HashStream::HashStream() : state_(std::make_unique<State>()) { reset(); }
HashStream::HashStream(HashStream&&) noexcept = default;
HashStream& HashStream::operator=(HashStream&&) noexcept = default;
HashStream::~HashStream() = default;

void HashStream::update(std::span<const std::byte> bytes) {
  CHECK(XXH3_64bits_update(state_->xxh3, bytes.data(), bytes.size()) == XXH_OK);
}

uint64_t HashStream::digest() const { return XXH3_64bits_digest(state_->xxh3); }

void HashStream::reset() { CHECK(XXH3_64bits_reset(state_->xxh3) == XXH_OK); }

}  // namespace nibble
