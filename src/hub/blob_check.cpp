#include "hub/blob_check.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <optional>

#include "hub/disk.h"
#include "hub/errors.h"

namespace nibble::hub {
namespace {

// The size of the blob, or nullopt when there is none.
Result<std::optional<int64_t>> size_of_blob(const Path& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return std::optional<int64_t>();
    return disk_fault(path, "stat");
  }
  return std::optional<int64_t>(info.st_size);
}

std::optional<BlobRecord> matching_record(const RepoCache& cache, const RepoFile& file) {
  Result<BlobRecord> record = read_record(cache.record(file.etag));
  if (!record.ok() || record->etag != file.etag || record->size != file.size) return std::nullopt;
  return std::move(record).value();
}

// Hashes a blob; its size may be wrong.
Result<BlobHasher::Finished> hash_blob(const Path& path,
                                       const RepoFile& file,
                                       const Cancel& cancel,
                                       const std::function<void(int64_t bytes)>& on_read) {
  TRY_ASSIGN(const UniqueFd fd, open_file(path, O_RDONLY));
  BlobHasher hasher(file.etag, file.size, content_of(file.path));
  std::vector<std::byte> buffer(static_cast<size_t>(kBlockBytes));
  for (int64_t block = 0; block < num_blocks(file.size); ++block) {
    if (cancel.is_set()) return cancelled_error();
    const auto expected = static_cast<size_t>(block_bytes(file.size, block));
    TRY_ASSIGN(const size_t have,
               read_at(fd, path, block * kBlockBytes, std::span(buffer).first(expected)));
    hasher.update(std::span(buffer).first(have));
    if (on_read) on_read(static_cast<int64_t>(have));
  }
  return hasher.finish();
}

}  // namespace

Result<BlobCheck> check_blob(const RepoCache& cache,
                             const RepoFile& file,
                             CheckDepth depth,
                             const Cancel& cancel,
                             const std::function<void(int64_t bytes)>& on_read) {
  const Path path = cache.blob(file.etag);
  TRY_ASSIGN(const std::optional<int64_t> size, size_of_blob(path));
  if (!size) return BlobCheck{};
  const std::optional<BlobRecord> record = matching_record(cache, file);
  if (*size == file.size && record && depth == CheckDepth::kTrustRecord) {
    if (on_read) on_read(file.size);
    return BlobCheck{BlobCheck::State::kGood, {}, {}};
  }
  TRY_ASSIGN(const BlobHasher::Finished found, hash_blob(path, file, cancel, on_read));
  if (*size == file.size && found.digest == file.etag) {
    if (!record)
      TRY(write_atomically(cache.record(file.etag), found.record.to_json(), cache.scratch()));
    return BlobCheck{BlobCheck::State::kGood, {}, {}};
  }
  BlobCheck check{BlobCheck::State::kDamaged, {}, {}};
  if (!record) return check;
  for (size_t i = 0; i < record->blocks.size(); ++i) {
    const bool is_good = found.record.blocks[i] == record->blocks[i];
    (is_good ? check.good_blocks : check.bad_blocks).push_back(static_cast<int64_t>(i));
  }
  return check;
}

}  // namespace nibble::hub
