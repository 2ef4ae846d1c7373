#include "server/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <string>

namespace nibble::server {
namespace {

using Verdict = StallDetector::Verdict;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr StallDetector::Limits kLimits = {.dump_after = seconds(10), .give_up_after = seconds(30)};

TimePoint at(int second) { return TimePoint(seconds(second)); }

TEST(StallDetector, DumpsOnceAndGivesUp) {
  StallDetector detector(kLimits);
  EXPECT_EQ(detector.look({.num_steps = 5, .has_work = true}, at(0)), Verdict::kFine);
  EXPECT_EQ(detector.look({.num_steps = 5, .has_work = true}, at(9)), Verdict::kFine);
  EXPECT_EQ(detector.look({.num_steps = 5, .has_work = true}, at(10)), Verdict::kDump);
  EXPECT_EQ(detector.look({.num_steps = 5, .has_work = true}, at(20)), Verdict::kFine);
  EXPECT_EQ(detector.stalled_for(), seconds(20));
  EXPECT_EQ(detector.look({.num_steps = 5, .has_work = true}, at(30)), Verdict::kGiveUp);
}

TEST(StallDetector, TakesEveryStepForProgress) {
  StallDetector detector(kLimits);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(detector.look({.num_steps = i, .has_work = true}, at(9 * i)), Verdict::kFine);
  }
}

TEST(StallDetector, WaitsTenTimesAsLongAsStepsTake) {
  StallDetector detector({.dump_after = seconds(10), .give_up_after = seconds(0)});
  for (int i = 0; i <= 5; ++i) detector.look({.num_steps = i, .has_work = true}, at(8 * i));
  EXPECT_EQ(detector.look({.num_steps = 5, .has_work = true}, at(40 + 79)), Verdict::kFine);
  EXPECT_EQ(detector.look({.num_steps = 5, .has_work = true}, at(40 + 80)), Verdict::kDump);
  // Faster ones count in the end.
  for (int i = 6; i < 100; ++i) detector.look({.num_steps = i, .has_work = true}, at(114 + i));
  EXPECT_EQ(detector.look({.num_steps = 99, .has_work = true}, at(213 + 10)), Verdict::kDump);
}

TEST(StallDetector, LetsAnIdleEngineRest) {
  StallDetector detector(kLimits);
  EXPECT_EQ(detector.look({.num_steps = 5, .has_work = false}, at(0)), Verdict::kFine);
  EXPECT_EQ(detector.look({.num_steps = 5, .has_work = false}, at(1000)), Verdict::kFine);
  EXPECT_EQ(detector.look({.num_steps = 5, .has_work = true}, at(1001)), Verdict::kFine);
  EXPECT_EQ(detector.stalled_for(), seconds(1));
  EXPECT_EQ(detector.look({.num_steps = 6, .has_work = true}, at(1002)), Verdict::kFine);
  EXPECT_EQ(detector.stalled_for(), seconds(0));
}

TEST(StallDetector, DumpsAgainAfterARecovery) {
  StallDetector detector({.dump_after = seconds(10), .give_up_after = seconds(0)});
  detector.look({.num_steps = 1, .has_work = true}, at(0));
  EXPECT_EQ(detector.look({.num_steps = 1, .has_work = true}, at(15)), Verdict::kDump);
  EXPECT_EQ(detector.look({.num_steps = 2, .has_work = true}, at(16)), Verdict::kFine);
  EXPECT_EQ(detector.look({.num_steps = 2, .has_work = true}, at(26)), Verdict::kDump);
  EXPECT_EQ(detector.look({.num_steps = 2, .has_work = true}, at(9999)), Verdict::kFine);
}

TEST(Watchdog, WritesTheStateBeforeItGivesUp) {
  const Path dir = Path(::testing::TempDir()) / ("watchdog_test." + std::to_string(::getpid()));
  std::filesystem::create_directories(dir);
  std::promise<void> gave_up;
  std::atomic<bool> has_given_up = false;
  {
    const Watchdog watchdog(
        {.limits = {.dump_after = Duration(0), .give_up_after = Duration(1)},
         .dump_dir = dir,
         .interval = std::chrono::milliseconds(1)},
        {.progress = [] { return EngineProgress{.num_steps = 7, .has_work = true}; },
         .state = [] { return std::string("engine: 7 steps\n"); },
         .give_up =
             [&] {
               if (!has_given_up.exchange(true)) gave_up.set_value();
             }});
    gave_up.get_future().wait();
    EXPECT_GT(watchdog.stalled_seconds(), 0);
  }
  const Path file = std::filesystem::directory_iterator(dir)->path();
  EXPECT_THAT(file.filename().string(), HasSubstr("nibble-stall-" + std::to_string(::getpid())));
  const std::string text = read_file(file, 1 << 20).value();
  EXPECT_THAT(text, HasSubstr("no step for"));
  EXPECT_THAT(text, HasSubstr("engine: 7 steps"));
  EXPECT_THAT(text, HasSubstr("threads:\n"));
  struct stat info = {};
  ASSERT_EQ(::stat(file.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U);
  std::filesystem::remove_all(dir);
}

TEST(StateFile, SaysWhyItCannotBeWritten) {
  const Result<Path> file = write_state_file("/nonexistent", "x", "text");
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(file.error().message, HasSubstr("/nonexistent/x-"));
}

}  // namespace
}  // namespace nibble::server
