// Row-wise work on host tensors that is too small for a kernel of its own.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/checked_math.h"
#include "device/device.h"

namespace nibble::models::deepseek_v4 {

// Calls f(row) for each row in [0, num_rows), on all threads. f must not touch other rows' data.
template <class F>
void for_each_row(int64_t num_rows, device::Stream& stream, F&& f) {
  constexpr int64_t kRowsPerTask = 16;  // some microseconds of work
  stream.pool->parallel_for(ceil_div(num_rows, kRowsPerTask), [&](int64_t task) {
    const int64_t end = std::min((task + 1) * kRowsPerTask, num_rows);
    for (int64_t row = task * kRowsPerTask; row < end; ++row) f(row);
  });
}

}  // namespace nibble::models::deepseek_v4
