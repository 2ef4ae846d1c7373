#include "checkpoint/model_description.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/temporary_directory_testing.h"

namespace nibble::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A safetensors file.
std::string file_of(std::string header, size_t data_bytes) {
  while (header.size() % 8 != 0) header += ' ';
  std::string file;
  for (size_t i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i) & 255);
  return file + header + std::string(data_bytes, 'x');
}

// One F32 tensor [2] per name.
std::string shard_of(const std::vector<std::string>& names) {
  std::string header = "{";
  for (size_t i = 0; i < names.size(); ++i) {
    header += (i == 0 ? "\"" : ",\"") + names[i] +
              R"(":{"dtype":"F32","shape":[2],"data_offsets":[)" + std::to_string(8 * i) + "," +
              std::to_string(8 * i + 8) + "]}";
  }
  return file_of(header + "}", 8 * names.size());
}

std::string index_of(std::string_view map, int64_t total_size = 24) {
  return R"({"metadata":{"total_size":)" + std::to_string(total_size) + R"(},"weight_map":{)" +
         std::string(map) + "}}";
}
constexpr std::string_view kMap =
    R"("a":"m1.safetensors","b":"m1.safetensors","c":"m2.safetensors")";

struct TwoShards {
  TemporaryDirectory dir;

  TwoShards() {
    dir.write("config.json", "{}");
    dir.write("m1.safetensors", shard_of({"a", "b"}));
    dir.write("m2.safetensors", shard_of({"c"}));
    dir.write("model.safetensors.index.json", index_of(kMap));
  }
  ModelDescription describe() const { return describe_directory(dir.path()).value().description; }
  std::vector<std::string> reasons() const {
    std::vector<std::string> reasons;
    for (const Error& fault : describe().faults) reasons.push_back(fault.reason);
    return reasons;
  }
};

TEST(ModelDescription, HoldsHeadersSizesAndConfigs) {
  const TwoShards model;
  const ModelDescription description = model.describe();
  EXPECT_THAT(description.faults, IsEmpty());
  EXPECT_THAT(description.warnings, IsEmpty());
  ASSERT_EQ(description.tensors.size(), 3U);
  EXPECT_EQ(description.tensors[2].name, "c");
  EXPECT_THAT(description.shard_of, ElementsAre(0, 0, 1));
  EXPECT_EQ(description.data_bytes, 24);
  EXPECT_EQ(description.shard_bytes(),
            static_cast<int64_t>(shard_of({"a", "b"}).size() + shard_of({"c"}).size()));
  EXPECT_EQ(description.find_config("config.json")->text, "{}");
  EXPECT_EQ(description.find_config("params.json"), nullptr);
}

TEST(ModelDescription, ReadsValuesOfOneTensor) {
  const TwoShards model;
  const LocalModel local = describe_directory(model.dir.path()).value();
  EXPECT_EQ(local.read(1, 4, 4).value(), std::vector<std::byte>(4, std::byte{'x'}));
  EXPECT_FALSE(local.read(1, 4, 5).ok());
}

TEST(ModelDescription, ShortShardIsF1) {
  const TwoShards model;
  std::string bytes = shard_of({"a", "b"});
  bytes.pop_back();
  model.dir.write("m1.safetensors", bytes);
  EXPECT_THAT(model.reasons(), ElementsAre("Q-F1"));
  EXPECT_THAT(model.describe().faults[0].message,
              HasSubstr("(1 missing): the download is incomplete. Lost: b. Delete this file"));
  // The rest is still described.
  EXPECT_EQ(model.describe().tensors.size(), 1U);
}

TEST(ModelDescription, ShortShardNamesWhatItLoses) {
  const TwoShards model;
  const std::vector<std::string> names = {"a", "b", "c", "d", "e", "f", "g"};
  std::string bytes = shard_of(names);
  bytes.resize(bytes.size() - 6 * 8 + 1);
  model.dir.write("m1.safetensors", bytes);
  EXPECT_THAT(model.describe().faults[0].message,
              HasSubstr("(47 missing): the download is incomplete. Lost: b, c, d, e and 2 more."));
}

TEST(ModelDescription, ShardShorterThanItsHeaderIsF2) {
  const TwoShards model;
  model.dir.write("m1.safetensors", shard_of({"a", "b"}).substr(0, 40));
  EXPECT_THAT(model.reasons(), ElementsAre("Q-F2"));
  EXPECT_THAT(model.describe().faults[0].message, HasSubstr("The download is incomplete"));
}

// safetensors counts codes, torch counts bytes.
TEST(ModelDescription, PackedFp4IsReadAsBytes) {
  const TwoShards model;
  for (const char* shape : {"[2,8]", "[4,4]", "[8]", "[16]"}) {
    model.dir.write("m2.safetensors",
                    file_of(R"({"c":{"dtype":"F4","shape":)" + std::string(shape) +
                                R"(,"data_offsets":[0,8]}})",
                            8));
    const ModelDescription description = model.describe();
    ASSERT_THAT(description.faults, IsEmpty()) << shape;
    EXPECT_EQ(description.tensors[2].dtype, DType::kU8);
    EXPECT_EQ(description.tensors[2].shape.num_elements(), 8) << shape;
  }
}

TEST(ModelDescription, DamagedHeaderIsF2) {
  const TwoShards model;
  std::string bytes = shard_of({"c"});
  bytes[8] = '[';
  model.dir.write("m2.safetensors", bytes);
  EXPECT_THAT(model.reasons(), ElementsAre("Q-F2"));
}

TEST(ModelDescription, MissingShardIsF3) {
  const TwoShards model;
  std::filesystem::remove(model.dir.path() / "m2.safetensors");
  EXPECT_THAT(model.reasons(), ElementsAre("Q-F3"));
}

TEST(ModelDescription, TensorInTwoShardsIsF3) {
  const TwoShards model;
  model.dir.write("m2.safetensors", shard_of({"c", "b"}));
  EXPECT_THAT(model.describe().faults[0].message,
              HasSubstr("tensor b: in m1.safetensors and in m2.safetensors"));
  EXPECT_EQ(model.reasons()[0], "Q-F3");
}

TEST(ModelDescription, TensorThatTheIndexDoesNotNameIsF3) {
  const TwoShards model;
  model.dir.write("m2.safetensors", shard_of({"c", "d"}));
  EXPECT_THAT(model.reasons(), ElementsAre("Q-F3"));
}

TEST(ModelDescription, UnknownDtypeIsF4) {
  const TwoShards model;
  std::string bytes = shard_of({"c"});
  bytes.replace(bytes.find("F32"), 3, "F99");
  model.dir.write("m2.safetensors", bytes);
  EXPECT_THAT(model.reasons(), ElementsAre("Q-F4"));
}

TEST(ModelDescription, StaleTotalSizeIsAWarning) {
  const TwoShards model;
  model.dir.write("model.safetensors.index.json", index_of(kMap, 17));
  EXPECT_THAT(model.reasons(), IsEmpty());
  EXPECT_THAT(model.describe().warnings, ElementsAre(HasSubstr("total_size is 17")));
}

TEST(ModelDescription, EmptyDirectoryIsF3) {
  const TemporaryDirectory dir;
  const ModelDescription description = describe_directory(dir.path()).value().description;
  ASSERT_EQ(description.faults.size(), 1U);
  EXPECT_EQ(description.faults[0].reason, "Q-F3");
  EXPECT_EQ(describe_directory(dir.path() / "none").error().code, Errc::kNotFound);
}

}  // namespace
}  // namespace nibble::checkpoint
