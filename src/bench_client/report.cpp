#include "bench_client/report.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <string_view>

#include "base/json.h"

namespace nibble::bench_client {
namespace {

constexpr int kWidth = 50;

class Table final {
 public:
  void heading(std::string_view text, char fill) {
    const int blank = kWidth - static_cast<int>(text.size());
    out_ += std::string(static_cast<size_t>(blank / 2), fill);
    out_ += text;
    out_ += std::string(static_cast<size_t>(blank - blank / 2), fill) + '\n';
  }
  void row(std::string_view name, std::string_view value) {
    fmt::format_to(std::back_inserter(out_), "{:<40} {:<10}\n", name, value);
  }
  void row(std::string_view name, int64_t value) { row(name, fmt::to_string(value)); }
  void row(std::string_view name, double value) { row(name, fmt::format("{:.2f}", value)); }
  void line(std::string_view text) { (out_ += text) += '\n'; }

  void latency(std::string_view title, std::string_view name, const Distribution& values) {
    if (values.count == 0) return;
    heading(title, '-');
    row(fmt::format("Mean {} (ms):", name), values.mean);
    row(fmt::format("Median {} (ms):", name), values.median);
    row(fmt::format("P95 {} (ms):", name), values.p95);
    row(fmt::format("P99 {} (ms):", name), values.p99);
    row(fmt::format("Max {} (ms):", name), values.max);
  }

  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

std::string rate_text(double rate) {
  return std::isinf(rate) ? std::string("inf") : fmt::format("{:g}", rate);
}

void add_remarks(const Summary& summary, Table& table) {
  for (const auto& [kind, failure] : summary.failures) {
    table.line(fmt::format("failed: {} x {}: {}", failure.count, kind, failure.example));
  }
  if (summary.num_unsent > 0) {
    table.line(fmt::format("not sent: {} turns behind a failed one", summary.num_unsent));
  }
  if (summary.num_without_usage > 0) {
    table.line(fmt::format("no usage in {} answers: their tokens are counted by events",
                           summary.num_without_usage));
  }
  if (summary.num_other_input_length > 0) {
    table.line(fmt::format("{} prompts have another length than asked for, by the server's count",
                           summary.num_other_input_length));
  }
  if (summary.num_other_output_length > 0) {
    table.line(fmt::format("{} answers have another length than asked for",
                           summary.num_other_output_length));
  }
}

// --- JSON

json::Value rate_value(double rate) {
  return std::isinf(rate) ? json::Value("inf") : json::Value(rate);
}

void add_distribution(json::Object& object, const char* name, const Distribution& values) {
  const auto add = [&](const char* statistic, double value) {
    object.set(fmt::format("{}_{}_ms", statistic, name), value);
  };
  add("mean", values.mean);
  add("median", values.median);
  add("std", values.deviation);
  add("p90", values.p90);
  add("p95", values.p95);
  add("p99", values.p99);
  add("max", values.max);
}

void add_dataset(json::Object& object, const BenchmarkOptions& options, const RunReport& report) {
  const DatasetOptions& dataset = options.dataset;
  object.set("dataset_name", dataset_name(dataset.kind));
  object.set("dataset_hash", report.dataset_hash);
  if (dataset.kind == DatasetKind::kFile) {
    object.set("dataset_path", dataset.file.string());
    object.set("output_len", dataset.file_output_len);
    return;
  }
  object.set("random_input_len", dataset.input_len);
  object.set("random_output_len", dataset.output_len);
  object.set("random_range_ratio", dataset.range_ratio);
  object.set("template_tokens", report.template_tokens);
  if (dataset.kind == DatasetKind::kMultiTurn) object.set("num_turns", dataset.num_turns);
  if (dataset.kind == DatasetKind::kSharedPrefix) {
    object.set("gsp_num_groups", dataset.num_groups);
    object.set("gsp_prompts_per_group", dataset.prompts_per_group);
    object.set("gsp_system_prompt_len", dataset.prefix_len);
  }
}

json::Value goals_object(const Goals& goals) {
  if (!goals.any()) return {};
  json::Object object;
  if (goals.ttft) object.set("ttft", *goals.ttft);
  if (goals.tpot) object.set("tpot", *goals.tpot);
  if (goals.e2el) object.set("e2el", *goals.e2el);
  return object;
}

void add_settings(json::Object& object, const BenchmarkOptions& options, const RunReport& report) {
  const Target& target = options.target;
  object.set("backend", options.backend);
  object.set("base_url", target.base_url);
  object.set("endpoint", endpoint_of(target));
  object.set("model_id", report.model);
  object.set("server_version", report.server_version);
  object.set("tokenizer_id",
             options.tokenizer_dir ? json::Value(options.tokenizer_dir->string()) : json::Value());
  add_dataset(object, options, report);
  object.set("num_prompts", report.num_requests);
  object.set("request_rate", rate_value(report.request_rate));
  object.set("burstiness", options.burstiness);
  object.set("max_concurrency",
             report.max_concurrency > 0 ? json::Value(report.max_concurrency) : json::Value());
  object.set("num_warmups", options.num_warmups);
  object.set("max_retries", options.max_retries);
  object.set("flush_cache", options.flush_cache);
  object.set("seed", options.seed);
  object.set("run_seed", report.seed);
  object.set("stream", target.stream);
  object.set("ignore_eos", target.ignore_eos);
  object.set("temperature", target.temperature ? json::Value(*target.temperature) : json::Value());
  object.set("extra_request_body", target.extra_body);
  object.set("goodput", goals_object(options.goals));
}

json::Object failure_counts(const Summary& summary) {
  json::Object counts;
  for (const auto& [kind, failure] : summary.failures) {
    counts.set(kind, json::make_object({{"count", failure.count}, {"example", failure.example}}));
  }
  return counts;
}

void add_results(json::Object& object, const RunReport& report) {
  const Summary& summary = report.summary;
  object.set("completed", summary.num_completed);
  object.set("failed", summary.num_failed);
  object.set("failures", failure_counts(summary));
  object.set("unsent", summary.num_unsent);
  object.set("retries", summary.num_retries);
  object.set("duration", summary.duration_seconds);
  object.set("total_input_tokens", summary.input_tokens);
  object.set("total_output_tokens", summary.output_tokens);
  object.set("total_cached_tokens", summary.cached_tokens);
  object.set("without_usage", summary.num_without_usage);
  object.set("other_input_length", summary.num_other_input_length);
  object.set("other_output_length", summary.num_other_output_length);
  object.set("request_throughput", summary.request_throughput);
  object.set("request_goodput",
             summary.request_goodput ? json::Value(*summary.request_goodput) : json::Value());
  object.set("output_throughput", summary.output_throughput);
  object.set("max_output_tokens_per_s", summary.peak_output_throughput);
  object.set("total_token_throughput", summary.total_throughput);
  object.set("concurrency", summary.mean_concurrency);
  object.set("max_concurrent_requests", summary.peak_concurrency);
  // Without a rate there is no schedule to be late for.
  const bool has_schedule = !std::isinf(report.request_rate);
  object.set("max_client_delay_ms",
             has_schedule ? json::Value(summary.max_client_delay_ms) : json::Value());
  add_distribution(object, "ttft", summary.ttft);
  add_distribution(object, "tpot", summary.tpot);
  add_distribution(object, "itl", summary.itl);
  add_distribution(object, "e2el", summary.e2el);
}

json::Array request_details(const RunRecord& run) {
  json::Array array;
  for (const RequestRecord& request : run.requests) {
    const Reply& reply = request.reply;
    json::Array times;
    for (const TimePoint at : reply.token_times) {
      times.emplace_back(to_seconds(at - request.sent_at));
    }
    array.emplace_back(json::make_object(
        {{"due", to_seconds(request.due_at - run.start)},
         {"sent", to_seconds(request.sent_at - run.start)},
         {"e2el", to_seconds(request.finished_at - request.sent_at)},
         {"token_times", std::move(times)},
         {"turn", request.turn},
         {"input_tokens", reply.prompt_tokens.value_or(request.asked_prompt_tokens)},
         {"output_tokens", output_tokens_of(reply)},
         {"finish_reason", reply.finish_reason},
         {"error", reply.failure ? json::Value(reply.failure->kind) : json::Value()}}));
  }
  return array;
}

}  // namespace

std::string render_table(const BenchmarkOptions& options, const RunReport& report) {
  const Summary& summary = report.summary;
  Table table;
  table.heading(" Serving Benchmark Result ", '=');
  table.row("Backend:", options.backend);
  table.row("Model:", report.model);
  table.row("Dataset:", dataset_name(options.dataset.kind));
  table.row("Successful requests:", summary.num_completed);
  table.row("Failed requests:", summary.num_failed);
  if (summary.num_retries > 0) table.row("Retries:", summary.num_retries);
  table.row("Request rate configured (RPS):", rate_text(report.request_rate));
  table.row("Maximum request concurrency:",
            report.max_concurrency > 0 ? fmt::to_string(report.max_concurrency) : "not set");
  table.row("Benchmark duration (s):", summary.duration_seconds);
  table.row("Total input tokens:", summary.input_tokens);
  if (summary.cached_tokens > 0) table.row("Cached input tokens:", summary.cached_tokens);
  table.row("Total generated tokens:", summary.output_tokens);
  table.row("Request throughput (req/s):", summary.request_throughput);
  if (summary.request_goodput) table.row("Request goodput (req/s):", *summary.request_goodput);
  table.row("Output token throughput (tok/s):", summary.output_throughput);
  table.row("Peak output token throughput (tok/s):", summary.peak_output_throughput);
  table.row("Peak concurrent requests:", int64_t{summary.peak_concurrency});
  table.row("Total token throughput (tok/s):", summary.total_throughput);
  table.row("Concurrency:", summary.mean_concurrency);
  if (!std::isinf(report.request_rate)) {
    table.row("Max client delay (ms):", summary.max_client_delay_ms);
  }
  table.latency("Time to First Token", "TTFT", summary.ttft);
  table.latency("Time per Output Token (excl. 1st token)", "TPOT", summary.tpot);
  table.latency("Inter-token Latency", "ITL", summary.itl);
  table.latency("End-to-end Latency", "E2EL", summary.e2el);
  table.heading("", '=');
  add_remarks(summary, table);
  return table.take();
}

std::string render_json(const BenchmarkOptions& options,
                        const RunReport& report,
                        const Provenance& provenance,
                        Detail detail) {
  json::Object object = json::make_object({{"date", report.started_at},
                                           {"version", provenance.version},
                                           {"commit", provenance.commit},
                                           {"machine", provenance.machine}});
  add_settings(object, options, report);
  add_results(object, report);
  if (detail == Detail::kRequests) object.set("requests", request_details(report.record));
  return json::dump(object, json::Style::kPython);
}

}  // namespace nibble::bench_client
