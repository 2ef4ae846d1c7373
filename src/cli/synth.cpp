#include "tools/synth/synth.h"

#include <fmt/core.h>

#include <filesystem>
#include <system_error>

#include "base/clock.h"
#include "checkpoint/output_file.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "device/thread_pool.h"

namespace nibble::cli {
namespace {

constexpr int64_t kMegabyte = 1'000'000;

std::string summary(const tools::JobResult& result, const Path& out, double seconds) {
  if (result.was_complete) return fmt::format("{}: was complete already\n", out.string());
  const double gigabytes = static_cast<double>(result.num_bytes) * 1e-9;
  return fmt::format("{}: {:.2f} GB in {} files, {:.1f} s, {:.2f} GB/s\n",
                     out.string(),
                     gigabytes,
                     result.num_shards,
                     seconds,
                     seconds > 0 ? gigabytes / seconds : 0);
}

// The texts of a checkpoint without its weights: what --load-format dummy needs.
Result<void> write_texts(const tools::Job& job) {
  std::error_code ignored;  // writing then fails
  std::filesystem::create_directories(job.out, ignored);
  for (const tools::TextFile& file : job.texts) {
    TRY(checkpoint::write_file(job.out / file.name, file.text));
  }
  return {};
}

}  // namespace

Result<void> run_synth(const SynthFlags& flags) {
  const SteadyClock clock;
  const TimePoint start = clock.now();
  TRY_ASSIGN(const tools::Job job,
             tools::plan_synthesis({.out = flags.out,
                                    .preset = flags.preset,
                                    .num_layers = flags.layers,
                                    .synth = {.format = flags.format, .seed = flags.seed},
                                    .resume = flags.resume,
                                    .shard_bytes = flags.shard_megabytes * kMegabyte}));
  if (flags.config_only) return write_texts(job);
  device::ThreadPool pool({.num_threads = flags.threads});
  ProgressBar bar("writing");
  const Result<tools::JobResult> result = tools::run_job(
      job,
      {.pool = pool, .progress = [&](int64_t done, int64_t total) { bar.update(done, total); }});
  if (!result.ok()) return result.error();
  return write_output(summary(*result, flags.out, to_seconds(clock.now() - start)));
}

}  // namespace nibble::cli
