#include "hub/pull.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <unordered_set>

#include "hub/client.h"
#include "hub/disk.h"
#include "hub/errors.h"
#include "hub/repo_cache.h"

namespace nibble::hub {
namespace {

constexpr int64_t kSlackBytes = 1 << 20;  // records, links and the file system's own growth
constexpr size_t kMaxSuggestions = 5;

std::vector<RepoFile> distinct_blobs(const std::vector<RepoFile>& files) {
  std::vector<RepoFile> blobs;
  std::unordered_set<std::string_view> etags;
  for (const RepoFile& file : files) {
    if (etags.insert(file.etag).second) blobs.push_back(file);
  }
  return blobs;
}

int64_t missing_bytes(const RepoCache& cache, const RepoFile& file) {
  struct stat info = {};
  const bool is_there = ::stat(cache.blob(file.etag).c_str(), &info) == 0;
  if (is_there && info.st_size == file.size) return 0;
  return file.size -
         PartialBlob::recorded_bytes(cache.partial(file.etag), cache.journal(file.etag), file.size);
}

// "models--a--b holds 12 GB (rm -r /cache/models--a--b)" for the largest other repositories.
std::string suggest_removals(const Path& cache_dir, const Path& own) {
  std::string text;
  size_t count = 0;
  for (const CacheUse& use : measure_cache(cache_dir)) {
    if (use.root == own || count == kMaxSuggestions) continue;
    text += fmt::format(
        "{} {} in {}", count == 0 ? "" : ",", format_bytes(use.bytes), use.root.string());
    if (use.partial_bytes > 0) {
      text += fmt::format(" (unfinished downloads: {})", format_bytes(use.partial_bytes));
    }
    ++count;
  }
  return text.empty() ? " The cache holds no other repositories." : " The cache holds" + text + ".";
}

// Fails before the first byte when the disk cannot hold the rest.
Result<void> check_room(const HubConfig& config,
                        const RepoId& repo,
                        const RepoCache& cache,
                        const std::vector<RepoFile>& files) {
  TRY_ASSIGN(const int64_t longest, max_file_bytes(cache.blobs()));
  int64_t needed = 0;
  for (const RepoFile& file : files) {
    needed += missing_bytes(cache, file);
    if (file.size <= longest) continue;
    return disk_error(fmt::format(
        "{}: {}: {}, but {} takes files of at most {} (file system or ulimit -f). Choose another "
        "place with HF_HUB_CACHE.",
        repo.name,
        file.path,
        format_bytes(file.size),
        cache.blobs().string(),
        format_bytes(longest)));
  }
  TRY_ASSIGN(const int64_t available, free_bytes(cache.blobs()));
  if (needed == 0 || needed + needed / 100 + kSlackBytes <= available) return {};
  return disk_error(fmt::format(
      "{}: needs {} more on the disk of {}, of which {} are free.{} Free space there (rm -r of "
      "what you "
      "no longer need), take less with --include and --exclude, or choose another place with "
      "HF_HUB_CACHE.",
      repo.display(),
      format_bytes(needed + needed / 100 + kSlackBytes),
      config.cache_dir.string(),
      format_bytes(available),
      suggest_removals(config.cache_dir, cache.root())));
}

Result<void> link_snapshot(const RepoCache& cache,
                           const RepoId& repo,
                           const std::string& commit,
                           const std::vector<RepoFile>& files,
                           LinkKind kind) {
  for (const RepoFile& file : files) TRY(cache.link_file(commit, file, kind));
  // Last: whoever resolves the name finds all of it.
  return is_commit(repo.revision) ? Result<void>() : cache.write_ref(repo.revision, commit);
}

int64_t sum_bytes(const std::vector<RepoFile>& files) {
  int64_t bytes = 0;
  for (const RepoFile& file : files) bytes += file.size;
  return bytes;
}

Result<std::string> local_commit(const RepoCache& cache, const RepoId& repo) {
  std::optional<std::string> commit;
  if (is_commit(repo.revision)) {
    commit = repo.revision;
  } else {
    TRY_ASSIGN(commit, cache.read_ref(repo.revision));
  }
  std::error_code fault;
  if (commit && std::filesystem::is_directory(cache.snapshot(*commit), fault)) return *commit;
  return missing_error(
      fmt::format("{}: is not in {}, and HF_HUB_OFFLINE forbids asking the hub. Unset it, or pull "
                  "while online.",
                  repo.display(),
                  cache.root().string()));
}

Result<void> verify_local(const RepoCache& cache,
                          const std::vector<RepoFile>& files,
                          CheckDepth depth,
                          const Cancel& cancel,
                          const TransferEvents& events) {
  std::string damaged;
  TransferProgress progress{.total_bytes = sum_bytes(files),
                            .num_files = static_cast<int64_t>(files.size())};
  for (const RepoFile& file : files) {
    TRY_ASSIGN(const BlobCheck check, check_blob(cache, file, depth, cancel, [&](int64_t bytes) {
                 progress.done_bytes += bytes;
                 if (events.on_progress) events.on_progress(progress);
               }));
    ++progress.num_files_done;
    if (check.state != BlobCheck::State::kGood)
      damaged += (damaged.empty() ? "" : ", ") + file.path;
  }
  if (damaged.empty()) return {};
  return integrity_error(
      fmt::format("{}: damaged or missing: {}. Pull with --verify while online to repair them.",
                  cache.root().string(),
                  damaged));
}

Result<PullReport> pull_offline(const HubConfig& config,
                                const RepoId& repo,
                                const PullOptions& options,
                                const Cancel& cancel) {
  const RepoCache cache(config.cache_dir, repo);
  PullReport report;
  TRY_ASSIGN(report.commit, local_commit(cache, repo));
  report.snapshot = cache.snapshot(report.commit);
  TRY_ASSIGN(std::vector<RepoFile> files, cache.snapshot_files(report.commit));
  files = select_files(files, options.filter).files;
  report.num_files = static_cast<int64_t>(files.size());
  report.total_bytes = sum_bytes(files);
  TRY(verify_local(cache, files, options.depth, cancel, options.events));
  return report;
}

}  // namespace

Result<PullReport> pull(const HubConfig& config,
                        const RepoId& repo,
                        const PullOptions& options,
                        Cancel& cancel) {
  if (config.is_offline) return pull_offline(config, repo, options, cancel);
  TRY_ASSIGN(const std::unique_ptr<Client> client, Client::create(config, repo.endpoint, cancel));
  PullReport report;
  TRY_ASSIGN(report.commit, client->resolve_revision(repo));
  TRY_ASSIGN(const std::vector<RepoFile> all, client->list_files(repo, report.commit));
  Selection selection = select_files(all, options.filter);
  if (selection.files.empty()) {
    return missing_error(
        fmt::format("{}: none of its {} files is selected. Check --include and --exclude.",
                    repo.display(),
                    all.size()));
  }
  const RepoCache cache(config.cache_dir, repo);
  TRY(cache.create_directories());
  for (const RepoFile& file : selection.files) cache.adopt_file(report.commit, file);
  const std::vector<RepoFile> blobs = distinct_blobs(selection.files);
  TRY(check_room(config, repo, cache, blobs));

  Transfer transfer(*client, repo, report.commit, cache, options.depth, cancel, options.events);
  TRY_ASSIGN(Transfer::Report transferred, transfer.run(blobs));
  const LinkKind links = config.has_symlinks ? LinkKind::kSymbolic : LinkKind::kHard;
  TRY(link_snapshot(cache, repo, report.commit, selection.files, links));

  report.snapshot = cache.snapshot(report.commit);
  report.num_files = static_cast<int64_t>(selection.files.size());
  report.total_bytes = sum_bytes(selection.files);
  report.received_bytes = transferred.received_bytes;
  report.resumed_bytes = transferred.resumed_bytes;
  report.repaired = std::move(transferred.repaired);
  report.duplicates = std::move(selection.duplicates);
  return report;
}

}  // namespace nibble::hub
