#include "base/crash_report.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace nibble {
namespace {

// What a child that crashes with `signal` leaves behind.
std::string report_of_crash(int signal) {
  const Path dir = Path(::testing::TempDir());
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(STDERR_FILENO);
    install_crash_report(dir, "1.2.3");
    const CrashScope ended("req-ended");
    { const CrashScope over("req-over"); }
    const CrashScope second("req-second");
    ::raise(signal);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), signal);
  const Path file = dir / ("nibble-crash-" + std::to_string(child) + ".txt");
  std::string text = read_file(file, 1 << 20).value();
  struct stat info = {};
  EXPECT_EQ(::stat(file.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U);
  std::filesystem::remove(file);
  return text;
}

TEST(CrashReport, NamesSignalVersionAndLiveWork) {
  const std::string text = report_of_crash(SIGABRT);
  EXPECT_NE(text.find("nibble 1.2.3\nsignal: SIGABRT\npid: "), std::string::npos) << text;
  EXPECT_NE(text.find("in flight:\n  req-ended\n  req-second\nbacktrace:\n"), std::string::npos)
      << text;
  EXPECT_EQ(text.find("req-over"), std::string::npos);
}

TEST(CrashReport, EndsTheProcessWithTheSignal) {
  EXPECT_NE(report_of_crash(SIGFPE).find("signal: SIGFPE\n"), std::string::npos);
}

TEST(CrashScope, CutsLongNamesAndIgnoresTooMany) {
  std::vector<std::unique_ptr<CrashScope>> scopes;
  for (size_t i = 0; i < 300; ++i)
    scopes.push_back(std::make_unique<CrashScope>(std::string(i, 'x')));
  scopes.clear();
  const CrashScope one("again");
}

}  // namespace
}  // namespace nibble
