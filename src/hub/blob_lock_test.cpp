#include "hub/blob_lock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hub/hub_testing.h"

namespace nibble::hub {
namespace {

using std::chrono::seconds;

class BlobLockTest : public ::testing::Test {
 protected:
  bool can_take() {
    std::string holder;
    return BlobLock::try_take(lock_, holder).value().has_value();
  }
  // An owner file of another process, with its last heartbeat `age` ago.
  void write_owner(const LockOwner& owner, seconds age) {
    write_text(owner_file_, owner.text());
    struct timespec times[2] = {};
    ::clock_gettime(CLOCK_REALTIME, &times[0]);
    times[0].tv_sec -= age.count();
    times[1] = times[0];
    ::utimensat(AT_FDCWD, owner_file_.c_str(), times, 0);
  }

  const TemporaryDirectory directory_;
  const Path lock_ = directory_.path() / "x.lock";
  const Path owner_file_ = directory_.path() / "x.lock.owner";
};

TEST_F(BlobLockTest, HasOneHolderAtATime) {
  std::string holder;
  {
    const auto held = BlobLock::try_take(lock_, holder).value();
    ASSERT_TRUE(held.has_value());
    EXPECT_TRUE(std::filesystem::exists(owner_file_));
    EXPECT_FALSE(BlobLock::try_take(lock_, holder).value().has_value());
    EXPECT_NE(holder.find(std::to_string(::getpid())), std::string::npos) << holder;
  }
  EXPECT_FALSE(std::filesystem::exists(owner_file_));
  EXPECT_TRUE(std::filesystem::exists(lock_));  // other tools may hold it open
  EXPECT_TRUE(can_take());
}

TEST_F(BlobLockTest, RespectsTheFlockOfOtherTools) {
  const UniqueFd other = open_file(lock_, O_RDWR | O_CREAT).value();
  ASSERT_EQ(::flock(other.get(), LOCK_EX | LOCK_NB), 0);
  EXPECT_FALSE(can_take());
  ::flock(other.get(), LOCK_UN);
  EXPECT_TRUE(can_take());
}

TEST_F(BlobLockTest, AProcessThatEndedIsSucceededAtOnce) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(0);
  LockOwner owner = LockOwner::self();
  owner.pid = child;
  ::waitpid(child, nullptr, 0);
  write_owner(owner, seconds(0));
  EXPECT_TRUE(can_take());
}

TEST_F(BlobLockTest, APidThatIsUsedAgainIsNotTheOwner) {
  LockOwner owner = LockOwner::self();
  owner.start_ticks += 1;
  EXPECT_TRUE(owner.is_gone(seconds(0)));
  owner = LockOwner::self();
  EXPECT_FALSE(owner.is_gone(seconds(1'000'000)));
  owner.boot = "an-earlier-one";
  EXPECT_TRUE(owner.is_gone(seconds(0)));
}

TEST_F(BlobLockTest, AnotherHostIsBelievedWhileItsHeartBeats) {
  LockOwner owner = LockOwner::self();
  owner.host = "elsewhere.example";
  write_owner(owner, kOwnerTimeout - seconds(10));
  EXPECT_FALSE(can_take());
  write_owner(owner, kOwnerTimeout + seconds(10));
  EXPECT_TRUE(can_take());
}

TEST_F(BlobLockTest, AnOwnerFileThatWasNeverWrittenExpiresSoon) {
  write_owner(LockOwner::self(), seconds(0));
  write_text(owner_file_, "");
  EXPECT_FALSE(can_take());
  struct timespec past[2] = {{1, 0}, {1, 0}};
  ::utimensat(AT_FDCWD, owner_file_.c_str(), past, 0);
  EXPECT_TRUE(can_take());
}

TEST_F(BlobLockTest, BeatsRenewTheOwnerFile) {
  std::string holder;
  const auto held = BlobLock::try_take(lock_, holder).value();
  struct timespec past[2] = {{1, 0}, {1, 0}};
  ::utimensat(AT_FDCWD, owner_file_.c_str(), past, 0);
  held->beat();
  struct stat info = {};
  ::stat(owner_file_.c_str(), &info);
  EXPECT_GT(info.st_mtim.tv_sec, 1);
}

TEST_F(BlobLockTest, WaitingEndsWithACancelAndSaysForWhom) {
  std::string holder;
  const auto held = BlobLock::try_take(lock_, holder).value();
  Cancel cancel;
  std::string told;
  const Result<BlobLock> waited = BlobLock::take(lock_, cancel, [&](const std::string& who) {
    told = who;
    cancel.request();
  });
  EXPECT_EQ(waited.error().code, Errc::kCancelled);
  EXPECT_FALSE(told.empty());
}

TEST(LockOwner, SurvivesItsOwnText) {
  const LockOwner owner{17, "host", "boot", 99};
  const LockOwner copy = LockOwner::parse(owner.text()).value();
  EXPECT_EQ(copy.pid, 17);
  EXPECT_EQ(copy.host, "host");
  EXPECT_EQ(copy.boot, "boot");
  EXPECT_EQ(copy.start_ticks, 99U);
  for (const char* text :
       {"", "17", "17 host boot\n", "x host boot 1\n", "-1 host boot 1\n", "1 h b x\n"}) {
    EXPECT_FALSE(LockOwner::parse(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace nibble::hub
