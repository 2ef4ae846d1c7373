#include "hub/repo_cache.h"

#include <gtest/gtest.h>

#include "hub/disk.h"
#include "hub/errors.h"
#include "hub/hub_testing.h"

namespace nibble::hub {
namespace {

const std::string kCommit(40, 'c');
const std::string kEtag(64, 'e');

class RepoCacheTest : public ::testing::Test {
 protected:
  RepoCacheTest() : cache_(directory_.path(), {.name = "org/name"}) {
    CHECK(cache_.create_directories().ok());
  }

  const TemporaryDirectory directory_;
  const RepoCache cache_;
};

TEST_F(RepoCacheTest, UsesTheNamesThatAllToolsUse) {
  const Path root = directory_.path() / "models--org--name";
  EXPECT_EQ(cache_.root(), root);
  EXPECT_EQ(cache_.blob(kEtag), root / "blobs" / kEtag);
  EXPECT_EQ(cache_.snapshot(kCommit), root / "snapshots" / kCommit);
  EXPECT_EQ(cache_.lock(kEtag),
            directory_.path() / ".locks" / "models--org--name" / (kEtag + ".lock"));
  EXPECT_EQ(RepoCache(directory_.path(), {.name = "gpt2"}).root(),
            directory_.path() / "models--gpt2");
}

TEST_F(RepoCacheTest, LinksAreRelativeAndReplaced) {
  write_text(cache_.blob(kEtag), "bytes");
  const RepoFile file{"sub/dir/name.txt", 5, kEtag};
  const Path link = cache_.snapshot(kCommit) / file.path;
  std::filesystem::create_directories(link.parent_path());
  write_text(link, "in the way");
  ASSERT_TRUE(cache_.link_file(kCommit, file, LinkKind::kSymbolic).ok());
  EXPECT_EQ(std::filesystem::read_symlink(link), Path("../../../../blobs") / kEtag);
  EXPECT_EQ(read_file(link, 100).value(), "bytes");
  ASSERT_TRUE(cache_.link_file(kCommit, file, LinkKind::kSymbolic).ok());
  const std::vector<RepoFile> files = cache_.snapshot_files(kCommit).value();
  ASSERT_EQ(files.size(), 1U);
  EXPECT_EQ(files[0].path, file.path);
  EXPECT_EQ(files[0].etag, kEtag);
  EXPECT_EQ(files[0].size, 5);
  EXPECT_EQ(record_of_snapshot_file(link),
            std::filesystem::canonical(cache_.root()) / ".nibble" / (kEtag + ".json"));
  EXPECT_EQ(record_of_snapshot_file(directory_.path()), std::nullopt);
}

TEST_F(RepoCacheTest, HardLinksLeadToTheSameBlobs) {
  write_text(cache_.blob(kEtag), "bytes");
  const RepoFile file{"sub/name.txt", 5, kEtag};
  const Path link = cache_.snapshot(kCommit) / file.path;
  for (int32_t round = 0; round < 2; ++round) {
    ASSERT_TRUE(cache_.link_file(kCommit, file, LinkKind::kHard).ok());
    EXPECT_FALSE(std::filesystem::is_symlink(link));
    EXPECT_EQ(std::filesystem::hard_link_count(link), 2U);
  }
  EXPECT_TRUE(std::filesystem::is_empty(cache_.scratch()));
  const std::vector<RepoFile> files = cache_.snapshot_files(kCommit).value();
  ASSERT_EQ(files.size(), 1U);
  EXPECT_EQ(files[0].etag, kEtag);
  EXPECT_EQ(files[0].size, 5);
  EXPECT_EQ(record_of_snapshot_file(link),
            std::filesystem::canonical(cache_.root()) / ".nibble" / (kEtag + ".json"));
  // A repaired blob is another file under the same name.
  write_text(cache_.scratch() / "new", "other");
  std::filesystem::rename(cache_.scratch() / "new", cache_.blob(kEtag));
  EXPECT_TRUE(cache_.snapshot_files(kCommit).value().empty());
  ASSERT_TRUE(cache_.link_file(kCommit, file, LinkKind::kHard).ok());
  EXPECT_EQ(read_file(link, 100).value(), "other");
}

TEST_F(RepoCacheTest, AdoptsFilesThatLieInTheSnapshotItself) {
  const RepoFile file{"sub/name.txt", 5, kEtag};
  const Path path = cache_.snapshot(kCommit) / file.path;
  cache_.adopt_file(kCommit, file);
  EXPECT_FALSE(std::filesystem::exists(cache_.blob(kEtag)));
  std::filesystem::create_directories(path.parent_path());
  write_text(path, "too long");
  cache_.adopt_file(kCommit, file);
  EXPECT_FALSE(std::filesystem::exists(cache_.blob(kEtag)));
  write_text(path, "bytes");
  cache_.adopt_file(kCommit, file);
  EXPECT_EQ(read_file(cache_.blob(kEtag), 100).value(), "bytes");
  EXPECT_EQ(std::filesystem::hard_link_count(path), 2U);
}

TEST_F(RepoCacheTest, AdoptionChangesNoBlobAndFollowsNoLink) {
  const RepoFile file{"name.txt", 5, kEtag};
  const Path path = cache_.snapshot(kCommit) / file.path;
  std::filesystem::create_directories(path.parent_path());
  write_text(path, "other");
  write_text(cache_.blob(kEtag), "bytes");
  cache_.adopt_file(kCommit, file);
  EXPECT_EQ(read_file(cache_.blob(kEtag), 100).value(), "bytes");
  const std::string second(64, 'f');
  std::filesystem::remove(path);
  std::filesystem::create_symlink(cache_.blob(kEtag), path);
  cache_.adopt_file(kCommit, {"name.txt", 5, second});
  EXPECT_FALSE(std::filesystem::exists(cache_.blob(second)));
}

TEST_F(RepoCacheTest, RefsAreReadAsWritten) {
  EXPECT_EQ(cache_.read_ref("main").value(), std::nullopt);
  ASSERT_TRUE(cache_.write_ref("refs/pr/1", kCommit).ok());
  EXPECT_EQ(cache_.read_ref("refs/pr/1").value(), kCommit);
  write_text(cache_.root() / "refs" / "main", kCommit + "\n");
  EXPECT_EQ(cache_.read_ref("main").value(), kCommit);
  write_text(cache_.root() / "refs" / "main", "../../elsewhere");
  EXPECT_EQ(cache_.read_ref("main").error().reason, kReasonIntegrity);
}

TEST_F(RepoCacheTest, MeasuresWhatItHolds) {
  write_text(cache_.blob(kEtag), std::string(100'000, 'x'));
  write_text(cache_.partial(kEtag), std::string(50'000, 'x'));
  const std::vector<CacheUse> uses = measure_cache(directory_.path());
  ASSERT_EQ(uses.size(), 1U);
  EXPECT_EQ(uses[0].root, cache_.root());
  EXPECT_GE(uses[0].bytes, 150'000);
  EXPECT_GE(uses[0].partial_bytes, 50'000);
  EXPECT_LT(uses[0].partial_bytes, 100'000);
}

TEST(Bytes, ReadWell) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(1234), "1.2 kB");
  EXPECT_EQ(format_bytes(123'456), "123 kB");
  EXPECT_EQ(format_bytes(999'999), "1.0 MB");
  EXPECT_EQ(format_bytes(160'000'000'000), "160 GB");
}

}  // namespace
}  // namespace nibble::hub
