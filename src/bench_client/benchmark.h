// A benchmark from start to end: the target is checked, prompts are made, and one run is done for
// every request rate and concurrency of the sweep.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "bench_client/dataset.h"
#include "bench_client/load.h"
#include "bench_client/summary.h"
#include "bench_client/target.h"

namespace nibble::bench_client {

struct BenchmarkOptions {
  Target target;
  std::string backend = "openai-chat";  // as the user called the protocol
  std::optional<Path> tokenizer_dir;
  DatasetOptions dataset;

  std::vector<double> request_rates = {std::numeric_limits<double>::infinity()};
  std::vector<int32_t> max_concurrencies = {0};
  double burstiness = 1.0;
  int32_t num_warmups = 1;
  int32_t max_retries = 0;
  Goals goals;  // none: goodput is not counted
  uint64_t seed = 0;
  bool flush_cache = false;  // before every run
  bool profile = false;      // the server makes one of every run
};

// One run of the sweep with its settings.
struct RunReport {
  double request_rate = 0;
  int32_t max_concurrency = 0;
  uint64_t seed = 0;         // of the prompts and arrivals of this run
  int64_t num_requests = 0;  // all turns
  std::string dataset_hash;
  int32_t template_tokens = 0;
  std::string model;
  std::string server_version;
  std::string started_at;  // UTC, ISO 8601
  Summary summary;
  RunRecord record;
};

struct BenchmarkEvents {
  LoadEvents load;
  // After each run; an error ends the benchmark.
  std::function<Result<void>(const RunReport&)> on_run;
};

// Errors: those of check_target; of the warm-up, which must succeed; of the dataset; kUnavailable
// when a run completed no request; kCancelled.
Result<void> run_benchmark(BenchmarkOptions options, const BenchmarkEvents& events);

}  // namespace nibble::bench_client
