// Paths of one repository in the cache that all hub tools share: blobs by hash, snapshots of
// relative links, refs. What only this program writes has names that the others pass over.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "hub/repo.h"

namespace nibble::hub {

enum class LinkKind { kSymbolic, kHard };

class RepoCache final {
 public:
  RepoCache(Path cache_dir, const RepoId& repo);

  const Path& root() const { return root_; }  // CACHE/models--org--name
  Path blobs() const { return root_ / "blobs"; }
  Path blob(std::string_view etag) const;
  // A blob on its way, and which of its blocks are there.
  Path partial(std::string_view etag) const;
  Path journal(std::string_view etag) const;
  // Our own knowledge of a verified blob: see BlobRecord.
  Path record(std::string_view etag) const;
  Path lock(std::string_view etag) const;
  // For files and links before they are renamed to where others look.
  Path scratch() const;
  Path snapshot(std::string_view commit) const;

  Result<void> create_directories() const;

  // The commit that refs/REVISION names, or nullopt.
  Result<std::optional<std::string>> read_ref(const std::string& revision) const;
  Result<void> write_ref(const std::string& revision, const std::string& commit) const;

  // Makes snapshots/COMMIT/PATH a link to the blob, replacing what is there: a relative symbolic
  // one where that is wanted and the file system has them, else a hard one.
  Result<void> link_file(const std::string& commit, const RepoFile& file, LinkKind kind) const;

  // Gives a file that another tool stored in the snapshot itself, as huggingface_hub does without
  // symbolic links, its name among the blobs as well, so that it need not be received again. Only
  // the size is looked at; the blob is to be checked like any other.
  void adopt_file(const std::string& commit, const RepoFile& file) const;

  // The files of a snapshot, sorted, with the sizes and hashes of the blobs that they link to.
  // Things that are no links into blobs/ are left out.
  Result<std::vector<RepoFile>> snapshot_files(const std::string& commit) const;

 private:
  Path cache_dir_;
  std::string folder_;  // models--org--name
  Path root_;
};

// The record of the blob that a file of a snapshot links to, by a symbolic or hard link; nullopt
// for any other file.
std::optional<Path> record_of_snapshot_file(const Path& file);

struct CacheUse {
  Path root;
  int64_t bytes = 0;          // allocated below blobs/
  int64_t partial_bytes = 0;  // of these, in downloads that have not ended
};

// What the cache holds, largest first. Unreadable parts are left out.
std::vector<CacheUse> measure_cache(const Path& cache_dir);

}  // namespace nibble::hub
