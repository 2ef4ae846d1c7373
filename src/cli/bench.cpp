#include <fmt/core.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "bench_client/benchmark.h"
#include "bench_client/plot.h"
#include "bench_client/report.h"
#include "cli/bench_flags.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/interrupt.h"
#include "cli/machine.h"
#include "cli/version.h"

namespace nibble::cli {
namespace {

using bench_client::BenchmarkOptions;
using bench_client::PlotPoint;
using bench_client::RunReport;

enum class Mode { kAppend, kReplace };

Result<void> write_file(const Path& path, Mode mode, std::string_view text) {
  std::FILE* file = std::fopen(path.c_str(), mode == Mode::kAppend ? "ab" : "wb");
  if (file == nullptr) {
    return invalid_argument(
        fmt::format("{}: cannot be written: {}", path.string(), std::strerror(errno)));
  }
  const bool is_written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool is_closed = std::fclose(file) == 0;
  if (is_written && is_closed) return {};
  return exhausted(fmt::format("{}: {}", path.string(), std::strerror(errno)));
}

// Found out before hours of measuring rather than after.
Result<void> check_outputs(const BenchServeFlags& flags) {
  if (flags.output_file) TRY(write_file(*flags.output_file, Mode::kAppend, ""));
  if (flags.plot) TRY(write_file(*flags.plot, Mode::kAppend, ""));
  return {};
}

// What differs between the runs of a sweep, which labels a point of the plot.
bool sweeps_rates(const BenchmarkOptions& options) { return options.request_rates.size() > 1; }

std::string point_label(const BenchmarkOptions& options, const RunReport& report) {
  const std::string rate =
      std::isinf(report.request_rate) ? "inf" : fmt::format("{:g}", report.request_rate);
  std::string concurrency =
      report.max_concurrency > 0 ? fmt::format("{}", report.max_concurrency) : "any";
  if (!sweeps_rates(options)) return concurrency;
  return options.max_concurrencies.size() > 1 ? rate + " / " + concurrency : rate;
}

std::string point_name(const BenchmarkOptions& options) {
  if (!sweeps_rates(options)) return "requests at a time";
  return options.max_concurrencies.size() > 1 ? "requests per second / at a time"
                                              : "requests per second";
}

PlotPoint plot_point(const BenchmarkOptions& options, const RunReport& report) {
  const bench_client::Summary& summary = report.summary;
  return {.label = point_label(options, report),
          .throughput = summary.output_throughput,
          .median_tpot_ms = summary.tpot.median,
          .p99_tpot_ms = summary.tpot.p99,
          .median_ttft_ms = summary.ttft.median,
          .p99_ttft_ms = summary.ttft.p99};
}

std::string plot_title(const BenchmarkOptions& options, const std::string& model) {
  return fmt::format("{}: {} prompts, {}",
                     model,
                     bench_client::dataset_name(options.dataset.kind),
                     options.backend);
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

}  // namespace

Result<void> run_bench_serve(const BenchServeFlags& flags) {
  BenchmarkOptions options = flags.options;
  const bool is_file = options.dataset.kind == bench_client::DatasetKind::kFile;
  if (is_file && options.dataset.file.empty()) {
    return invalid_argument("--dataset-name: this dataset needs --dataset-path FILE");
  }
  TRY(check_outputs(flags));
  options.target.api_key = environment("OPENAI_API_KEY");
  const bench_client::Provenance provenance{.version = std::string(version_number()),
                                            .commit = std::string(version_commit()),
                                            .machine = describe_machine()};
  const auto detail =
      flags.output_details ? bench_client::Detail::kRequests : bench_client::Detail::kSummary;
  CountDisplay display("requests");
  std::vector<PlotPoint> points;
  const auto on_run = [&](const RunReport& report) -> Result<void> {
    display.clear();
    TRY(write_model_text(bench_client::render_table(options, report)));
    points.push_back(plot_point(options, report));
    if (flags.output_file) {
      const std::string line = bench_client::render_json(options, report, provenance, detail);
      TRY(write_file(*flags.output_file, Mode::kAppend, line + '\n'));
    }
    if (!flags.plot) return {};
    return write_file(
        *flags.plot,
        Mode::kReplace,
        bench_client::render_plot(plot_title(options, report.model), point_name(options), points));
  };
  const InterruptGuard interrupt;
  const bench_client::BenchmarkEvents events{
      .load = {.is_interrupted = [&] { return interrupt.is_set(); },
               .progress = [&](int64_t done, int64_t total) { display.update(done, total); }},
      .on_run = on_run};
  return bench_client::run_benchmark(options, events);
}

}  // namespace nibble::cli
