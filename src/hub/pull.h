// One repository into the cache: revision to commit, file list, room on the disk, transfer,
// snapshot.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "hub/cancel.h"
#include "hub/config.h"
#include "hub/repo.h"
#include "hub/transfer.h"

namespace nibble::hub {

struct PullOptions {
  FileFilter filter;
  // kReadAll hashes blobs that are there already and repairs what is damaged.
  CheckDepth depth = CheckDepth::kTrustRecord;
  TransferEvents events;
};

struct PullReport {
  std::string commit;
  Path snapshot;
  int64_t num_files = 0;
  int64_t total_bytes = 0;
  int64_t received_bytes = 0;
  int64_t resumed_bytes = 0;
  std::vector<std::string> repaired;  // paths whose blobs were damaged
  std::vector<RepoFile> duplicates;   // left out: other formats of the same weights
};

// On success every selected file is in the snapshot with verified size and hash, and refs/REVISION
// names the commit. On failure (Error::reason holds the class of errors.h) nothing that was
// complete is lost, and the same call goes on where this one stopped. Offline, answers from the
// cache alone: what refs and snapshots say, verified with kReadAll.
Result<PullReport> pull(const HubConfig& config,
                        const RepoId& repo,
                        const PullOptions& options,
                        Cancel& cancel);

}  // namespace nibble::hub
