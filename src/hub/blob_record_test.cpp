#include "hub/blob_record.h"

#include <gtest/gtest.h>

#include "hub/hub_testing.h"

namespace nibble::hub {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string safetensors(const std::string& header, const std::string& data) {
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> (8 * i));
  return file + header + data;
}

std::vector<TensorHash> hash_tensors(const std::string& file, size_t piece) {
  TensorHasher hasher(static_cast<int64_t>(file.size()));
  for (size_t at = 0; at < file.size(); at += piece) {
    hasher.update(bytes_of(std::string_view(file).substr(at, piece)));
  }
  return hasher.finish();
}

TEST(Blocks, TheLastOneIsShort) {
  EXPECT_EQ(num_blocks(0), 0);
  EXPECT_EQ(num_blocks(kBlockBytes), 1);
  EXPECT_EQ(num_blocks(kBlockBytes + 1), 2);
  EXPECT_EQ(block_bytes(kBlockBytes + 1, 0), kBlockBytes);
  EXPECT_EQ(block_bytes(kBlockBytes + 1, 1), 1);
}

TEST(TensorHasher, HashesTensorsHoweverTheBytesArrive) {
  const std::string file = safetensors(
      R"({"__metadata__": {"a": "b"}, "second": {"data_offsets": [3, 7]}, "none": {"data_offsets": [3, 3]},
          "first": {"data_offsets": [0, 3]}, "last": {"data_offsets": [9, 10]}})",
      "abcdefg..z");
  for (size_t piece = 1; piece <= file.size(); ++piece) {
    const std::vector<TensorHash> hashes = hash_tensors(file, piece);
    ASSERT_EQ(hashes.size(), 4U) << piece;
    EXPECT_EQ(hashes[0].name, "first");
    EXPECT_EQ(hashes[0].xxh3, hash_bytes(bytes_of("abc")));
    EXPECT_EQ(hashes[1].name, "none");
    EXPECT_EQ(hashes[1].xxh3, hash_bytes({}));
    EXPECT_EQ(hashes[2].xxh3, hash_bytes(bytes_of("defg")));
    EXPECT_EQ(hashes[3].xxh3, hash_bytes(bytes_of("z")));
  }
}

TEST(TensorHasher, GivesNothingForHeadersThatMakeNoSense) {
  const std::string good = safetensors(R"({"a": {"data_offsets": [0, 3]}})", "abc");
  ASSERT_EQ(hash_tensors(good, 7).size(), 1U);
  for (const std::string& file :
       {std::string("short"),
        std::string(64, '\xFF'),
        good.substr(0, good.size() - 1),
        safetensors("[]", "abc"),
        safetensors("{", "abc"),
        safetensors(R"({"a": {"data_offsets": [0, 4]}})", "abc"),
        safetensors(R"({"a": {"data_offsets": [2, 1]}})", "abc"),
        safetensors(R"({"a": {"data_offsets": [-1, 1]}})", "abc"),
        safetensors(R"({"a": {"data_offsets": [0]}})", "abc"),
        safetensors(R"({"a": {"data_offsets": [0, 2]}, "b": {"data_offsets": [1, 3]}})", "abc")}) {
    EXPECT_TRUE(hash_tensors(file, 5).empty()) << file;
  }
}

TEST(BlobRecord, SurvivesItsOwnText) {
  const std::string file = safetensors(R"({"a\"b": {"data_offsets": [0, 3]}})", "abc");
  Digest digest = Digest::sha256();
  digest.update(bytes_of(file));
  const std::string etag = digest.finish_hex();
  BlobHasher hasher(etag, static_cast<int64_t>(file.size()), BlobHasher::Content::kSafetensors);
  EXPECT_EQ(hasher.update(bytes_of(file)), hash_bytes(bytes_of(file)));
  const BlobHasher::Finished finished = hasher.finish();
  EXPECT_EQ(finished.digest, etag);
  const BlobRecord copy = BlobRecord::parse(finished.record.to_json()).value();
  EXPECT_EQ(copy.etag, etag);
  EXPECT_EQ(copy.size, static_cast<int64_t>(file.size()));
  EXPECT_EQ(copy.blocks, finished.record.blocks);
  ASSERT_EQ(copy.tensors.size(), 1U);
  EXPECT_EQ(copy.tensors[0].name, "a\"b");
  EXPECT_EQ(copy.tensors[0].xxh3, hash_bytes(bytes_of("abc")));
}

TEST(BlobRecord, RefusesTextThatContradictsItself) {
  BlobRecord record{std::string(64, 'a'), kBlockBytes + 5, {1, 2}, {{"t", 3}}};
  const std::string good = record.to_json();
  ASSERT_TRUE(BlobRecord::parse(good).ok());
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    CHECK(at != std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  for (const std::string& text : {std::string("{}"),
                                  good.substr(0, good.size() / 2),
                                  replaced("\"format\": 1", "\"format\": 2"),
                                  replaced("1048581", "3048581"),
                                  replaced("1048581", "-1"),
                                  replaced("\"block_bytes\": 1048576", "\"block_bytes\": 4"),
                                  replaced("aaaa", "../x"),
                                  replaced("0000000000000001", "000000000000000g"),
                                  replaced("0000000000000001", "0001"),
                                  replaced("0000000000000003", "3")}) {
    EXPECT_EQ(BlobRecord::parse(text).error().code, Errc::kDataLoss) << text;
  }
}

}  // namespace
}  // namespace nibble::hub
