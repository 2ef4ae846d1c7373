#include "device/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

#include "device/cpu_topology.h"

namespace nibble::device {
namespace {

// Runs one job of num_tasks and returns how often each task ran. Counters are plain: the pool must
// order them.
std::vector<int> run_counts(ThreadPool& pool, int64_t num_tasks) {
  std::vector<int> counts(static_cast<size_t>(num_tasks), 0);
  pool.parallel_for(num_tasks, [&](int64_t task) { ++counts[static_cast<size_t>(task)]; });
  return counts;
}

TEST(ThreadPool, RunsEachTaskOnce) {
  for (const int32_t num_threads : {1, 2, 3, 8}) {
    ThreadPool pool({.num_threads = num_threads});
    EXPECT_EQ(pool.num_threads(), num_threads);
    for (const int64_t num_tasks : {0, 1, 2, 7, 1000}) {
      EXPECT_EQ(run_counts(pool, num_tasks), std::vector<int>(static_cast<size_t>(num_tasks), 1));
    }
  }
}

TEST(ThreadPool, ManySmallJobsLoseAndRepeatNothing) {
  for (const int32_t num_threads : {2, 5}) {
    ThreadPool pool({.num_threads = num_threads});
    int64_t total = 0, expected = 0;
    for (int64_t job = 0; job < 3000; ++job) {
      const int64_t num_tasks = job % 7;
      std::vector<int64_t> values(static_cast<size_t>(num_tasks));
      pool.parallel_for(num_tasks,
                        [&](int64_t task) { values[static_cast<size_t>(task)] = job + task; });
      total += std::accumulate(values.begin(), values.end(), int64_t{0});
      expected += num_tasks * job + num_tasks * (num_tasks - 1) / 2;
    }
    EXPECT_EQ(total, expected);
  }
}

TEST(ThreadPool, SleepingWorkersWakeForTheNextJob) {
  ThreadPool pool({.num_threads = 2});
  for (int round = 0; round < 20; ++round) {
    // The first task ends only when the second has started, so both threads must take part.
    // Yielding between rounds lets the worker reach its sleep in some of them.
    std::atomic<int> started{0};
    pool.parallel_for(2, [&](int64_t) {
      started.fetch_add(1);
      while (started.load() < 2) std::this_thread::yield();
    });
    EXPECT_EQ(started.load(), 2);
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();
  }
}

TEST(ThreadPool, WithOneThreadRunsOnTheCallerInOrder) {
  ThreadPool pool({.num_threads = 1});
  std::vector<int64_t> order;
  const std::thread::id caller = std::this_thread::get_id();
  pool.parallel_for(4, [&](int64_t task) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    order.push_back(task);
  });
  EXPECT_EQ(order, (std::vector<int64_t>{0, 1, 2, 3}));
}

TEST(ThreadPool, StartsAndStopsWithoutWork) {
  for (int i = 0; i < 50; ++i) ThreadPool pool({.num_threads = 4, .pin = false});
}

TEST(ThreadPool, DefaultsToTheCoresOfThisProcess) {
  EXPECT_EQ(ThreadPool({}).num_threads(), static_cast<int32_t>(physical_cores().size()));
}

TEST(ThreadPool, ScratchGrowsAndStays) {
  ThreadPool pool({.num_threads = 2});
  std::byte* const first = pool.scratch(1000).value();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0u);
  EXPECT_EQ(*pool.scratch(10), first);
  std::byte* const grown = pool.scratch(1 << 20).value();
  grown[(1 << 20) - 1] = std::byte{1};
  EXPECT_EQ(*pool.scratch(1 << 20), grown);
  EXPECT_EQ(pool.scratch(INT64_MAX).error().code, Errc::kExhausted);
  EXPECT_TRUE(pool.scratch(64).ok());
}

}  // namespace
}  // namespace nibble::device
