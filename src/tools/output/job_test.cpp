#include "tools/output/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <map>

#include "base/hash.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/temporary_directory_testing.h"
#include "tools/output/journal.h"

namespace nibble::tools {
namespace {

namespace fs = std::filesystem;
using checkpoint::TemporaryDirectory;
using ::testing::HasSubstr;

constexpr int32_t kNumPieces = 7;
constexpr int64_t kTensorBytes = 1000;

// Pieces of two tensors each, in several writes; three shards of at most three pieces.
Job make_job(const Path& dir) {
  Job job;
  job.out = dir / "out";
  job.shard_bytes = 3 * (kTensorBytes + 8);
  job.record_name = "record.json";
  job.identity = json::make_object({{"job", "test"}});
  job.texts = {{"config.json", "{}\n"}};
  job.copies = {{dir / "tokenizer.json", "tokenizer.json"}};
  std::ofstream(dir / "tokenizer.json") << "[1]";
  for (int32_t i = 0; i < kNumPieces; ++i) {
    Piece piece;
    piece.module_class = i % 2 == 0 ? "even" : "odd";
    piece.tensors = {{"t" + std::to_string(i), DType::kU8, {kTensorBytes}},
                     {"s" + std::to_string(i), DType::kI64, {1}}};
    piece.make = [i](const WriteBytes& write) -> Result<ErrorStatistics> {
      const std::vector<std::byte> half(kTensorBytes / 2, static_cast<std::byte>(i + 1));
      TRY(write(0, kTensorBytes / 2, half));
      TRY(write(0, 0, half));
      const int64_t value = i;
      TRY(write(1, 0, std::as_bytes(std::span(&value, 1))));
      return ErrorStatistics{.num_exact_tensors = 1, .num_elements = i, .sum_error2 = 0.1 * i};
    };
    job.pieces.push_back(std::move(piece));
  }
  return job;
}

Result<JobResult> run(const Job& job,
                      std::function<Result<void>(std::string_view)> before_step = {}) {
  device::ThreadPool pool({.num_threads = 3});
  return run_job(job, {.pool = pool, .before_step = std::move(before_step)});
}

// File name -> hash of the content.
std::map<std::string, uint64_t> contents(const Path& dir) {
  std::map<std::string, uint64_t> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir)) {
    const std::string text = read_file(entry.path(), 1 << 20).value();
    files[entry.path().filename()] = hash_bytes(std::as_bytes(std::span(text)));
  }
  return files;
}

std::map<std::string, uint64_t> expected_contents() {
  const TemporaryDirectory dir;
  const Job job = make_job(dir.path());
  EXPECT_TRUE(run(job).ok());
  return contents(job.out);
}

TEST(RunJob, WritesAReadableCheckpoint) {
  const TemporaryDirectory dir;
  const Job job = make_job(dir.path());
  const Result<JobResult> result = run(job);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(result->num_shards, 3);
  EXPECT_EQ(result->num_bytes, kNumPieces * (kTensorBytes + 8));
  EXPECT_EQ(result->statistics.at("even").num_exact_tensors, 4);
  EXPECT_EQ(result->statistics.at("odd").num_elements, 1 + 3 + 5);

  const auto checkpoint = checkpoint::Checkpoint::open(job.out);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->tensors().size(), 2u * kNumPieces);
  EXPECT_TRUE(checkpoint->warnings().empty());
  EXPECT_EQ(checkpoint->shard_of("t6"), "model-00003-of-00003.safetensors");
  for (int32_t i = 0; i < kNumPieces; ++i) {
    const TensorView view = checkpoint->tensor("t" + std::to_string(i)).value();
    for (int64_t j = 0; j < kTensorBytes; ++j) ASSERT_EQ(view.as<uint8_t>()[j], i + 1);
    EXPECT_EQ(*checkpoint->tensor("s" + std::to_string(i))->as<int64_t>(), i);
  }
  EXPECT_EQ(read_file(job.out / "tokenizer.json", 100).value(), "[1]");
  EXPECT_FALSE(fs::exists(incomplete_path(job.out)));
  EXPECT_FALSE(fs::exists(job.out / kJournalName));
}

TEST(RunJob, WritesNoIndexForOneShard) {
  const TemporaryDirectory dir;
  Job job = make_job(dir.path());
  job.shard_bytes = 1 << 20;
  ASSERT_TRUE(run(job).ok());
  EXPECT_TRUE(fs::exists(job.out / "model.safetensors"));
  EXPECT_FALSE(fs::exists(job.out / "model.safetensors.index.json"));
}

// Errors at each step, as a hook reports them; after each the same job is resumed to the end.
TEST(RunJob, ResumesAfterAnErrorAtEveryStep) {
  const auto expected = expected_contents();
  int32_t num_steps = 0;
  for (int32_t stop = 0;; ++stop) {
    const TemporaryDirectory dir;
    Job job = make_job(dir.path());
    int32_t step = 0;
    const auto stop_here = [&](std::string_view what) -> Result<void> {
      if (step++ == stop) return internal_error("stopped before " + std::string(what));
      return {};
    };
    if (run(job, stop_here).ok()) break;
    num_steps = stop + 1;
    job.resume = true;
    const Result<JobResult> resumed = run(job);
    ASSERT_TRUE(resumed.ok()) << stop << ": " << resumed.error().message;
    EXPECT_EQ(contents(job.out), expected) << "stopped at step " << stop;
    EXPECT_FALSE(fs::exists(incomplete_path(job.out)));
  }
  EXPECT_GT(num_steps, 20);
}

// Runs the job in a process that kills itself with SIGKILL at the given step or write.
void run_and_die(const Job& job, int32_t at_step, int32_t at_piece) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Job mortal = job;
    for (int32_t i = 0; i < kNumPieces; ++i) {
      auto& make = mortal.pieces[static_cast<size_t>(i)].make;
      make = [i, at_piece, inner = make](const WriteBytes& write) -> Result<ErrorStatistics> {
        const std::vector<std::byte> junk(100, std::byte{0xEE});
        if (i == at_piece) {
          TRY(write(0, 300, junk));
          ::kill(::getpid(), SIGKILL);
        }
        return inner(write);
      };
    }
    int32_t step = 0;
    (void)run(mortal, [&](std::string_view) -> Result<void> {
      if (step++ == at_step) ::kill(::getpid(), SIGKILL);
      return {};
    });
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
}

TEST(RunJob, ResumesAfterSigkill) {
  const auto expected = expected_contents();
  for (int32_t moment = 0; moment < 40 + kNumPieces; ++moment) {
    const TemporaryDirectory dir;
    Job job = make_job(dir.path());
    const int32_t at_piece = moment - 40;
    run_and_die(job, at_piece < 0 ? moment : -1, at_piece);
    job.resume = true;
    const Result<JobResult> resumed = run(job);
    ASSERT_TRUE(resumed.ok()) << moment << ": " << resumed.error().message;
    EXPECT_EQ(contents(job.out), expected) << "killed at " << moment;
  }
}

TEST(RunJob, SurvivesSeveralDeathsInARow) {
  const auto expected = expected_contents();
  const TemporaryDirectory dir;
  Job job = make_job(dir.path());
  job.resume = true;
  for (const int32_t piece : {1, 4, 4, 6}) run_and_die(job, -1, piece);
  EXPECT_EQ(run(job)->num_shards_resumed, 2);
  EXPECT_EQ(contents(job.out), expected);
}

TEST(RunJob, RefusesAnExistingOutput) {
  const TemporaryDirectory dir;
  Job job = make_job(dir.path());
  fs::create_directory(job.out);
  const Result<JobResult> result = run(job);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, Errc::kInvalidArgument);
  EXPECT_THAT(result.error().message, HasSubstr("exists, expected a new directory"));
  job.resume = true;  // it is not what this job makes
  EXPECT_FALSE(run(job).ok());
  EXPECT_TRUE(fs::is_empty(job.out));
}

TEST(RunJob, RefusesAnInterruptedOutputWithoutResume) {
  const TemporaryDirectory dir;
  const Job job = make_job(dir.path());
  fs::create_directory(incomplete_path(job.out));
  const Result<JobResult> result = run(job);
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.error().message, HasSubstr("--resume"));
}

TEST(RunJob, RefusesToResumeAnotherJob) {
  const TemporaryDirectory dir;
  Job job = make_job(dir.path());
  ASSERT_FALSE(run(job, [](std::string_view step) -> Result<void> {
                 if (step == "write config.json") return internal_error("stop");
                 return {};
               }).ok());
  job.resume = true;
  job.identity.set("job", "another");
  const Result<JobResult> result = run(job);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, Errc::kInvalidArgument);
  EXPECT_THAT(result.error().message, HasSubstr("another job"));
}

TEST(RunJob, AcceptsItsOwnFinishedOutput) {
  const TemporaryDirectory dir;
  Job job = make_job(dir.path());
  const JobResult first = run(job).value();
  job.resume = true;
  const Result<JobResult> again = run(job);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->was_complete);
  EXPECT_EQ(again->statistics, first.statistics);
}

TEST(RunJob, IgnoresATornJournalLine) {
  const auto expected = expected_contents();
  const TemporaryDirectory dir;
  Job job = make_job(dir.path());
  ASSERT_FALSE(run(job, [](std::string_view step) -> Result<void> {
                 if (step == "create model-00003-of-00003.safetensors")
                   return internal_error("stop");
                 return {};
               }).ok());
  std::ofstream(incomplete_path(job.out) / kJournalName, std::ios::app)
      << R"({"shard": "model-00003-of-0)";
  job.resume = true;
  const Result<JobResult> result = run(job);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(result->num_shards_resumed, 2);
  EXPECT_EQ(contents(job.out), expected);
}

TEST(RunJob, MakesAShardAgainWhoseFileIsGoneOrShort) {
  const auto expected = expected_contents();
  const TemporaryDirectory dir;
  Job job = make_job(dir.path());
  ASSERT_FALSE(run(job, [](std::string_view step) -> Result<void> {
                 if (step == "write index") return internal_error("stop");
                 return {};
               }).ok());
  const Path incomplete = incomplete_path(job.out);
  fs::remove(incomplete / "model-00001-of-00003.safetensors");
  fs::resize_file(incomplete / "model-00002-of-00003.safetensors", 100);
  job.resume = true;
  EXPECT_EQ(run(job)->num_shards_resumed, 1);
  EXPECT_EQ(contents(job.out), expected);
}

TEST(RunJob, RefusesASecondWriter) {
  const TemporaryDirectory dir;
  Job job = make_job(dir.path());
  job.resume = true;
  fs::create_directory(incomplete_path(job.out));
  std::optional<Result<JobResult>> second;
  ASSERT_TRUE(run(job, [&](std::string_view step) -> Result<void> {
                if (step == "write config.json") second = run(job);
                return {};
              }).ok());
  ASSERT_TRUE(second.has_value());
  ASSERT_FALSE(second->ok());
  EXPECT_EQ(second->error().code, Errc::kUnavailable);
}

TEST(RunJob, PassesOnWhatAPieceReports) {
  const TemporaryDirectory dir;
  Job job = make_job(dir.path());
  job.pieces[4].make = [](const WriteBytes&) -> Result<ErrorStatistics> {
    return data_loss("tensor t4: damaged");
  };
  const Result<JobResult> result = run(job);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().message, "tensor t4: damaged");
  EXPECT_FALSE(fs::exists(job.out));
}

TEST(RunJob, ReportsProgressToTheEnd) {
  const TemporaryDirectory dir;
  const Job job = make_job(dir.path());
  device::ThreadPool pool({.num_threads = 2});
  int64_t last = 0, total = 0;
  ASSERT_TRUE(run_job(job,
                      {.pool = pool,
                       .progress =
                           [&](int64_t done, int64_t all) {
                             EXPECT_GT(done, last);
                             last = done;
                             total = all;
                           }})
                  .ok());
  EXPECT_EQ(last, total);
  EXPECT_EQ(total, kNumPieces * (kTensorBytes + 8));
}

// In a mount namespace of its own with a disk of 64 KB; the exit code tells the outcome.
int run_on_small_disk(const Path& mount_point, bool fill_it_later) {
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("tmpfs", mount_point.c_str(), "tmpfs", 0, "size=64k") != 0) {
    return 77;
  }
  Job job = make_job(mount_point);
  job.shard_bytes = 3 * 20'008;
  for (Piece& piece : job.pieces) {
    piece.tensors[0].shape = fill_it_later ? Shape{3000} : Shape{20'000};
  }
  const Path filler = mount_point / "filler";
  const Result<JobResult> result = run(job, [&](std::string_view step) -> Result<void> {
    if (!fill_it_later || !step.starts_with("create model")) return {};
    std::ofstream(filler) << std::string(60'000, 'x');
    return {};
  });
  if (result.ok() || result.error().code != Errc::kExhausted) return 1;
  if (fs::exists(job.out)) return 2;
  if (!fill_it_later) return result.error().message.find("bytes free") == std::string::npos ? 3 : 0;
  fs::remove(filler);
  job.resume = true;
  return run(job).ok() ? 0 : 4;
}

void expect_on_small_disk(bool fill_it_later) {
  const TemporaryDirectory dir;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(run_on_small_disk(dir.path(), fill_it_later));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "this user may not mount a small disk";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(RunJob, LooksForDiskSpaceBeforeItStarts) { expect_on_small_disk(false); }
TEST(RunJob, ResumesAfterTheDiskWasFull) { expect_on_small_disk(true); }

}  // namespace
}  // namespace nibble::tools
