#include "hub/pull.h"

#include <fmt/core.h>

#include <string>

#include "base/clock.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/hub_environment.h"
#include "cli/interrupt.h"
#include "cli/transfer_display.h"
#include "hub/disk.h"

namespace nibble::cli {
namespace {

hub::HubConfig with_flags(hub::HubConfig config, const PullFlags& flags) {
  if (flags.cache_dir) config.cache_dir = *flags.cache_dir;
  config.num_connections = flags.connections;
  config.retry.max_attempts = flags.attempts;
  config.retry.first_delay = std::chrono::milliseconds(flags.retry_delay_ms);
  if (flags.stall_timeout)
    config.transport.stall_timeout = std::chrono::seconds(*flags.stall_timeout);
  return config;
}

void print_summary(const hub::RepoId& repo, const hub::PullReport& report) {
  std::string line = fmt::format("{} at {}: {} files, {} verified",
                                 repo.display(),
                                 report.commit,
                                 report.num_files,
                                 hub::format_bytes(report.total_bytes));
  line += fmt::format("; {} received", hub::format_bytes(report.received_bytes));
  if (report.resumed_bytes > 0) {
    line += fmt::format(", {} from an earlier attempt", hub::format_bytes(report.resumed_bytes));
  }
  print_note(line);
  for (const std::string& path : report.repaired) print_note(path + ": was damaged, repaired");
  for (const hub::RepoFile& file : report.duplicates) {
    print_note(fmt::format(
        "{}: left out, the same weights exist as safetensors (--include takes it)", file.path));
  }
}

// The model is here whatever the plan says, so its errors do not fail the command.
void print_plan(const Path& snapshot) {
  PlanFlags flags;
  flags.targets = {snapshot.string()};
  const Result<void> planned = run_plan(flags);
  if (!planned.ok()) print_note("plan: " + planned.error().message);
}

}  // namespace

Result<void> run_pull(const PullFlags& flags) {
  TRY_ASSIGN(const hub::RepoId repo, hub::parse_repo_id(flags.repo));
  TRY_ASSIGN(hub::HubConfig environment, hub_config_from_environment());
  const hub::HubConfig config = with_flags(std::move(environment), flags);
  const InterruptGuard interrupt;
  hub::Cancel cancel([&] { return interrupt.is_set(); });
  hub::PullReport report;
  {
    const SteadyClock clock;
    TransferDisplay display(clock);
    const hub::PullOptions options{
        .filter = {flags.include, flags.exclude},
        .depth = flags.verify ? hub::CheckDepth::kReadAll : hub::CheckDepth::kTrustRecord,
        .events = {[&](const hub::TransferProgress& progress) { display.update(progress); },
                   [&](const std::string& line) { display.note(line); }}};
    TRY_ASSIGN(report, hub::pull(config, repo, options, cancel));
  }
  print_summary(repo, report);
  TRY(write_output(report.snapshot.string() + '\n'));
  if (flags.plan.value_or(output_is_terminal())) print_plan(report.snapshot);
  return {};
}

}  // namespace nibble::cli
