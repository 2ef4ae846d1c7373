// When requests start: the schedule of an open-loop run.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "base/clock.h"
#include "bench_client/random.h"

namespace nibble::bench_client {

struct ArrivalOptions {
  double request_rate = std::numeric_limits<double>::infinity();  // per second
  // Shape of the gamma distribution of the gaps: 1 is a Poisson process, less is burstier, more is
  // more regular.
  double burstiness = 1.0;
};

// Start times since the start of the run, ascending, the first at once. The gaps are scaled so that
// the last arrival falls where the rate puts it, as other benchmarks do. All zero for an infinite
// rate.
std::vector<Duration> schedule_arrivals(size_t count,
                                        const ArrivalOptions& options,
                                        Random& random);

}  // namespace nibble::bench_client
