#include "checkpoint/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "checkpoint/model_description.h"
#include "checkpoint/temporary_directory_testing.h"

namespace nibble::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A file under construction.
struct Gguf {
  std::string bytes = "GGUF";

  template <class T>
  Gguf& number(T value) {
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));
    bytes.append(raw, sizeof(T));
    return *this;
  }
  Gguf& text(const std::string& value) {
    number(static_cast<uint64_t>(value.size()));
    bytes += value;
    return *this;
  }
  Gguf& tensor(const std::string& name, std::vector<uint64_t> dims, uint32_t type, uint64_t at) {
    text(name).number(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) number(dim);
    return number(type).number(at);
  }
};

// Two tensors: F32 [2] and Q4_K [2, 256].
std::string small_file() {
  Gguf file;
  file.number(uint32_t{3}).number(uint64_t{2}).number(uint64_t{3});
  file.text("general.architecture").number(uint32_t{8}).text("deepseek2");
  file.text("tokens").number(uint32_t{9}).number(uint32_t{8}).number(uint64_t{2});
  file.text("a").text("bc");
  file.text("general.alignment").number(uint32_t{4}).number(uint32_t{64});
  file.tensor("output_norm.weight", {2}, 0, 0);
  file.tensor("blk.0.attn_q.weight", {256, 2}, 12, 64);
  file.bytes.resize((file.bytes.size() + 63) / 64 * 64 + 64 + 2 * 144);
  return file.bytes;
}

Result<GgufHeader> parse(const std::string& bytes) {
  return parse_gguf_header(std::as_bytes(std::span(bytes)), "m.gguf");
}

TEST(Gguf, ReadsArchitectureShapesAndTypes) {
  const GgufHeader header = parse(small_file()).value();
  EXPECT_EQ(header.architecture, "deepseek2");
  ASSERT_EQ(header.tensors.size(), 2U);
  EXPECT_EQ(header.tensors[1].name, "blk.0.attn_q.weight");
  EXPECT_EQ(header.tensors[1].shape, (Shape{2, 256}));
  EXPECT_EQ(header.tensors[1].type->name, "q4_k");
  EXPECT_EQ(header.tensors[1].end - header.tensors[1].begin, 288);
}

TEST(Gguf, EveryTruncationIsRefused) {
  const std::string bytes = small_file();
  for (size_t size = 0; size < bytes.size(); ++size) {
    const Result<GgufHeader> header = parse(bytes.substr(0, size));
    ASSERT_FALSE(header.ok()) << size;
    EXPECT_THAT(header.error().message, HasSubstr("m.gguf: "));
  }
  EXPECT_EQ(parse(bytes.substr(0, bytes.size() - 1)).error().reason, "Q-F1");
}

TEST(Gguf, SurvivesEveryFlippedByte) {
  std::string bytes = small_file();
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (const int flip : {0x01, 0x80, 0xFF}) {
      std::string mutant = bytes;
      mutant[i] = static_cast<char>(mutant[i] ^ flip);
      (void)parse(mutant);
    }
  }
}

TEST(Gguf, UnknownTypesAreF4) {
  std::string bytes = small_file();
  const size_t at = bytes.find("attn_q.weight") + 13 + 4 + 16;
  bytes[at] = 99;
  EXPECT_EQ(parse(bytes).error().reason, "Q-F4");
}

TEST(Gguf, DirectoriesAndFilesAreDescribed) {
  const TemporaryDirectory dir;
  dir.write("m.gguf", small_file());
  const LocalModel directory = describe_directory(dir.path()).value();
  const LocalModel single = describe_gguf_file(dir.path() / "m.gguf").value();
  for (const LocalModel* model : {&directory, &single}) {
    EXPECT_THAT(model->description.faults, IsEmpty());
    EXPECT_EQ(model->description.architecture, "deepseek2");
    EXPECT_EQ(model->description.data_bytes, 8 + 288);
    EXPECT_THAT(model->description.shard_of, ElementsAre(0, 0));
    EXPECT_EQ(model->description.block_types[0]->name, "f32");
  }
}

}  // namespace
}  // namespace nibble::checkpoint
