// GET with the hub's manners: redirects followed by our own rules, the token kept to the endpoint's
// origin, answers turned into errors that say what to do, back-off between attempts.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/result.h"
#include "hub/config.h"
#include "hub/http.h"

namespace nibble::hub {

// Why an attempt failed, and whether another one makes sense.
struct Failure {
  Error error;
  bool is_retryable = false;
  std::optional<std::chrono::milliseconds> server_delay;  // Retry-After
};

Failure permanent(Error error);
Failure retryable(Error error);

struct FetchRequest {
  Url url;
  std::optional<ByteRange> range;
  std::string what;  // names the thing in messages
  // Asked about every good answer and redirect of the endpoint itself, before a body byte is used.
  std::function<std::optional<Failure>(const HttpHead&)> check_hub_head;
};

struct FetchOutcome {
  HttpHead head;  // of the last answer
  Url final_url;
  TransferEnd end = TransferEnd::kFailed;
  std::optional<Failure> failure;  // transport, redirect rules or status; not set for 200 and 206
};

// Bytes and requests of several threads.
class TransferCounter final {
 public:
  void add_request() { num_requests_.fetch_add(1, std::memory_order_relaxed); }
  void add_bytes(int64_t bytes) { num_bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  int64_t requests() const { return num_requests_.load(std::memory_order_relaxed); }
  int64_t body_bytes() const { return num_bytes_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> num_requests_{0};
  std::atomic<int64_t> num_bytes_{0};
};

// One connection and the rules. One thread at a time.
class Fetcher final {
 public:
  // All arguments must outlive this. `endpoint` is the origin that may see the token.
  Fetcher(const HubConfig& config,
          const Url& endpoint,
          const Cancel& cancel,
          TransferCounter& counter);

  // One attempt. The sink sees bodies of 200 and 206 only.
  FetchOutcome get(const FetchRequest& request, const BodySink& sink);

  // Repeats `attempt` until it succeeds, fails for good, is cancelled, or has brought nothing
  // `max_attempts` times in a row. The attempt sets `has_progressed` when it brought something.
  using Attempt = std::function<std::optional<Failure>(bool& has_progressed)>;
  Result<void> with_retries(const Attempt& attempt);

  // A whole small body. kDataLoss when it is longer than `max_bytes`.
  struct Document {
    HttpHead head;
    std::string body;
  };
  Result<Document> get_document(const Url& url, const std::string& what, int64_t max_bytes);

 private:
  bool may_see_token(const Url& url) const;
  // One hop: fills head, end and failure.
  void get_once(const FetchRequest& request, const BodySink& sink, FetchOutcome& outcome);
  std::chrono::milliseconds with_jitter(std::chrono::milliseconds delay);

  const HubConfig& config_;
  const Url& endpoint_;
  const Cancel& cancel_;
  TransferCounter& counter_;
  HttpConnection connection_;
  uint64_t jitter_state_;
};

// The wait before attempt number `attempt` (1 is the first repetition), without jitter.
std::chrono::milliseconds retry_delay(const RetryPolicy& policy, int32_t attempt);

// Retry-After in seconds or as an HTTP date, or the reset time of a RateLimit header.
std::optional<std::chrono::milliseconds> server_delay(const HttpHead& head, int64_t unix_now_s);

}  // namespace nibble::hub
