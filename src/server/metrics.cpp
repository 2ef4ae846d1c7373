#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <chrono>
#include <mutex>

#include "base/clock.h"

namespace nibble::server {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Labels;

const Histogram::BucketBoundaries kRequestSeconds = {
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1280};
const Histogram::BucketBoundaries kTokenSeconds = {
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10};

// One quantity under its two established names.
template <class Metric>
struct Twins {
  Metric& sglang;
  Metric& vllm;
};

// The engine keeps totals; a Prometheus counter can only be moved forward.
void advance_to(Counter& counter, int64_t total) {
  counter.Increment(std::max(0.0, static_cast<double>(total) - counter.Value()));
}

Labels with(Labels labels, const std::string& name, const std::string& value) {
  labels[name] = value;
  return labels;
}

// The largest value of the last one to two minutes: a gauge that scrapes of any interval see.
// Safe to use from any thread.
class RecentMaximum final {
 public:
  void observe(double value) {
    const std::lock_guard lock(mutex_);
    turn();
    current_ = std::max(current_, value);
  }
  double value() {
    const std::lock_guard lock(mutex_);
    turn();
    return std::max(current_, previous_);
  }

 private:
  void turn() {
    constexpr Duration kWindow = std::chrono::minutes(1);
    const TimePoint now = std::chrono::steady_clock::now();
    if (now - begin_ < kWindow) return;
    previous_ = now - begin_ < 2 * kWindow ? current_ : 0;
    current_ = 0;
    begin_ = now;
  }

  std::mutex mutex_;
  TimePoint begin_ = std::chrono::steady_clock::now();
  double current_ = 0;
  double previous_ = 0;
};

// Units per second between two readings of a total.
class Rate final {
 public:
  // Readings within a second repeat the last rate.
  double update(int64_t total) {
    const std::lock_guard lock(mutex_);
    const TimePoint now = std::chrono::steady_clock::now();
    const double seconds = to_seconds(now - read_at_);
    if (seconds < 1) return rate_;
    rate_ = static_cast<double>(total - total_) / seconds;
    total_ = total;
    read_at_ = now;
    return rate_;
  }

 private:
  std::mutex mutex_;
  TimePoint read_at_ = std::chrono::steady_clock::now();
  int64_t total_ = 0;
  double rate_ = 0;
};

}  // namespace

const char* finish_reason_name(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::kStop:
      return "stop";
    case engine::FinishReason::kLength:
      return "length";
    case engine::FinishReason::kCancelled:
      return "abort";
    case engine::FinishReason::kError:
      return "error";
  }
  return "error";
}

class Metrics::Impl final {
 public:
  explicit Impl(const Options& options)
      : model_{{"model_name", options.model_name}}, page_size_(options.page_size) {
    gauge("sglang:weight_load_duration_seconds", "Time to load the model.")
        .Set(options.load_seconds);
    auto& build = gauge_family("nibble_build_info", "The running version.");
    build.Add({{"version", options.version}}).Set(1);
    auto& kernels = gauge_family("nibble_kernel_info", "Kernel per kind of layer, and why.");
    for (const KernelSelection& selection : options.kernels) {
      const Labels labels = {{"layer_class", selection.layer_class},
                             {"kernel", selection.kernel},
                             {"reason", selection.reason}};
      kernels.Add(labels).Set(1);
    }
  }

  void on_response(std::string_view route, int status) {
    responses_.Add({{"route", std::string(route)}, {"code", std::to_string(status)}}).Increment();
  }

  void observe(Twins<Histogram>& twins, double seconds) {
    twins.sglang.Observe(seconds);
    twins.vllm.Observe(seconds);
  }
  void on_first_token(double seconds) { observe(first_token_, seconds); }
  void on_token_gap(double seconds) {
    observe(token_gap_, seconds);
    recent_gap_.observe(seconds);
  }

  void on_finish(const engine::Finish& finish, double seconds) {
    Labels labels = model_;
    labels["finished_reason"] = finish_reason_name(finish.reason);
    finished_.Add(labels).Increment();
    requests_.Increment();
    if (finish.reason == engine::FinishReason::kCancelled) sglang_aborted_.Increment();
    observe(e2e_, seconds);
    observe(queue_, finish.queue_seconds);
    prefill_.Observe(finish.prefill_seconds);
    decode_.Observe(finish.decode_seconds);
    const int32_t num_gaps = finish.usage.completion_tokens - 1;
    if (num_gaps > 0) observe(token_time_, finish.decode_seconds / num_gaps);
  }

  void on_aborted(std::string_view cause) {
    sglang_aborted_.Increment();
    aborted_.Add({{"cause", std::string(cause)}}).Increment();
  }
  void on_rejected(std::string_view reason) {
    rejected_.Add({{"reason", std::string(reason)}}).Increment();
  }
  void on_unknown_fields(int64_t count) { unknown_fields_.Increment(static_cast<double>(count)); }

  std::string expose(const engine::EngineStats& stats, const Now& now) {
    expose_load(stats);
    expose_cache(stats);
    advance_both(prompt_tokens_, stats.prompt_tokens_total);
    advance_both(generation_tokens_, stats.generation_tokens_total);
    advance_both(preemptions_, stats.preemptions_total);
    throughput_.Set(rate_.update(stats.generation_tokens_total));
    advance_to(steps_, stats.steps_total);
    longest_gap_.Set(recent_gap_.value());
    connections_.Set(now.num_connections);
    body_bytes_.Set(static_cast<double>(now.num_buffered_body_bytes));
    stalled_.Set(now.stalled_seconds);
    return prometheus::TextSerializer().Serialize(registry_.Collect());
  }

 private:
  static void set(Twins<Gauge>& twins, double value) {
    twins.sglang.Set(value);
    twins.vllm.Set(value);
  }

  static void advance_both(Twins<Counter>& twins, int64_t total) {
    advance_to(twins.sglang, total);
    advance_to(twins.vllm, total);
  }

  void expose_load(const engine::EngineStats& stats) {
    set(running_, stats.num_running);
    set(waiting_, stats.num_queued);
    expected_wait_.Set(stats.expected_wait_seconds);
    const double num_pages = std::max(stats.num_pages_total, 1);
    set(kv_usage_, stats.num_pages_used / num_pages);
    const auto tokens = [this](int32_t pages) { return 1.0 * page_size_ * pages; };
    used_tokens_.Set(tokens(stats.num_pages_used));
    kv_used_tokens_.Set(tokens(stats.num_pages_used - stats.num_pages_cached));
    kv_evictable_tokens_.Set(tokens(stats.num_pages_cached));
    kv_available_tokens_.Set(tokens(stats.num_pages_total - stats.num_pages_used));
  }

  void expose_cache(const engine::EngineStats& stats) {
    const auto num_queried = static_cast<double>(stats.prefix_query_tokens_total);
    const auto num_hit = static_cast<double>(stats.prefix_hit_tokens_total);
    hit_rate_.Set(num_queried > 0 ? num_hit / num_queried : 0.0);
    advance_both(cached_tokens_, stats.prefix_hit_tokens_total);
    advance_to(prefix_queries_, stats.prefix_query_tokens_total);
    advance_to(pages_evicted_, stats.pages_evicted_total);
    advance_to(snapshots_evicted_, stats.snapshots_evicted_total);
    advance_to(tier_pages_, stats.tier_hit_pages_total);
    tier_bytes_.Set(static_cast<double>(stats.tier_bytes));
    snapshots_used_.Set(stats.num_snapshots_used);
  }

  prometheus::Family<Counter>& counter_family(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry_);
  }
  prometheus::Family<Gauge>& gauge_family(const char* name, const char* help) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry_);
  }
  Histogram& histogram(const char* name,
                       const char* help,
                       const Histogram::BucketBoundaries& buckets) {
    auto& family = prometheus::BuildHistogram().Name(name).Help(help).Register(registry_);
    return family.Add(model_, buckets);
  }
  Counter& counter(const char* name, const char* help) {
    return counter_family(name, help).Add(model_);
  }
  Gauge& gauge(const char* name, const char* help) { return gauge_family(name, help).Add(model_); }

  prometheus::Registry registry_;
  const Labels model_;
  const int32_t page_size_;
  RecentMaximum recent_gap_;
  Rate rate_;

  Twins<Gauge> running_ = {gauge("sglang:num_running_reqs", "Requests being computed."),
                           gauge("vllm:num_requests_running", "Requests being computed.")};
  Twins<Gauge> waiting_ = {gauge("sglang:num_queue_reqs", "Requests waiting."),
                           gauge("vllm:num_requests_waiting", "Requests waiting.")};
  Twins<Gauge> kv_usage_ = {
      gauge("sglang:token_usage", "Share of KV memory in use, 0 to 1."),
      gauge("vllm:kv_cache_usage_perc", "Share of KV memory in use, 0 to 1.")};
  Twins<Counter> prompt_tokens_ = {counter("sglang:prompt_tokens_total", "Prompt tokens computed."),
                                   counter("vllm:prompt_tokens_total", "Prompt tokens computed.")};
  Twins<Counter> generation_tokens_ = {
      counter("sglang:generation_tokens_total", "Tokens generated."),
      counter("vllm:generation_tokens_total", "Tokens generated.")};
  Twins<Counter> preemptions_ = {
      counter("sglang:num_retracted_requests_total", "Requests that gave their memory back."),
      counter("vllm:num_preemptions_total", "Requests that gave their memory back.")};
  Twins<Counter> cached_tokens_ = {
      counter_family("sglang:cached_tokens_total", "Prompt tokens from the prefix cache.")
          .Add(with(model_, "cache_source", "device")),
      counter("vllm:prefix_cache_hits_total", "Prompt tokens from the prefix cache.")};
  Counter& prefix_queries_ =
      counter("vllm:prefix_cache_queries_total", "Prompt tokens of started requests.");
  Gauge& hit_rate_ = gauge("sglang:cache_hit_rate", "Share of prompt tokens from the cache.");
  Gauge& throughput_ = gauge("sglang:gen_throughput", "Tokens per second since the last scrape.");
  Gauge& used_tokens_ = gauge("sglang:num_used_tokens", "Tokens of KV memory in use.");
  Gauge& kv_used_tokens_ = gauge("sglang:kv_used_tokens", "Held by requests.");
  Gauge& kv_evictable_tokens_ =
      gauge("sglang:kv_evictable_tokens", "Held by the prefix cache alone.");
  Gauge& kv_available_tokens_ = gauge("sglang:kv_available_tokens", "Free.");
  Twins<Histogram> token_time_ = {histogram("sglang:time_per_output_token_seconds",
                                            "Mean time per token after the first, of a sequence.",
                                            kTokenSeconds),
                                  histogram("vllm:request_time_per_output_token_seconds",
                                            "Mean time per token after the first, of a sequence.",
                                            kTokenSeconds)};
  Twins<Histogram> first_token_ = {
      histogram("sglang:time_to_first_token_seconds", "Arrival to first token.", kRequestSeconds),
      histogram("vllm:time_to_first_token_seconds", "Arrival to first token.", kRequestSeconds)};
  Twins<Histogram> token_gap_ = {histogram("sglang:inter_token_latency_seconds",
                                           "Time between outputs of a sequence.",
                                           kTokenSeconds),
                                 histogram("vllm:inter_token_latency_seconds",
                                           "Time between outputs of a sequence.",
                                           kTokenSeconds)};
  Twins<Histogram> e2e_ = {
      histogram("sglang:e2e_request_latency_seconds", "Arrival to last token.", kRequestSeconds),
      histogram("vllm:e2e_request_latency_seconds", "Arrival to last token.", kRequestSeconds)};
  Twins<Histogram> queue_ = {
      histogram("sglang:queue_time_seconds", "Time waiting.", kRequestSeconds),
      histogram("vllm:request_queue_time_seconds", "Time waiting.", kRequestSeconds)};
  Histogram& prefill_ =
      histogram("vllm:request_prefill_time_seconds", "Time in prefill.", kRequestSeconds);
  Histogram& decode_ =
      histogram("vllm:request_decode_time_seconds", "Time in decode.", kRequestSeconds);
  Counter& requests_ = counter("sglang:num_requests_total", "Finished requests.");
  Counter& sglang_aborted_ = counter("sglang:num_aborted_requests_total", "Cancelled requests.");
  prometheus::Family<Counter>& finished_ =
      counter_family("vllm:request_success_total", "Finished requests by reason.");
  prometheus::Family<Counter>& aborted_ =
      counter_family("nibble_requests_aborted_total", "Requests given up, by cause.");
  prometheus::Family<Counter>& rejected_ =
      counter_family("nibble_requests_rejected_total", "Requests refused, by error code.");
  prometheus::Family<Counter>& responses_ =
      counter_family("nibble_http_responses_total", "Responses by route and status.");
  Counter& unknown_fields_ =
      counter("nibble_unknown_request_fields_total", "Request fields that were ignored.");
  Gauge& connections_ = gauge("nibble_connections", "Open client connections.");
  Gauge& body_bytes_ =
      gauge("nibble_buffered_body_bytes", "Bytes of request bodies that are not yet parsed.");
  Counter& steps_ = counter("nibble_steps_total", "Steps of the engine.");
  Gauge& expected_wait_ =
      gauge("nibble_expected_wait_seconds", "Until a request behind all that wait would start.");
  Gauge& stalled_ =
      gauge("nibble_stalled_seconds", "Since the last step, while there was work to do.");
  Gauge& longest_gap_ = gauge("nibble_longest_token_gap_seconds",
                              "Longest time between outputs of a sequence in the last minutes.");
  Counter& pages_evicted_ =
      counter("nibble_pages_evicted_total", "Pages that left the prefix cache.");
  Counter& snapshots_evicted_ =
      counter("nibble_snapshots_evicted_total", "Resume points that left the prefix cache.");
  Gauge& snapshots_used_ = gauge("nibble_snapshots_used", "Resume points in the prefix cache.");
  Counter& tier_pages_ =
      counter("nibble_tier_hit_pages_total", "Pages brought back from host memory or disk.");
  Gauge& tier_bytes_ = gauge("nibble_tier_bytes", "Bytes in host memory or on disk.");
};

Metrics::Metrics(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
Metrics::~Metrics() = default;

void Metrics::on_response(std::string_view route, int status) { impl_->on_response(route, status); }
void Metrics::on_first_token(double seconds) { impl_->on_first_token(seconds); }
void Metrics::on_token_gap(double seconds) { impl_->on_token_gap(seconds); }
void Metrics::on_finish(const engine::Finish& finish, double seconds) {
  impl_->on_finish(finish, seconds);
}
void Metrics::on_aborted(std::string_view cause) { impl_->on_aborted(cause); }
void Metrics::on_rejected(std::string_view reason) { impl_->on_rejected(reason); }
void Metrics::on_unknown_fields(int64_t count) { impl_->on_unknown_fields(count); }
std::string Metrics::expose(const engine::EngineStats& stats, const Now& now) {
  return impl_->expose(stats, now);
}

}  // namespace nibble::server
