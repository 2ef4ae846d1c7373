// Brings a set of files into the cache. Two kinds of threads: a few owners, each of which takes one
// blob from lock to rename and hashes it behind the front of its blocks; and one fetcher per
// connection, which fills blocks of whichever blobs the owners have open. Memory: one block per
// thread, libcurl's buffers, and 16 bytes per block of the open blobs.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "hub/blob_check.h"
#include "hub/blob_lock.h"
#include "hub/cancel.h"
#include "hub/client.h"
#include "hub/partial_blob.h"
#include "hub/repo_cache.h"

namespace nibble::hub {

struct TransferProgress {
  int64_t total_bytes = 0;
  int64_t done_bytes = 0;      // verified, or written and on the way to it
  int64_t received_bytes = 0;  // over the network
  int64_t num_files = 0;
  int64_t num_files_done = 0;
};

// Called from the thread that runs the transfer.
struct TransferEvents {
  std::function<void(const TransferProgress&)> on_progress;  // about ten times a second
  std::function<void(const std::string& line)> on_note;      // waiting, repairing, starting again
};

class Transfer final {
 public:
  // All references must outlive this. `cancel` is the client's; a failure of one file sets it.
  Transfer(Client& client,
           const RepoId& repo,
           std::string commit,
           const RepoCache& cache,
           CheckDepth depth,
           Cancel& cancel,
           const TransferEvents& events);

  struct Report {
    int64_t received_bytes = 0;
    int64_t resumed_bytes = 0;          // were there from an earlier, interrupted transfer
    std::vector<std::string> repaired;  // paths
  };

  // `files` have distinct etags. On success every blob is verified and in its place; on failure the
  // partial files stay for the next run.
  Result<Report> run(const std::vector<RepoFile>& files);

 private:
  struct ActiveBlob;
  struct Job;

  void own_files(const std::vector<RepoFile>& files);
  Result<void> obtain(const RepoFile& file);
  Result<void> seed(PartialBlob& partial, const RepoFile& file, const BlobCheck& check);
  Result<void> download(const RepoFile& file, PartialBlob& partial);
  Result<void> hash_and_publish(ActiveBlob& active);
  Result<BlobHasher::Finished> hash_behind_front(ActiveBlob& active);
  Result<void> publish(ActiveBlob& active, const BlobRecord& record);
  Result<void> remove_leftovers(const std::string& etag) const;

  void fetch_blocks();
  std::optional<Job> next_job();
  Result<void> fetch_span(Fetcher& fetcher, const Job& job, std::span<std::byte> buffer);

  void fail(Error error);
  void note(std::string line);
  void report_until_owners_end();
  TransferProgress progress() const;

  Client& client_;
  const RepoId& repo_;
  const std::string commit_;
  const RepoCache& cache_;
  const CheckDepth depth_;
  Cancel& cancel_;
  const TransferEvents& events_;

  TransferCounter counter_;
  std::atomic<int64_t> done_bytes_{0};
  std::atomic<int64_t> resumed_bytes_{0};
  std::atomic<int64_t> num_files_done_{0};
  std::atomic<size_t> next_file_{0};
  int64_t total_bytes_ = 0;
  int64_t num_files_ = 0;

  mutable std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  // Shared: a fetcher may still hold a blob whose owner has just finished it.
  std::vector<std::shared_ptr<ActiveBlob>> active_;
  std::vector<const BlobLock*> locks_;
  std::vector<std::string> notes_;  // drained ten times a second
  std::vector<std::string> repaired_;
  std::optional<Error> failure_;  // the first
  size_t num_owners_ = 0;         // running
};

}  // namespace nibble::hub
