#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>

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
  explicit Impl(const Options& options) : model_{{"model_name", options.model_name}} {
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
  void on_token_gap(double seconds) { observe(token_gap_, seconds); }

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
  }

  void on_aborted(std::string_view cause) {
    sglang_aborted_.Increment();
    aborted_.Add({{"cause", std::string(cause)}}).Increment();
  }
  void on_rejected(std::string_view reason) {
    rejected_.Add({{"reason", std::string(reason)}}).Increment();
  }
  void on_unknown_fields(int64_t count) { unknown_fields_.Increment(static_cast<double>(count)); }

  std::string expose(const engine::EngineStats& stats, int32_t num_connections) {
    set(running_, stats.num_running);
    set(waiting_, stats.num_queued);
    const double usage = stats.num_pages_total > 0
                             ? static_cast<double>(stats.num_pages_used) / stats.num_pages_total
                             : 0.0;
    set(kv_usage_, usage);
    connections_.Set(num_connections);
    advance_to(prompt_tokens_.sglang, stats.prompt_tokens_total);
    advance_to(prompt_tokens_.vllm, stats.prompt_tokens_total);
    advance_to(generation_tokens_.sglang, stats.generation_tokens_total);
    advance_to(generation_tokens_.vllm, stats.generation_tokens_total);
    return prometheus::TextSerializer().Serialize(registry_.Collect());
  }

 private:
  static void set(Twins<Gauge>& twins, double value) {
    twins.sglang.Set(value);
    twins.vllm.Set(value);
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
std::string Metrics::expose(const engine::EngineStats& stats, int32_t num_connections) {
  return impl_->expose(stats, num_connections);
}

}  // namespace nibble::server
