// One run: conversations go to a server by schedule, and what comes back is recorded with its
// times. One thread, which only waits and stamps; the times are those of the arriving bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/result.h"
#include "bench_client/arrivals.h"
#include "bench_client/dataset.h"
#include "bench_client/http_client.h"
#include "bench_client/target.h"

namespace nibble::bench_client {

struct LoadOptions {
  ArrivalOptions arrivals;
  // Conversations in flight; the next due ones wait in the client, outside all latencies. 0: any.
  int32_t max_concurrency = 0;
  // How often a request that got 429 or 503 is sent again, after Retry-After or else 1, 2, 4 ...
  // seconds. Its latency runs from the first time.
  int32_t max_retries = 0;
  uint64_t seed = 0;
};

struct RequestRecord {
  TimePoint due_at;       // by the schedule; of later turns: when the answer before was complete
  TimePoint sent_at;      // the first time
  TimePoint finished_at;  // complete, or given up
  int64_t asked_prompt_tokens = 0;  // 0: not known beforehand
  int32_t asked_output_tokens = 0;
  int32_t turn = 0;
  int32_t num_retries = 0;
  Reply reply;
};

struct RunRecord {
  TimePoint start;
  TimePoint end;
  std::vector<RequestRecord> requests;  // in the order in which they ended
  int32_t peak_concurrency = 0;
  int64_t num_unsent = 0;  // turns behind one that failed
};

struct LoadEvents {
  std::function<bool()> is_interrupted;                       // asked ten times a second
  std::function<void(int64_t done, int64_t total)> progress;  // requests
};

// kCancelled when interrupted. Failed requests are part of the record, not errors.
Result<RunRecord> run_load(HttpClient& client,
                           const Target& target,
                           const std::vector<Conversation>& conversations,
                           const LoadOptions& options,
                           const LoadEvents& events);

}  // namespace nibble::bench_client
