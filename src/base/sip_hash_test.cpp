#include "base/sip_hash.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string_view>
#include <vector>

namespace nibble {
namespace {

// Reference vectors of the algorithm's authors (vectors.h, 128-bit output): key 00 01 .. 0f, input
// 00 01 .. of the given length.
Hash128 hash_of_length(size_t length) {
  std::vector<uint8_t> input(length);
  std::iota(input.begin(), input.end(), uint8_t{0});
  return sip_hash({.k0 = 0x0706050403020100, .k1 = 0x0f0e0d0c0b0a0908},
                  std::as_bytes(std::span(input)));
}

TEST(SipHash, GivesTheReferenceVectors) {
  EXPECT_EQ(hash_of_length(0), (Hash128{0xe6a825ba047f81a3, 0x930255c71472f66d}));
  EXPECT_EQ(hash_of_length(1), (Hash128{0x44af996bd8c187da, 0x45fc229b11597634}));
}

TEST(SipHash, DependsOnKeyLengthAndEveryByte) {
  const std::vector<std::byte> zeros(17);
  const Hash128 hash = sip_hash({1, 2}, zeros);
  EXPECT_NE(hash, sip_hash({1, 3}, zeros));
  EXPECT_NE(hash, sip_hash({1, 2}, std::span(zeros).first(16)));
  for (size_t i = 0; i < zeros.size(); ++i) {
    std::vector<std::byte> changed = zeros;
    changed[i] = std::byte{1};
    EXPECT_NE(hash, sip_hash({1, 2}, changed)) << i;
  }
}

TEST(SipHash, WritesHexWithTheHighHalfFirst) {
  const auto hex = to_hex({.low = 0x0123456789abcdef, .high = 0xfedcba9876543210});
  EXPECT_EQ(std::string_view(hex.data(), hex.size()), "fedcba98765432100123456789abcdef");
}

}  // namespace
}  // namespace nibble
