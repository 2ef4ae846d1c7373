#include "bench_client/summary.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace nibble::bench_client {
namespace {

double milliseconds(Duration duration) { return to_seconds(duration) * 1e3; }

double percentile(const std::vector<double>& sorted, double share) {
  const double rank = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(rank);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], rank - static_cast<double>(below));
}

// Output tokens per second of the run; an event with several counts for all of them.
class ThroughputBySecond final {
 public:
  void add(const Reply& reply, TimePoint start) {
    if (reply.token_times.empty()) return;
    const double weight = static_cast<double>(output_tokens_of(reply)) /
                          static_cast<double>(reply.token_times.size());
    for (const TimePoint at : reply.token_times) {
      const auto second = static_cast<size_t>(std::max(0.0, to_seconds(at - start)));
      if (second >= tokens_.size()) tokens_.resize(second + 1);
      tokens_[second] += weight;
    }
  }
  double peak() const {
    return tokens_.empty() ? 0.0 : *std::max_element(tokens_.begin(), tokens_.end());
  }

 private:
  std::vector<double> tokens_;
};

// Of one answer; what it does not show is absent.
struct Latencies {
  explicit Latencies(const RequestRecord& request)
      : e2el(milliseconds(request.finished_at - request.sent_at)) {
    const std::vector<TimePoint>& times = request.reply.token_times;
    if (times.empty()) return;
    ttft = milliseconds(times.front() - request.sent_at);
    const int64_t num_tokens = output_tokens_of(request.reply);
    if (num_tokens > 1 && times.size() > 1) {
      tpot = milliseconds(times.back() - times.front()) / static_cast<double>(num_tokens - 1);
    }
  }

  // A bound on something that an answer does not show is not kept, but for the time per token of
  // an answer of one token.
  bool keep(const Goals& goals) const {
    if (goals.ttft && (!ttft || *ttft > *goals.ttft)) return false;
    if (goals.tpot && (!ttft || tpot.value_or(0) > *goals.tpot)) return false;
    return !goals.e2el || e2el <= *goals.e2el;
  }

  double e2el;
  std::optional<double> ttft;
  std::optional<double> tpot;
};

struct Samples {
  std::vector<double> ttft;
  std::vector<double> tpot;
  std::vector<double> itl;
  std::vector<double> e2el;
  int64_t num_good = 0;

  void add(const RequestRecord& request, const Goals& goals) {
    const Latencies latencies(request);
    if (latencies.keep(goals)) ++num_good;
    e2el.push_back(latencies.e2el);
    if (latencies.ttft) ttft.push_back(*latencies.ttft);
    if (latencies.tpot) tpot.push_back(*latencies.tpot);
    const std::vector<TimePoint>& times = request.reply.token_times;
    for (size_t i = 1; i < times.size(); ++i) itl.push_back(milliseconds(times[i] - times[i - 1]));
  }
};

void count_tokens(const RequestRecord& request, Summary& summary) {
  const Reply& reply = request.reply;
  summary.output_tokens += output_tokens_of(reply);
  summary.input_tokens += reply.prompt_tokens.value_or(request.asked_prompt_tokens);
  summary.cached_tokens += reply.cached_tokens.value_or(0);
  if (!reply.completion_tokens) ++summary.num_without_usage;
  const bool is_other_input = reply.prompt_tokens && request.asked_prompt_tokens > 0 &&
                              *reply.prompt_tokens != request.asked_prompt_tokens;
  if (is_other_input) ++summary.num_other_input_length;
  if (reply.completion_tokens && *reply.completion_tokens != request.asked_output_tokens) {
    ++summary.num_other_output_length;
  }
}

void count_failure(const Failure& failure, Summary& summary) {
  ++summary.num_failed;
  FailureCount& entry = summary.failures[failure.kind];
  if (entry.count++ == 0) entry.example = failure.message;
}

}  // namespace

Distribution distribution_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  const double squares =
      std::accumulate(values.begin(), values.end(), 0.0, [mean](double sum, double value) {
        return sum + (value - mean) * (value - mean);
      });
  return {.count = static_cast<int64_t>(values.size()),
          .mean = mean,
          .median = percentile(values, 0.5),
          .deviation = std::sqrt(squares / count),
          .p90 = percentile(values, 0.9),
          .p95 = percentile(values, 0.95),
          .p99 = percentile(values, 0.99),
          .max = values.back()};
}

int64_t output_tokens_of(const Reply& reply) {
  return reply.completion_tokens.value_or(static_cast<int64_t>(reply.token_times.size()));
}

Summary summarise(const RunRecord& run, const Goals& goals) {
  Summary summary{.num_unsent = run.num_unsent,
                  .duration_seconds = to_seconds(run.end - run.start),
                  .peak_concurrency = run.peak_concurrency};
  Samples samples;
  ThroughputBySecond throughput;
  double busy_seconds = 0;
  for (const RequestRecord& request : run.requests) {
    summary.num_retries += request.num_retries;
    busy_seconds += to_seconds(request.finished_at - request.sent_at);
    summary.max_client_delay_ms =
        std::max(summary.max_client_delay_ms, milliseconds(request.sent_at - request.due_at));
    if (request.reply.failure) {
      count_failure(*request.reply.failure, summary);
      continue;
    }
    ++summary.num_completed;
    count_tokens(request, summary);
    samples.add(request, goals);
    throughput.add(request.reply, run.start);
  }
  if (const double seconds = summary.duration_seconds; seconds > 0) {
    const auto output = static_cast<double>(summary.output_tokens);
    summary.request_throughput = static_cast<double>(summary.num_completed) / seconds;
    if (goals.any()) summary.request_goodput = static_cast<double>(samples.num_good) / seconds;
    summary.output_throughput = output / seconds;
    summary.total_throughput = (output + static_cast<double>(summary.input_tokens)) / seconds;
    summary.mean_concurrency = busy_seconds / seconds;
  }
  summary.peak_output_throughput = throughput.peak();
  summary.ttft = distribution_of(std::move(samples.ttft));
  summary.tpot = distribution_of(std::move(samples.tpot));
  summary.itl = distribution_of(std::move(samples.itl));
  summary.e2el = distribution_of(std::move(samples.e2el));
  return summary;
}

}  // namespace nibble::bench_client
