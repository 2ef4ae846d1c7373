#include "tools/convert/convert.h"

#include <fmt/core.h>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/session.h"
#include "device/thread_pool.h"

namespace nibble::cli {
namespace {

constexpr int64_t kMegabyte = 1'000'000;

// "routed_experts  576 exact" or "  ... 576 rounded: max 0.0123, rms 0.00123 (9.51 %), cosine
// 0.9955"
std::string statistics_line(const std::string& module_class,
                            const tools::ErrorStatistics& statistics) {
  std::string line = fmt::format("{:<24}", module_class);
  if (statistics.num_exact_tensors > 0) {
    line += fmt::format(" {} exact", statistics.num_exact_tensors);
  }
  if (statistics.num_changed_tensors > 0) {
    line += fmt::format(
        " {} rounded: max error {:.4g}, rms {:.4g} ({:.3g} % of the weights'), "
        "cosine {:.6f}",
        statistics.num_changed_tensors,
        statistics.max_error,
        statistics.rms(),
        100 * statistics.relative_rms(),
        statistics.cosine());
  }
  return line + '\n';
}

std::string summary(const tools::JobResult& result, const Path& out, double seconds) {
  std::string text;
  for (const auto& [module_class, statistics] : result.statistics) {
    text += statistics_line(module_class, statistics);
  }
  if (result.was_complete) {
    return text + fmt::format("{}: was complete already\n", out.string());
  }
  const double gigabytes = static_cast<double>(result.num_bytes) * 1e-9;
  text += fmt::format("{}: {:.2f} GB in {} files, {:.1f} s, {:.2f} GB/s\n",
                      out.string(),
                      gigabytes,
                      result.num_shards,
                      seconds,
                      seconds > 0 ? gigabytes / seconds : 0);
  if (result.num_shards_resumed > 0) {
    text +=
        fmt::format("{} of the files were finished by an earlier run\n", result.num_shards_resumed);
  }
  return text;
}

}  // namespace

Result<void> run_convert(const ConvertFlags& flags) {
  const SteadyClock clock;
  const TimePoint start = clock.now();
  TRY_ASSIGN(const checkpoint::Checkpoint checkpoint, open_checkpoint(flags.in));
  TRY_ASSIGN(const tools::ConvertPlan plan,
             tools::plan_conversion(checkpoint,
                                    {.out = flags.out,
                                     .format = flags.format,
                                     .convert_drafts = flags.convert_drafts,
                                     .allow_rounding = flags.allow_rounding,
                                     .resume = flags.resume,
                                     .shard_bytes = flags.shard_megabytes * kMegabyte}));
  for (const std::string& note : plan.notes) print_note(note);
  device::ThreadPool pool({.num_threads = flags.threads});
  ProgressBar bar("converting");
  Result<tools::JobResult> result =
      tools::run_job(plan.job,
                     {.pool = pool,
                      .progress = [&](int64_t done, int64_t total) { bar.update(done, total); },
                      .release_inputs = [&] { checkpoint.drop_resident(); }});
  if (!result.ok()) return std::move(result).error();
  return write_output(summary(*result, flags.out, to_seconds(clock.now() - start)));
}

}  // namespace nibble::cli
