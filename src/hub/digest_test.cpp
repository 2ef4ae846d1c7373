#include "hub/digest.h"

#include <gtest/gtest.h>

namespace nibble::hub {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// FIPS 180-4, the example of one block.
TEST(Digest, IsSha256) {
  Digest digest = Digest::sha256();
  digest.update(bytes_of("a"));
  digest.update(bytes_of("bc"));
  EXPECT_EQ(digest.finish_hex(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

// `printf 'hello\n' | git hash-object --stdin`, and git's well-known empty blob.
TEST(Digest, IsAGitBlob) {
  Digest digest = Digest::git_blob(6);
  digest.update(bytes_of("hello\n"));
  EXPECT_EQ(digest.finish_hex(), "ce013625030ba8dba906f756967f9e9ca394464a");
  EXPECT_EQ(Digest::git_blob(0).finish_hex(), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
}

TEST(BlobName, IsHexadecimalOfOneOfTwoLengths) {
  EXPECT_TRUE(is_blob_name(std::string(40, 'f')));
  EXPECT_TRUE(is_blob_name(std::string(64, '0')));
  for (const std::string& name :
       {std::string(), std::string(41, 'a'), std::string(40, 'A'), std::string(64, '.')}) {
    EXPECT_FALSE(is_blob_name(name)) << name;
  }
}

}  // namespace
}  // namespace nibble::hub
