#include "cli/spot_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "checkpoint/temporary_directory_testing.h"
#include "hub/blob_record.h"
#include "hub/repo_cache.h"

namespace nibble::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const std::string kCommit(40, 'c');

void write_text(const Path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// A checkpoint of three one-byte tensors as `pull` leaves it.
class SpotCheckTest : public ::testing::Test {
 protected:
  SpotCheckTest() : cache_(dir_.path(), {.name = "acme/tiny"}) {
    CHECK(cache_.create_directories().ok());
    pull("config.json", std::string(40, 'a'), "{}");
    pull("model.safetensors", etag_, file_of("xyz"));
  }

  static std::string file_of(const std::string& data) {
    std::string header;
    for (size_t i = 0; i < data.size(); ++i) {
      header += (i == 0 ? "{" : ",") + std::string(1, '"') + static_cast<char>('a' + i) +
                R"(":{"dtype":"U8","shape":[1],"data_offsets":[)" + std::to_string(i) + "," +
                std::to_string(i + 1) + "]}";
    }
    header += '}';
    std::string length(8, '\0');
    length[0] = static_cast<char>(header.size());
    return length + header + data;
  }

  void pull(const std::string& name, const std::string& etag, const std::string& bytes) {
    write_text(cache_.blob(etag), bytes);
    const auto size = static_cast<int64_t>(bytes.size());
    hub::BlobHasher hasher(etag, size, hub::content_of(name));
    hasher.update(std::as_bytes(std::span(bytes)));
    write_text(cache_.record(etag), hasher.finish().record.to_json());
    CHECK(cache_.link_file(kCommit, {name, size, etag}, hub::LinkKind::kSymbolic).ok());
  }

  Result<SpotCheck> check(uint64_t seed = 1) const {
    return spot_check(checkpoint::Checkpoint::open(cache_.snapshot(kCommit)).value(), seed);
  }

  const std::string etag_ = std::string(64, 'e');
  const checkpoint::TemporaryDirectory dir_;
  const hub::RepoCache cache_;
};

TEST_F(SpotCheckTest, ReadsTwoTensorsOfAFile) {
  const Result<SpotCheck> done = check();
  ASSERT_TRUE(done.ok()) << done.error().message;
  EXPECT_EQ(done->num_files, 1);
  EXPECT_EQ(done->num_tensors, 2);
}

TEST_F(SpotCheckTest, FindsTensorsThatChanged) {
  write_text(cache_.blob(etag_), file_of("XYZ"));
  const Result<SpotCheck> done = check();
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().code, Errc::kDataLoss);
  EXPECT_THAT(done.error().message, HasSubstr("model.safetensors: tensor "));
  EXPECT_THAT(done.error().message, HasSubstr("nibble pull REPO --verify"));
}

TEST_F(SpotCheckTest, OtherSeedsDrawOtherTensors) {
  write_text(cache_.blob(etag_), file_of("xyZ"));
  std::set<bool> found;
  for (uint64_t seed = 0; seed < 40; ++seed) found.insert(check(seed).ok());
  EXPECT_EQ(found, (std::set<bool>{false, true}));
}

TEST_F(SpotCheckTest, FindsAFileOfOtherTensors) {
  write_text(cache_.blob(etag_), file_of("xy"));
  EXPECT_THAT(check().error().message, HasSubstr("tensor c: is missing"));
}

TEST_F(SpotCheckTest, PassesOverFilesWithoutARecord) {
  write_text(cache_.record(etag_), "no record");
  EXPECT_EQ(check()->num_files, 0);
  fs::remove(cache_.record(etag_));
  EXPECT_EQ(check()->num_files, 0);
  const Path elsewhere = dir_.path() / "plain";
  fs::create_directories(elsewhere);
  write_text(elsewhere / "config.json", "{}");
  write_text(elsewhere / "model.safetensors", file_of("abc"));
  EXPECT_EQ(spot_check(checkpoint::Checkpoint::open(elsewhere).value(), 1)->num_files, 0);
}

}  // namespace
}  // namespace nibble::cli
