// How ops use the thread pool: small work stays on the caller, the rest is cut into tasks that are
// long compared with handing them out.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/checked_math.h"
#include "device/device.h"

namespace nibble::kernels::cpu {

// Costs count multiply-adds on single floats, or what takes as long; a core does some 20 to 60 per
// nanosecond.
inline constexpr int64_t kInlineCost = 100'000;  // as long as waking the pool: a few microseconds
inline constexpr int64_t kTaskCost = 50'000;

inline int64_t num_threads(const device::Stream& stream) {
  return stream.pool == nullptr ? 1 : stream.pool->num_threads();
}

// Calls fn(begin, end) for disjoint ranges that cover [0, count); `item_cost` is that of one item.
template <class F>
void for_each_range(const device::Stream& stream, int64_t count, int64_t item_cost, const F& fn) {
  if (count <= 0) return;
  if (num_threads(stream) == 1 || count == 1 || count * item_cost <= kInlineCost) {
    fn(int64_t{0}, count);
    return;
  }
  const int64_t per_task = std::max<int64_t>(1, kTaskCost / std::max<int64_t>(1, item_cost));
  stream.pool->parallel_for(ceil_div(count, per_task), [&](int64_t task) {
    fn(task * per_task, std::min(count, (task + 1) * per_task));
  });
}

// Calls fn(i) for each i in [0, count).
template <class F>
void for_each_item(const device::Stream& stream, int64_t count, int64_t item_cost, const F& fn) {
  for_each_range(stream, count, item_cost, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) fn(i);
  });
}

}  // namespace nibble::kernels::cpu
