#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <cstring>

#include "checkpoint/output_file.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/temporary_directory_testing.h"

namespace nibble::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Path kTinyModel = Path(NIBBLE_SOURCE_DIR) / "models" / "tiny-v4";

std::string contents(const Path& path) { return read_file(path, 1 << 20).value(); }

class SmallTensors {
 public:
  std::vector<NamedTensor> list() {
    return {{"z", TensorView::contiguous(bytes_.data(), DType::kU8, {3})},
            {"scalar", TensorView::contiguous(floats_.data(), DType::kF32, {})},
            {"m", TensorView::contiguous(floats_.data(), DType::kF32, {2, 2})},
            {"empty", TensorView::contiguous(nullptr, DType::kBf16, {0, 7})},
            {"ids", TensorView::contiguous(ids_.data(), DType::kI64, {1, 2})}};
  }

 private:
  std::array<float, 4> floats_ = {1, 2, 3, 4};
  std::array<uint8_t, 3> bytes_ = {7, 8, 9};
  std::array<int64_t, 2> ids_ = {-1, 1'000'000'000'000};
};

TEST(Checkpoint, ReadsWhatTheWriterWrote) {
  const TemporaryDirectory dir;
  SmallTensors tensors;
  const std::vector<std::pair<std::string, std::string>> metadata = {{"format", "pt"}};
  ASSERT_TRUE(write_safetensors(dir.path() / "model.safetensors", tensors.list(), metadata).ok());

  const Result<Checkpoint> checkpoint = Checkpoint::open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  ASSERT_EQ(checkpoint->tensors().size(), 5u);
  EXPECT_EQ(checkpoint->tensors()[0].name, "empty");  // sorted by name
  EXPECT_EQ(checkpoint->data_bytes(), 3 + 4 + 16 + 0 + 16);
  for (const NamedTensor& expected : tensors.list()) {
    const Result<TensorView> view = checkpoint->tensor(expected.name);
    ASSERT_TRUE(view.ok());
    EXPECT_EQ(view->dtype, expected.view.dtype);
    EXPECT_EQ(view->shape, expected.view.shape);
    const auto size = static_cast<size_t>(view->num_bytes());
    EXPECT_TRUE(size == 0 || std::memcmp(view->data, expected.view.data, size) == 0)
        << expected.name;
    EXPECT_EQ(checkpoint->shard_of(expected.name), "model.safetensors");
  }
  const float first = checkpoint->find("m")->as<float>()[0];
  checkpoint->drop_resident();
  EXPECT_EQ(checkpoint->find("m")->as<float>()[0], first);
}

TEST(Checkpoint, NamesTheTensorThatIsMissing) {
  const TemporaryDirectory dir;
  ASSERT_TRUE(write_safetensors(dir.path() / "model.safetensors", SmallTensors().list()).ok());
  const Checkpoint checkpoint = Checkpoint::open(dir.path()).value();
  const Result<TensorView> view = checkpoint.tensor("layers.3.w");
  ASSERT_FALSE(view.ok());
  EXPECT_EQ(view.error().code, Errc::kNotFound);
  EXPECT_THAT(view.error().message, HasSubstr("layers.3.w"));
  EXPECT_THAT(view.error().message, HasSubstr("5 tensors"));
  EXPECT_EQ(checkpoint.find("layers.3.w"), std::nullopt);
  EXPECT_EQ(checkpoint.find_meta("layers.3.w"), nullptr);
  EXPECT_EQ(checkpoint.shard_of("layers.3.w"), "");
}

TEST(Checkpoint, IgnoresOtherFilesWithoutAnIndex) {
  const TemporaryDirectory dir;
  ASSERT_TRUE(write_safetensors(dir.path() / "model.safetensors", SmallTensors().list()).ok());
  dir.write("consolidated.safetensors", "damaged");
  dir.write("model-00001-of-00002.safetensors", "damaged");
  const Result<Checkpoint> checkpoint = Checkpoint::open(dir.path());
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_THAT(checkpoint->shard_names(), ElementsAre("model.safetensors"));
}

TEST(Checkpoint, FollowsTheLinksOfAHubCache) {
  const TemporaryDirectory cache;
  std::filesystem::create_directories(cache.path() / "blobs");
  std::filesystem::create_directories(cache.path() / "snapshots" / "main");
  ASSERT_TRUE(write_safetensors(cache.path() / "blobs" / "0123abcd", SmallTensors().list()).ok());
  std::filesystem::create_symlink("../../blobs/0123abcd",
                                  cache.path() / "snapshots" / "main" / "model.safetensors");
  EXPECT_TRUE(Checkpoint::open(cache.path() / "snapshots" / "main").ok());
}

TEST(Checkpoint, RefusesADanglingIndexLink) {
  const TemporaryDirectory dir;
  ASSERT_TRUE(write_safetensors(dir.path() / "model.safetensors", SmallTensors().list()).ok());
  std::filesystem::create_symlink("gone.json", dir.path() / "model.safetensors.index.json");
  const Result<Checkpoint> checkpoint = Checkpoint::open(dir.path());
  ASSERT_FALSE(checkpoint.ok());
  EXPECT_EQ(checkpoint.error().code, Errc::kNotFound);
}

TEST(Checkpoint, WarnsOfAWrongTotalSize) {
  const TemporaryDirectory dir;
  std::array<float, 2> data = {1, 2};
  const std::vector<NamedTensor> tensors = {
      {"a", TensorView::contiguous(data.data(), DType::kF32, {2})}};
  ASSERT_TRUE(write_safetensors(dir.path() / "a.safetensors", tensors).ok());
  dir.write("model.safetensors.index.json",
            R"({"metadata":{"total_size":9},"weight_map":{"a":"a.safetensors"}})");
  const Result<Checkpoint> checkpoint = Checkpoint::open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  ASSERT_EQ(checkpoint->warnings().size(), 1u);
  EXPECT_THAT(checkpoint->warnings()[0], HasSubstr("total_size is 9"));
  EXPECT_THAT(checkpoint->warnings()[0], HasSubstr("hold 8 bytes"));
}

TEST(Checkpoint, RefusesADirectoryThatDoesNotExist) {
  const Result<Checkpoint> checkpoint = Checkpoint::open("/nonexistent/model");
  ASSERT_FALSE(checkpoint.ok());
  EXPECT_EQ(checkpoint.error().code, Errc::kNotFound);
  EXPECT_THAT(checkpoint.error().message, HasSubstr("/nonexistent/model"));
}

TEST(Checkpoint, OpensTheBundledModel) {
  const Result<Checkpoint> checkpoint = Checkpoint::open(kTinyModel);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->shard_names().size(), 3u);
  EXPECT_TRUE(checkpoint->warnings().empty());
  const TensorMeta* embed = checkpoint->find_meta("embed.weight");
  ASSERT_NE(embed, nullptr);
  EXPECT_EQ(embed->dtype, DType::kBf16);
  EXPECT_EQ(embed->shape, (Shape{4096, 256}));
}

TEST(WriteSafetensors, IsReproducibleAndAligned) {
  const TemporaryDirectory dir;
  SmallTensors tensors;
  std::vector<NamedTensor> list = tensors.list();
  ASSERT_TRUE(write_safetensors(dir.path() / "a", list).ok());
  std::reverse(list.begin(), list.end());
  ASSERT_TRUE(write_safetensors(dir.path() / "b", list).ok());
  const std::string bytes = contents(dir.path() / "a");
  EXPECT_EQ(bytes, contents(dir.path() / "b"));
  const auto header = parse_safetensors_header(
      std::as_bytes(std::span(bytes)), static_cast<int64_t>(bytes.size()), "a");
  ASSERT_TRUE(header.ok()) << header.error().message;
  EXPECT_EQ(header->data_begin % 8, 0);
}

TEST(WriteSafetensors, RefusesBadNames) {
  const TemporaryDirectory dir;
  std::array<float, 1> data = {1};
  const TensorView view = TensorView::contiguous(data.data(), DType::kF32, {1});
  const std::vector<NamedTensor> twice = {{"a", view}, {"b", view}, {"a", view}};
  const Result<void> duplicate = write_safetensors(dir.path() / "x", twice);
  ASSERT_FALSE(duplicate.ok());
  EXPECT_THAT(duplicate.error().message, HasSubstr("tensor a: the name is used twice"));
  const std::vector<NamedTensor> reserved = {{"__metadata__", view}};
  ASSERT_FALSE(write_safetensors(dir.path() / "x", reserved).ok());
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(WriteSafetensors, LeavesNothingBehindWhenItFails) {
  const TemporaryDirectory dir;
  const Result<void> missing = write_safetensors(dir.path() / "no" / "x", SmallTensors().list());
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, Errc::kNotFound);
  std::filesystem::create_directory(dir.path() / "taken");
  ASSERT_FALSE(write_safetensors(dir.path() / "taken", SmallTensors().list()).ok());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
}

// Renaming onto /dev/null would replace it for everybody.
TEST(OutputFile, RefusesToReplaceWhatIsNoFile) {
  const TemporaryDirectory dir;
  const Path pipe = dir.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const Path& path : {pipe, dir.path(), Path()}) {
    const Result<void> result = check_output(path);
    ASSERT_FALSE(result.ok()) << path;
    EXPECT_EQ(result.error().code, Errc::kInvalidArgument);
    EXPECT_FALSE(write_file(path, "text").ok());
  }
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_TRUE(check_output(dir.path() / "new").ok());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
}

TEST(SafetensorsPrefix, TellsHowManyBytesTheHeaderNeeds) {
  const TemporaryDirectory dir;
  ASSERT_TRUE(write_safetensors(dir.path() / "a", SmallTensors().list()).ok());
  const std::string bytes = contents(dir.path() / "a");
  const auto all = std::as_bytes(std::span(bytes));
  const auto size = static_cast<int64_t>(bytes.size());
  const int64_t needed = safetensors_prefix_bytes(all.first(8), size, "a").value();
  EXPECT_TRUE(parse_safetensors_header(all.first(static_cast<size_t>(needed)), size, "a").ok());
}

}  // namespace
}  // namespace nibble::checkpoint
