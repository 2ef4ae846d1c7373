#include "server/watchdog.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "base/thread_name.h"

namespace nibble::server {
namespace {

// What the kernel says about each thread: its name and where it waits.
std::string describe_threads() {
  std::string text = "threads:\n";
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", failed)) {
    const auto line_of = [&entry](const char* file) {
      std::string line;
      std::getline(std::ifstream(entry.path() / file), line);
      return line.empty() ? std::string("?") : line;
    };
    const std::string stat = line_of("stat");
    const size_t name_end = stat.rfind(") ");
    const std::string state = name_end == std::string::npos ? "?" : stat.substr(name_end + 2, 1);
    fmt::format_to(std::back_inserter(text),
                   "  {} {} state {} waits in {}\n",
                   entry.path().filename().string(),
                   line_of("comm"),
                   state,
                   line_of("wchan"));
  }
  return text;
}

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t num_written = ::write(fd, text.data(), text.size());
    if (num_written < 0 && errno == EINTR) continue;
    if (num_written <= 0) return false;
    text.remove_prefix(static_cast<size_t>(num_written));
  }
  return true;
}

}  // namespace

StallDetector::Verdict StallDetector::look(const EngineProgress& progress, TimePoint now) {
  if (!progress.has_work || progress.num_steps != num_steps_) {
    note_steps(progress, now);
    num_steps_ = progress.num_steps;
    last_change_ = now;
    has_dumped_ = false;
  }
  stalled_for_ = now - last_change_;
  const auto is_over = [&](Duration limit) {
    return limit > Duration::zero() && stalled_for_ >= limit;
  };
  if (is_over(limits_.give_up_after)) return Verdict::kGiveUp;
  if (has_dumped_ || !is_over(limits_.dump_after)) return Verdict::kFine;
  constexpr int64_t kMediansOfAStall = 10;
  if (stalled_for_ < kMediansOfAStall * median_step()) return Verdict::kFine;
  has_dumped_ = true;
  return Verdict::kDump;
}

void StallDetector::note_steps(const EngineProgress& progress, TimePoint now) {
  const int64_t num_new = progress.num_steps - num_steps_;
  if (num_steps_ < 0 || num_new <= 0) return;
  const Duration mean = (now - last_change_) / num_new;
  if (step_times_.size() < kRecentLooks) {
    step_times_.push_back(mean);
    return;
  }
  step_times_[next_time_] = mean;
  next_time_ = (next_time_ + 1) % kRecentLooks;
}

Duration StallDetector::median_step() const {
  constexpr size_t kFewest = 4;  // one stall is not how long steps take
  if (step_times_.size() < kFewest) return Duration::zero();
  std::vector<Duration> times = step_times_;
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

Watchdog::Watchdog(Options options, Engine engine)
    : options_(std::move(options)),
      engine_(std::move(engine)),
      detector_(options_.limits),
      thread_([this] { run(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  stop_.notify_one();
  thread_.join();
}

double Watchdog::stalled_seconds() const {
  const std::lock_guard lock(mutex_);
  return to_seconds(detector_.stalled_for());
}

void Watchdog::run() {
  name_this_thread("nibble-watchdog");
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, options_.interval, [this] { return is_stopping_; })) {
    lock.unlock();
    look();
    lock.lock();
  }
}

void Watchdog::look() {
  const EngineProgress progress = engine_.progress();
  StallDetector::Verdict verdict = StallDetector::Verdict::kFine;
  Duration stalled_for{};
  {
    const std::lock_guard lock(mutex_);
    verdict = detector_.look(progress, std::chrono::steady_clock::now());
    stalled_for = detector_.stalled_for();
  }
  if (verdict == StallDetector::Verdict::kFine) return;
  dump(stalled_for);
  if (verdict == StallDetector::Verdict::kGiveUp) engine_.give_up();
}

void Watchdog::dump(Duration stalled_for) {
  const double seconds = to_seconds(stalled_for);
  const std::string text =
      fmt::format("no step for {:.1f} s\n{}{}", seconds, engine_.state(), describe_threads());
  const Result<Path> file = write_state_file(options_.dump_dir, "nibble-stall", text);
  if (file.ok()) {
    log_error("the engine has made no step for {:.1f} s; state in {}", seconds, file->string());
  } else {
    log_error("the engine has made no step for {:.1f} s; {}", seconds, file.error().message);
  }
}

Result<Path> write_state_file(const Path& dir, std::string_view prefix, std::string_view text) {
  static std::atomic<int> count = 0;
  const Path path = dir / fmt::format("{}-{}-{}.txt", prefix, ::getpid(), count.fetch_add(1));
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  const bool is_written = fd >= 0 && write_all(fd, text);
  const int fault = errno;
  if (fd >= 0) ::close(fd);
  if (is_written) return path;
  return unavailable(fmt::format("{}: cannot write: {}", path.string(), std::strerror(fault)));
}

}  // namespace nibble::server
