#include "device/thread_pool.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/check.h"
#include "device/buffer.h"
#include "device/cpu_topology.h"

namespace nibble::device {
namespace {

using SteadyClock = std::chrono::steady_clock;

// How long a thread burns its core before it sleeps: longer than the pause between two launches of
// one step, shorter than anybody notices.
constexpr auto kSpinTime = std::chrono::microseconds(40);

void cpu_relax() { __builtin_ia32_pause(); }

// Waits until `word` differs from `old`: spins for `spin_time`, then sleeps in the kernel.
template <class T>
void wait_for_change(const std::atomic<T>& word, T old, SteadyClock::duration spin_time) {
  constexpr int kPollsPerClockRead = 32;
  if (spin_time > SteadyClock::duration::zero()) {
    const auto deadline = SteadyClock::now() + spin_time;
    do {
      for (int i = 0; i < kPollsPerClockRead; ++i) {
        if (word.load(std::memory_order_acquire) != old) return;
        cpu_relax();
      }
    } while (SteadyClock::now() < deadline);
  }
  word.wait(old, std::memory_order_acquire);
}

}  // namespace

// One job at a time. `unclaimed_` carries the job's number (upper half) and its unclaimed tasks
// (lower half); a thread claims a task by one compare-exchange, so a thread that comes late to a
// finished job finds nothing to claim, and one that read the next job's half-written fields fails
// its exchange. Nobody waits for sleeping threads: a job is over when its tasks are.
class ThreadPool::Impl final {
 public:
  explicit Impl(const Options& options) {
    const std::vector<int32_t> cores = physical_cores();
    const auto num_cores = static_cast<int32_t>(cores.size());
    num_threads_ = options.num_threads > 0 ? options.num_threads : num_cores;
    // With more threads than cores a spinning thread would hold up one that has work.
    spin_time_ = num_threads_ <= num_cores ? kSpinTime : SteadyClock::duration::zero();
    const auto core_of = [&](int32_t thread) {
      return options.pin ? cores[static_cast<size_t>(thread % num_cores)] : -1;
    };
    if (options.pin) pin_this_thread(core_of(0));
    for (int32_t thread = 1; thread < num_threads_; ++thread) {
      workers_.emplace_back([this, core = core_of(thread)] { work(core); });
    }
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  ~Impl() {
    is_stopping_.store(true, std::memory_order_relaxed);
    signal_workers();
    for (std::thread& worker : workers_) worker.join();
  }

  int32_t num_threads() const { return num_threads_; }

  Result<std::byte*> scratch(int64_t num_bytes) {
    if (num_bytes > scratch_.num_bytes()) {
      scratch_ = {};  // before the new one, so that both never exist at once
      TRY_ASSIGN(scratch_, Buffer::allocate(num_bytes));
    }
    return scratch_.data();
  }

  void run(int64_t num_tasks, TaskFn fn, void* context) {
    if (workers_.empty() || num_tasks <= 1) {
      for (int64_t task = 0; task < num_tasks; ++task) fn(context, task);
      return;
    }
    CHECK(num_tasks <= int64_t{kTaskMask}) << num_tasks;
    fn_.store(fn, std::memory_order_relaxed);
    context_.store(context, std::memory_order_relaxed);
    num_tasks_.store(static_cast<uint32_t>(num_tasks), std::memory_order_relaxed);
    pending_.store(static_cast<uint32_t>(num_tasks), std::memory_order_relaxed);
    ++job_;
    unclaimed_.store(uint64_t{job_} << kTaskBits | static_cast<uint64_t>(num_tasks),
                     std::memory_order_release);
    signal_workers();
    run_tasks();
    uint32_t pending = pending_.load(std::memory_order_acquire);
    while (pending != 0) {
      wait_for_change(pending_, pending, spin_time_);
      pending = pending_.load(std::memory_order_acquire);
    }
  }

 private:
  static constexpr int kTaskBits = 32;
  static constexpr uint64_t kTaskMask = (uint64_t{1} << kTaskBits) - 1;

  void signal_workers() {
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
  }

  void work(int32_t core) {
    if (core >= 0) pin_this_thread(core);
    uint32_t epoch = 0;
    while (!is_stopping_.load(std::memory_order_relaxed)) {
      run_tasks();
      wait_for_change(epoch_, epoch, spin_time_);
      epoch = epoch_.load(std::memory_order_acquire);
    }
  }

  // Claims and runs tasks until none is left.
  void run_tasks() {
    uint64_t unclaimed = unclaimed_.load(std::memory_order_acquire);
    while ((unclaimed & kTaskMask) != 0) {
      const TaskFn fn = fn_.load(std::memory_order_relaxed);
      void* const context = context_.load(std::memory_order_relaxed);
      const uint32_t num_tasks = num_tasks_.load(std::memory_order_relaxed);
      if (!unclaimed_.compare_exchange_weak(
              unclaimed, unclaimed - 1, std::memory_order_acquire, std::memory_order_acquire)) {
        continue;
      }
      fn(context, int64_t{num_tasks} - static_cast<int64_t>(unclaimed & kTaskMask));
      if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_one();
      unclaimed = unclaimed_.load(std::memory_order_acquire);
    }
  }

  int32_t num_threads_ = 1;
  SteadyClock::duration spin_time_{};
  uint32_t job_ = 0;  // caller's thread only
  Buffer scratch_;    // caller's thread only

  // The job. Written by the caller while nothing is claimable, read by all.
  alignas(64) std::atomic<TaskFn> fn_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<uint32_t> num_tasks_{0};
  std::atomic<bool> is_stopping_{false};

  alignas(64) std::atomic<uint64_t> unclaimed_{0};
  alignas(64) std::atomic<uint32_t> pending_{0};  // tasks not yet finished
  alignas(64) std::atomic<uint32_t> epoch_{0};    // counts signals; what idle workers sleep on

  std::vector<std::thread> workers_;
};

ThreadPool::ThreadPool(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
ThreadPool::~ThreadPool() = default;

int32_t ThreadPool::num_threads() const { return impl_->num_threads(); }
Result<std::byte*> ThreadPool::scratch(int64_t num_bytes) { return impl_->scratch(num_bytes); }
void ThreadPool::run(int64_t num_tasks, TaskFn fn, void* context) {
  impl_->run(num_tasks, fn, context);
}

}  // namespace nibble::device
