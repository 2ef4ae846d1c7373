// Notices an engine that has work but makes no step: writes down what it was doing, and in the end
// stops the process, so that a supervisor can start a new one.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/result.h"

namespace nibble::server {

struct EngineProgress {
  int64_t num_steps = 0;
  bool has_work = false;
};

// The rule alone, without thread and files.
class StallDetector final {
 public:
  struct Limits {
    // At the least: ten times what steps took lately where that is more. 0: never.
    Duration dump_after = std::chrono::seconds(10);
    Duration give_up_after = std::chrono::seconds(300);  // 0: never
  };
  enum class Verdict {
    kFine,
    kDump,  // once per stall
    kGiveUp,
  };

  explicit StallDetector(const Limits& limits) : limits_(limits) {}

  Verdict look(const EngineProgress& progress, TimePoint now);
  // Since the last step while there was work; 0 for an engine that is idle or has not begun.
  Duration stalled_for() const { return stalled_for_; }

 private:
  static constexpr size_t kRecentLooks = 32;

  void note_steps(const EngineProgress& progress, TimePoint now);
  Duration median_step() const;  // 0 until there were some

  const Limits limits_;
  int64_t num_steps_ = -1;
  TimePoint last_change_;
  Duration stalled_for_ = Duration::zero();
  bool has_dumped_ = false;
  std::vector<Duration> step_times_;  // of the last kRecentLooks looks that saw steps
  size_t next_time_ = 0;
};

class Watchdog final {
 public:
  struct Options {
    StallDetector::Limits limits;
    Path dump_dir;                                       // for state files
    Duration interval = std::chrono::milliseconds(500);  // between looks
  };
  struct Engine {
    std::function<EngineProgress()> progress;  // must not wait for the engine
    std::function<std::string()> state;        // without prompt text
    // After the last dump; ends the process.
    std::function<void()> give_up;
  };

  Watchdog(Options options, Engine engine);
  ~Watchdog();

  // For metrics; any thread.
  double stalled_seconds() const;

 private:
  void run();
  void look();
  void dump(Duration stalled_for);

  const Options options_;
  const Engine engine_;
  mutable std::mutex mutex_;
  std::condition_variable stop_;
  bool is_stopping_ = false;
  StallDetector detector_;
  std::thread thread_;
};

// Writes `text` to a new file DIR/PREFIX-PID-N.txt that only its owner may read; its path.
Result<Path> write_state_file(const Path& dir, std::string_view prefix, std::string_view text);

}  // namespace nibble::server
