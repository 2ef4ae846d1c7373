#include "bench_client/arrivals.h"

#include <cmath>

namespace nibble::bench_client {

std::vector<Duration> schedule_arrivals(size_t count,
                                        const ArrivalOptions& options,
                                        Random& random) {
  std::vector<Duration> arrivals(count, Duration::zero());
  if (count < 2 || std::isinf(options.request_rate)) return arrivals;
  std::vector<double> sums = {0.0};
  while (sums.size() < count) sums.push_back(sums.back() + random.gamma(options.burstiness));
  const double wanted_seconds = static_cast<double>(count - 1) / options.request_rate;
  const double scale = sums.back() > 0 ? wanted_seconds / sums.back() : 0.0;
  for (size_t i = 0; i < count; ++i) {
    arrivals[i] =
        std::chrono::duration_cast<Duration>(std::chrono::duration<double>(sums[i] * scale));
  }
  return arrivals;
}

}  // namespace nibble::bench_client
