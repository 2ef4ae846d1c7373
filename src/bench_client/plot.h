// Throughput against latency as an SVG image: what a server gives at what price.
#pragma once

#include <string>
#include <vector>

namespace nibble::bench_client {

struct PlotPoint {
  std::string label;      // e.g. "16" for a concurrency
  double throughput = 0;  // output tokens per second
  double median_tpot_ms = 0;
  double p99_tpot_ms = 0;
  double median_ttft_ms = 0;
  double p99_ttft_ms = 0;
};

// Two panels with the same vertical axis: throughput over the time per output token, and over the
// time to the first token, median and P99 each. Points are joined in their order. The image has no
// script and no external part, and follows the reader's light or dark scheme.
std::string render_plot(const std::string& title,
                        const std::string& point_name,
                        const std::vector<PlotPoint>& points);

}  // namespace nibble::bench_client
