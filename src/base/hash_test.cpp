#include "base/hash.h"

#include <gtest/gtest.h>

#include <string_view>

namespace nibble {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(Hash, IsXxh3) { EXPECT_EQ(hash_bytes({}), 0x2D06800538D394C2ULL); }

TEST(Hash, DependsOnEveryByteAndTheSeed) {
  EXPECT_NE(hash_bytes(bytes_of("abc")), hash_bytes(bytes_of("abd")));
  EXPECT_NE(hash_bytes(bytes_of("abc"), 1), hash_bytes(bytes_of("abc"), 2));
}

TEST(HashStream, EqualsTheHashOfTheWhole) {
  const std::string_view text = "a text that arrives in three pieces";
  HashStream stream;
  for (const std::string_view piece : {text.substr(0, 1), text.substr(1, 20), text.substr(21)}) {
    stream.update(bytes_of(piece));
  }
  EXPECT_EQ(stream.digest(), hash_bytes(bytes_of(text)));
  stream.reset();
  EXPECT_EQ(stream.digest(), hash_bytes({}));
}

}  // namespace
}  // namespace nibble
