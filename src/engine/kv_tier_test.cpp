#include "engine/kv_tier.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <utility>

namespace nibble::engine {
namespace {

Hash128 name(uint64_t i) { return {.low = i, .high = ~i}; }

TierPage page(uint64_t i, size_t entries_bytes = 100, size_t snapshot_bytes = 0) {
  TierPage page{.name = name(i), .parent = name(i - 1), .tokens = {1, 2, static_cast<int32_t>(i)}};
  page.entries.assign(entries_bytes, static_cast<std::byte>(i));
  page.snapshot.assign(snapshot_bytes, static_cast<std::byte>(i + 1));
  return page;
}

void put(KvTier& tier, TierPage&& stored) { tier.put(std::move(stored), KvTier::WhenFull::kWait); }

TierPages fetch(KvTier& tier, const std::vector<Hash128>& names) {
  tier.fetch(names);
  while (!tier.is_fetched()) tier.wait_fetched(std::chrono::seconds(1));
  return tier.take();
}

void expect_equal(const TierPage& actual, const TierPage& expected) {
  EXPECT_EQ(actual.name, expected.name);
  EXPECT_EQ(actual.parent, expected.parent);
  EXPECT_EQ(actual.tokens, expected.tokens);
  EXPECT_EQ(actual.entries, expected.entries);
  EXPECT_EQ(actual.snapshot, expected.snapshot);
}

TEST(MemoryTier, GivesBackWhatItTook) {
  const auto tier = make_memory_tier(1000, nullptr);
  put(*tier, page(1));
  put(*tier, page(2, 100, 50));
  EXPECT_EQ(tier->holds(name(1)), KvTier::Holds::kEntries);
  EXPECT_EQ(tier->holds(name(2)), KvTier::Holds::kEntriesAndSnapshot);
  EXPECT_EQ(tier->holds(name(3)), KvTier::Holds::kNothing);
  const TierPages pages = fetch(*tier, {name(1), name(2), name(3)});
  ASSERT_EQ(pages.size(), 2U);
  expect_equal(pages.at(name(2)), page(2, 100, 50));
  EXPECT_EQ(tier->num_bytes(), 0);
}

TEST(MemoryTier, StaysWithinItsBoundAndHandsOnTheOldest) {
  auto second = make_memory_tier(250, nullptr);
  KvTier& next = *second;
  const auto tier = make_memory_tier(250, std::move(second));  // two pages of 112 bytes each
  for (uint64_t i = 1; i <= 5; ++i) put(*tier, page(i));
  EXPECT_EQ(tier->holds(name(1)), KvTier::Holds::kNothing);
  EXPECT_EQ(next.holds(name(2)), KvTier::Holds::kEntries);
  EXPECT_EQ(next.holds(name(4)), KvTier::Holds::kNothing);
  EXPECT_EQ(tier->num_bytes(), 4 * 112);
  const TierPages pages = fetch(*tier, {name(2), name(5)});
  expect_equal(pages.at(name(2)), page(2));
  expect_equal(pages.at(name(5)), page(5));
}

class DiskTierTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::temp_directory_path() /
           ("nibble_disk_tier_" + std::to_string(::getpid()) + "_" +
            ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::unique_ptr<KvTier> open(int64_t max_bytes = 1'000'000, uint64_t model = 7) {
    return make_disk_tier({.dir = dir_, .max_bytes = max_bytes, .model = model}).value();
  }
  std::vector<Path> files() const {
    std::vector<Path> paths;
    for (const auto& file : std::filesystem::directory_iterator(dir_)) {
      if (file.path().extension() == ".kv") paths.push_back(file.path());
    }
    return paths;
  }

  Path dir_;
};

mode_t mode_of(const Path& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0);
  return status.st_mode & 0777;
}

TEST_F(DiskTierTest, SurvivesARestart) {
  {
    const auto tier = open();
    put(*tier, page(1));
    put(*tier, page(2, 1000, 500));
    tier->close();
  }
  const auto tier = open();
  EXPECT_EQ(tier->holds(name(1)), KvTier::Holds::kEntries);
  EXPECT_EQ(tier->holds(name(2)), KvTier::Holds::kEntriesAndSnapshot);
  const TierPages pages = fetch(*tier, {name(1), name(2), name(3)});
  ASSERT_EQ(pages.size(), 2U);
  expect_equal(pages.at(name(1)), page(1));
  expect_equal(pages.at(name(2)), page(2, 1000, 500));
}

TEST_F(DiskTierTest, FilesAreTheOwnersAlone) {
  const auto tier = open();
  put(*tier, page(1));
  tier->close();
  ASSERT_EQ(files().size(), 1U);
  EXPECT_EQ(mode_of(files()[0]), 0600U);
  EXPECT_EQ(mode_of(dir_ / "key"), 0600U);
  EXPECT_EQ(mode_of(dir_), 0700U);
}

TEST_F(DiskTierTest, OneAtATimeUsesADirectory) {
  {
    const auto tier = open();
    const auto second = make_disk_tier({.dir = dir_, .max_bytes = 1000});
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.error().code, Errc::kUnavailable);
    EXPECT_NE(second.error().message.find("another process caches pages there"), std::string::npos);
    put(*tier, page(1));
    tier->close();
  }
  EXPECT_EQ(open()->holds(name(1)), KvTier::Holds::kEntries);
}

// As when "/tmp" is named for the cache.
TEST_F(DiskTierTest, DirectoriesOfOthersStayAsTheyAre) {
  std::filesystem::create_directories(dir_);
  std::filesystem::permissions(dir_, std::filesystem::perms(0755));
  std::ofstream(dir_ / "letter.txt") << "x";
  const auto refused = disk_tier_key(dir_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("holds files of others"), std::string::npos);
  EXPECT_EQ(mode_of(dir_), 0755U);
  EXPECT_FALSE(std::filesystem::exists(dir_ / "key"));
}

TEST_F(DiskTierTest, EveryChangedByteIsNoticed) {
  {
    const auto tier = open();
    put(*tier, page(1, 40, 30));
    tier->close();
  }
  const Path file = files().at(0);
  const auto size = std::filesystem::file_size(file);
  std::string good(size, '\0');
  std::ifstream(file, std::ios::binary).read(good.data(), static_cast<std::streamsize>(size));
  for (size_t i = 0; i < good.size(); i += 5) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bad;
    const auto tier = open();
    EXPECT_TRUE(fetch(*tier, {name(1)}).empty()) << "byte " << i;
    EXPECT_EQ(tier->holds(name(1)), KvTier::Holds::kNothing);
    EXPECT_TRUE(files().empty());
  }
  std::ofstream(file, std::ios::binary | std::ios::trunc) << good.substr(0, 20);
  EXPECT_TRUE(fetch(*open(), {name(1)}).empty());
  std::ofstream(file, std::ios::binary | std::ios::trunc) << good;
  EXPECT_EQ(fetch(*open(), {name(1)}).size(), 1U);
}

TEST_F(DiskTierTest, PagesOfAnotherModelOrKeyAreNotUsed) {
  {
    const auto tier = open();
    put(*tier, page(1));
    put(*tier, page(2));
    tier->close();
  }
  EXPECT_TRUE(fetch(*open(1'000'000, 8), {name(1)}).empty());
  std::filesystem::remove(dir_ / "key");
  EXPECT_TRUE(fetch(*open(), {name(2)}).empty());
}

TEST_F(DiskTierTest, StaysWithinItsBoundLeastRecentlyUsedFirst) {
  const auto tier = open(1200);  // files of 300 bytes
  for (uint64_t i = 1; i <= 4; ++i) put(*tier, page(i, 200));
  tier->close();
  EXPECT_EQ(fetch(*tier, {name(1)}).size(), 1U);
  put(*tier, page(5, 200));
  tier->close();
  EXPECT_EQ(tier->holds(name(2)), KvTier::Holds::kNothing);
  EXPECT_EQ(tier->holds(name(1)), KvTier::Holds::kEntries);
  EXPECT_LE(tier->num_bytes(), 1200);
  EXPECT_EQ(files().size(), 4U);
  put(*tier, page(6, 5000));
  tier->close();
  EXPECT_EQ(tier->holds(name(6)), KvTier::Holds::kNothing);
}

TEST_F(DiskTierTest, ASnapshotThatComesLaterIsKept) {
  const auto tier = open();
  put(*tier, page(1));
  put(*tier, page(1, 100, 10));
  put(*tier, page(1));
  tier->close();
  EXPECT_EQ(tier->holds(name(1)), KvTier::Holds::kEntriesAndSnapshot);
  EXPECT_EQ(files().size(), 1U);
}

TEST_F(DiskTierTest, ClearingRemovesTheFiles) {
  const auto tier = open();
  put(*tier, page(1));
  tier->close();
  tier->clear();
  EXPECT_TRUE(files().empty());
  EXPECT_EQ(tier->num_bytes(), 0);
}

TEST_F(DiskTierTest, LeavesStrangeFilesAlone) {
  std::filesystem::create_directories(dir_);
  std::ofstream(dir_ / "notes.kv") << "mine";
  const auto tier = open();
  EXPECT_TRUE(std::filesystem::exists(dir_ / "notes.kv"));
  EXPECT_EQ(tier->num_bytes(), 0);
}

TEST_F(DiskTierTest, ADamagedKeyIsAnError) {
  std::filesystem::create_directories(dir_);
  std::ofstream(dir_ / "key") << "short";
  const auto tier = make_disk_tier({.dir = dir_, .max_bytes = 1000});
  ASSERT_FALSE(tier.ok());
  EXPECT_EQ(tier.error().code, Errc::kDataLoss);
}

}  // namespace
}  // namespace nibble::engine
