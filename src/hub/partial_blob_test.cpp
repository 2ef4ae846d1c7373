#include "hub/partial_blob.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include "base/hash.h"
#include "hub/blob_record.h"
#include "hub/hub_testing.h"

namespace nibble::hub {
namespace {

constexpr int64_t kSize = 4 * kBlockBytes + 10;

class PartialBlobTest : public ::testing::Test {
 protected:
  std::unique_ptr<PartialBlob> open(int64_t size = kSize) {
    return PartialBlob::open(file_, journal_, size).value();
  }
  int64_t recorded(int64_t size = kSize) {
    return PartialBlob::recorded_bytes(file_, journal_, size);
  }
  static std::span<const std::byte> block(int64_t index) {
    static const std::string bytes = pattern_bytes(static_cast<size_t>(kSize), 1);
    return std::as_bytes(std::span(bytes))
        .subspan(static_cast<size_t>(index * kBlockBytes),
                 static_cast<size_t>(block_bytes(kSize, index)));
  }
  static void expect_span(const std::optional<BlockSpan>& span, int64_t begin, int64_t end) {
    ASSERT_TRUE(span.has_value());
    EXPECT_EQ(span->begin, begin);
    EXPECT_EQ(span->end, end);
  }

  const TemporaryDirectory directory_;
  const Path file_ = directory_.path() / "blob";
  const Path journal_ = directory_.path() / "journal";
};

TEST_F(PartialBlobTest, RemembersBlocksAcrossProcesses) {
  EXPECT_EQ(open()->store(2, block(2)).value(), kBlockBytes);
  EXPECT_EQ(open()->store(4, block(4)).value(), 10);
  EXPECT_EQ(recorded(), kBlockBytes + 10);
  const auto blob = open();
  EXPECT_EQ(blob->present_bytes(), kBlockBytes + 10);
  std::vector<std::byte> bytes(static_cast<size_t>(kBlockBytes));
  EXPECT_EQ(blob->read_back(2, bytes).value(), hash_bytes(block(2)));
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), block(2).begin()));
  expect_span(blob->take_span(100), 0, 2);
  expect_span(blob->take_span(100), 3, 4);
  EXPECT_FALSE(blob->take_span(100).has_value());
}

TEST_F(PartialBlobTest, StoringTwiceCountsOnce) {
  const auto blob = open();
  EXPECT_EQ(blob->store(0, block(0)).value(), kBlockBytes);
  EXPECT_EQ(blob->store(0, block(0)).value(), 0);
  EXPECT_EQ(blob->present_bytes(), kBlockBytes);
}

TEST_F(PartialBlobTest, ReleasedBlocksThatWereNotStoredAreMissingAgain) {
  const auto blob = open();
  const BlockSpan span = blob->take_span(3).value();
  expect_span(span, 0, 3);
  ASSERT_TRUE(blob->store(1, block(1)).ok());
  blob->release_span(span);
  expect_span(blob->take_span(3), 0, 1);
  expect_span(blob->take_span(3), 2, 5);
}

TEST_F(PartialBlobTest, ASingleStreamIsTakenByOneAndGoesToTheEnd) {
  const auto blob = open();
  ASSERT_TRUE(blob->store(0, block(0)).ok());
  ASSERT_TRUE(blob->store(2, block(2)).ok());
  blob->set_single_stream();
  const std::optional<BlockSpan> span = blob->take_span(1);
  expect_span(span, 1, 5);
  EXPECT_FALSE(blob->take_span(1).has_value());
  blob->release_span(*span);
  expect_span(blob->take_span(1), 1, 5);
}

TEST_F(PartialBlobTest, ABlockThatReadsBackDifferentlyIsNoticedAndDiscarded) {
  const auto blob = open();
  ASSERT_TRUE(blob->store(1, block(1)).ok());
  {
    const UniqueFd fd = open_file(file_, O_WRONLY).value();
    const std::byte wrong{0};
    ASSERT_TRUE(write_at(fd, file_, kBlockBytes + 77, std::span(&wrong, 1)).ok());
  }
  std::vector<std::byte> bytes(static_cast<size_t>(kBlockBytes));
  EXPECT_EQ(blob->read_back(1, bytes).value(), std::nullopt);
  EXPECT_EQ(blob->discard(1).value(), kBlockBytes);
  EXPECT_EQ(recorded(), 0);
  expect_span(blob->take_span(2), 0, 2);
}

TEST_F(PartialBlobTest, AJournalAheadOfItsFileIsNotBelieved) {
  ASSERT_TRUE(open()->store(4, block(4)).ok());
  std::filesystem::resize_file(file_, static_cast<uintmax_t>(kBlockBytes));  // as after a power cut
  EXPECT_EQ(open()->present_bytes(), 0);
}

TEST_F(PartialBlobTest, AJournalOfSomethingElseStartsAnew) {
  ASSERT_TRUE(open()->store(0, block(0)).ok());
  EXPECT_EQ(recorded(kSize + 1), 0);
  EXPECT_EQ(open(kSize + 1)->present_bytes(), 0);
  write_text(journal_, "not a journal, and longer than its header");
  EXPECT_EQ(open()->present_bytes(), 0);
  ASSERT_TRUE(open()->store(0, block(0)).ok());
  EXPECT_EQ(recorded(), kBlockBytes);
}

TEST_F(PartialBlobTest, ACutJournalKeepsTheEntriesItHas) {
  {
    const auto blob = open();
    for (int64_t i = 0; i < 5; ++i) ASSERT_TRUE(blob->store(i, block(i)).ok());
  }
  std::filesystem::resize_file(journal_, 24 + 2 * 8 + 3);
  EXPECT_EQ(open()->present_bytes(), 2 * kBlockBytes);
}

TEST_F(PartialBlobTest, AFileThatIsTooLongIsShortened) {
  ASSERT_TRUE(open()->store(4, block(4)).ok());
  std::filesystem::resize_file(file_, static_cast<uintmax_t>(kSize + 99));
  EXPECT_EQ(open()->present_bytes(), 10);
  EXPECT_EQ(std::filesystem::file_size(file_), static_cast<uintmax_t>(kSize));
}

TEST_F(PartialBlobTest, DiscardAllStartsAnew) {
  const auto blob = open();
  for (int64_t i = 0; i < 5; ++i) ASSERT_TRUE(blob->store(i, block(i)).ok());
  EXPECT_EQ(blob->discard_all().value(), kSize);
  EXPECT_EQ(recorded(), 0);
  expect_span(blob->take_span(100), 0, 5);
}

TEST_F(PartialBlobTest, AnEmptyFileHasNoBlocks) {
  const auto blob = open(0);
  EXPECT_FALSE(blob->take_span(1).has_value());
  EXPECT_EQ(std::filesystem::file_size(file_), 0U);
}

TEST_F(PartialBlobTest, WaitingEndsWithACancel) {
  const auto blob = open();
  Cancel cancel;
  cancel.request();
  EXPECT_FALSE(blob->wait_for(0, cancel));
  ASSERT_TRUE(blob->store(0, block(0)).ok());
  EXPECT_TRUE(blob->wait_for(0, cancel));
}

}  // namespace
}  // namespace nibble::hub
