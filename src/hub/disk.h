// Files as a download needs them: positioned reads and writes, durable renames, room on the disk.
// Every fault names the path and what to do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/file.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace nibble::hub {

// From errno: what could not be done, and the remedy for a full disk, a quota or missing rights.
Error disk_fault(const Path& path, std::string_view action);

// `flags` as for open(2); close-on-exec is added, new files get the umask's rights.
Result<UniqueFd> open_file(const Path& path, int flags);
Result<int64_t> file_size(const UniqueFd& fd, const Path& path);
Result<void> write_at(const UniqueFd& fd,
                      const Path& path,
                      int64_t offset,
                      std::span<const std::byte> bytes);
// Fewer bytes than asked for only at the end of the file.
Result<size_t> read_at(const UniqueFd& fd,
                       const Path& path,
                       int64_t offset,
                       std::span<std::byte> bytes);

Result<void> sync_file(const UniqueFd& fd, const Path& path);
Result<void> sync_directory(const Path& path);
Result<void> rename_file(const Path& from, const Path& to);
Result<void> remove_file(const Path& path);  // success when it does not exist
Result<void> make_directories(const Path& path);

// Replaces `path` with `text`, durably: readers see the old or the new text, never a part. Until it
// is whole it lies in `scratch`, a directory of the same file system where nobody minds what a
// killed process leaves.
Result<void> write_atomically(const Path& path, std::string_view text, const Path& scratch);

// Bytes that this user may still write below `directory`, and the longest file it may hold.
Result<int64_t> free_bytes(const Path& directory);
Result<int64_t> max_file_bytes(const Path& directory);

// "1.5 GB", "12 kB": decimal units, as disks and networks are sold.
std::string format_bytes(int64_t bytes);

}  // namespace nibble::hub
