// Worker threads for CPU kernels: one per physical core, parked when idle. Owner of a pool: one
// executor thread, which takes part in the work; two threads must not submit to one pool at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "base/result.h"

namespace nibble::device {

class ThreadPool final {
 public:
  struct Options {
    int32_t num_threads = 0;  // 0: one per physical core that this process may run on
    bool pin = false;         // bind each thread to a core; refused bindings are ignored
  };
  explicit ThreadPool(const Options& options);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  int32_t num_threads() const;

  // Working memory of the launch in progress: at least num_bytes, aligned to 64 bytes,
  // uninitialised. The next call invalidates it. Grows to the largest request and keeps that. Not
  // to be called from inside a task. kExhausted when the system refuses.
  Result<std::byte*> scratch(int64_t num_bytes);

  // Calls fn(task) once for each task in [0, num_tasks), on all threads including the caller's, and
  // returns when all are done. Which thread runs which task is not specified, so results must not
  // depend on it. fn must not throw and must not call parallel_for. Workers spin for some tens of
  // microseconds between calls, then sleep.
  template <class F>
  void parallel_for(int64_t num_tasks, F&& fn) {
    using Fn = std::remove_reference_t<F>;
    run(
        num_tasks,
        [](void* context, int64_t task) { (*static_cast<Fn*>(context))(task); },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  using TaskFn = void (*)(void* context, int64_t task);
  void run(int64_t num_tasks, TaskFn fn, void* context);

  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble::device
