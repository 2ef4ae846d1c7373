// The figures of a run.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench_client/load.h"

namespace nibble::bench_client {

struct Distribution {
  int64_t count = 0;
  double mean = 0;
  double median = 0;
  double deviation = 0;
  double p90 = 0;
  double p95 = 0;
  double p99 = 0;
  double max = 0;
};

// Percentiles interpolate linearly between order statistics, as NumPy does. Zeros for no values.
Distribution distribution_of(std::vector<double> values);

// Bounds on what one request may take, in milliseconds; those that keep all of them are good.
struct Goals {
  std::optional<double> ttft;
  std::optional<double> tpot;
  std::optional<double> e2el;

  bool any() const { return ttft || tpot || e2el; }
};

struct FailureCount {
  int64_t count = 0;
  std::string example;  // the first message
};

struct Summary {
  int64_t num_completed = 0;
  int64_t num_failed = 0;
  int64_t num_unsent = 0;  // turns behind one that failed
  int64_t num_retries = 0;
  std::map<std::string, FailureCount> failures;  // by kind

  double duration_seconds = 0;
  int64_t input_tokens = 0;  // of completed requests, as all below
  int64_t output_tokens = 0;
  int64_t cached_tokens = 0;
  // Requests whose server gave no usage: their tokens are counted by events, their prompts not.
  int64_t num_without_usage = 0;
  int64_t num_other_input_length = 0;   // than asked for, of those where both are known
  int64_t num_other_output_length = 0;  // fewer tokens than asked for

  std::optional<double> request_goodput;  // requests that kept the goals, per second
  double request_throughput = 0;          // per second
  double output_throughput = 0;           // tokens per second
  double peak_output_throughput = 0;      // of the best whole second
  double total_throughput = 0;            // input and output
  double mean_concurrency = 0;            // sum of latencies / duration
  int32_t peak_concurrency = 0;
  double max_client_delay_ms = 0;  // how late a request was sent

  // Milliseconds. TTFT: sent to first token. TPOT: (last - first token) / (tokens - 1), one value
  // per request. ITL: between events that carry tokens. E2EL: sent to the end of the answer.
  Distribution ttft;
  Distribution tpot;
  Distribution itl;
  Distribution e2el;
};

Summary summarise(const RunRecord& run, const Goals& goals = {});

// Tokens of the answer: the server's count, or else the number of events that carried any.
int64_t output_tokens_of(const Reply& reply);

}  // namespace nibble::bench_client
