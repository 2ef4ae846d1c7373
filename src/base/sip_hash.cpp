#include "base/sip_hash.h"

#include <bit>
#include <cstring>
#include <random>

namespace nibble {
namespace {

struct State {
  uint64_t v0, v1, v2, v3;

  void round() {
    v0 += v1;
    v1 = std::rotl(v1, 13) ^ v0;
    v0 = std::rotl(v0, 32);
    v2 += v3;
    v3 = std::rotl(v3, 16) ^ v2;
    v0 += v3;
    v3 = std::rotl(v3, 21) ^ v0;
    v2 += v1;
    v1 = std::rotl(v1, 17) ^ v2;
    v2 = std::rotl(v2, 32);
  }
  void absorb(uint64_t word) {
    v3 ^= word;
    round();
    round();
    v0 ^= word;
  }
  uint64_t squeeze() {
    for (int i = 0; i < 4; ++i) round();
    return v0 ^ v1 ^ v2 ^ v3;
  }
};

static_assert(std::endian::native == std::endian::little);

}  // namespace

SipKey random_sip_key() {
  std::random_device device;
  const auto word = [&device] { return (uint64_t{device()} << 32) | device(); };
  return {.k0 = word(), .k1 = word()};
}

Hash128 sip_hash(const SipKey& key, std::span<const std::byte> bytes) {
  State state{.v0 = key.k0 ^ 0x736f6d6570736575,
              .v1 = key.k1 ^ 0x646f72616e646f6d ^ 0xee,
              .v2 = key.k0 ^ 0x6c7967656e657261,
              .v3 = key.k1 ^ 0x7465646279746573};
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, 8);
    state.absorb(word);
  }
  uint64_t last = uint64_t{bytes.size()} << 56;
  for (size_t j = 0; i + j < bytes.size(); ++j) {
    last |= static_cast<uint64_t>(bytes[i + j]) << (8 * j);
  }
  state.absorb(last);
  Hash128 hash;
  state.v2 ^= 0xee;
  hash.low = state.squeeze();
  state.v1 ^= 0xdd;
  hash.high = state.squeeze();
  return hash;
}

std::array<char, 32> to_hex(const Hash128& hash) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::array<char, 32> text{};
  for (size_t i = 0; i < 16; ++i) {
    text[15 - i] = kDigits[(hash.high >> (4 * i)) & 15];
    text[31 - i] = kDigits[(hash.low >> (4 * i)) & 15];
  }
  return text;
}

}  // namespace nibble
