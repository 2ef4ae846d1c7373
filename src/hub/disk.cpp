#include "hub/disk.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <system_error>

#include "hub/errors.h"

namespace nibble::hub {
namespace {

// Longer writes make Linux look for megabytes of contiguous page cache: six times the system time
// on 6.18 (tools/bench_pull), and the lock of the file is held all the while.
constexpr size_t kMaxWriteBytes = 256 << 10;

constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();

const char* remedy(int code) {
  switch (code) {
    case ENOSPC:
      return ". Free space and run the same command again; what arrived is kept.";
    case EDQUOT:
      return ". Your quota is used up: free space and run the same command again; what arrived is "
             "kept.";
    case EFBIG:
      return ". This file system or the process limit (ulimit -f) does not take files of this "
             "size; "
             "choose another place with HF_HUB_CACHE.";
    case EACCES:
    case EPERM:
    case EROFS:
      return ". Check the rights, or choose another place with HF_HUB_CACHE.";
    default:
      return ". Check the disk.";
  }
}

}  // namespace

Error disk_fault(const Path& path, std::string_view action) {
  const int code = errno;
  return disk_error(
      fmt::format("{}: cannot {}: {}{}", path.string(), action, std::strerror(code), remedy(code)));
}

Result<UniqueFd> open_file(const Path& path, int flags) {
  UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC, 0666));
  if (!fd.is_open()) return disk_fault(path, "open");
  return fd;
}

Result<int64_t> file_size(const UniqueFd& fd, const Path& path) {
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) return disk_fault(path, "stat");
  return static_cast<int64_t>(info.st_size);
}

Result<void> write_at(const UniqueFd& fd,
                      const Path& path,
                      int64_t offset,
                      std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n =
        ::pwrite(fd.get(), bytes.data(), std::min(bytes.size(), kMaxWriteBytes), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return disk_fault(path, "write");
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += n;
  }
  return {};
}

Result<size_t> read_at(const UniqueFd& fd,
                       const Path& path,
                       int64_t offset,
                       std::span<std::byte> bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::pread(
        fd.get(), bytes.data() + done, bytes.size() - done, offset + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return disk_fault(path, "read");
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

Result<void> sync_file(const UniqueFd& fd, const Path& path) {
  if (::fsync(fd.get()) != 0) return disk_fault(path, "flush");
  return {};
}

Result<void> sync_directory(const Path& path) {
  TRY_ASSIGN(const UniqueFd fd, open_file(path, O_RDONLY | O_DIRECTORY));
  // Some network file systems cannot flush directories; they order renames by themselves.
  if (::fsync(fd.get()) != 0 && errno != EINVAL && errno != ENOTSUP)
    return disk_fault(path, "flush");
  return {};
}

Result<void> rename_file(const Path& from, const Path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) return disk_fault(to, "rename a file to");
  return {};
}

Result<void> remove_file(const Path& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return disk_fault(path, "remove");
  return {};
}

Result<void> make_directories(const Path& path) {
  std::error_code fault;
  std::filesystem::create_directories(path, fault);
  if (fault) {
    errno = fault.value();
    return disk_fault(path, "create the directory");
  }
  return {};
}

Result<void> write_atomically(const Path& path, std::string_view text, const Path& scratch) {
  const Path temporary = scratch / fmt::format("{}.{}.tmp", path.filename().string(), ::getpid());
  {
    TRY_ASSIGN(const UniqueFd fd, open_file(temporary, O_WRONLY | O_CREAT | O_TRUNC));
    Result<void> written = write_at(fd, temporary, 0, std::as_bytes(std::span(text)));
    if (written.ok()) written = sync_file(fd, temporary);
    if (!written.ok()) {
      ::unlink(temporary.c_str());
      return written;
    }
  }
  TRY(rename_file(temporary, path));
  return sync_directory(path.parent_path());
}

Result<int64_t> free_bytes(const Path& directory) {
  struct statvfs info = {};
  if (::statvfs(directory.c_str(), &info) != 0)
    return disk_fault(directory, "ask for free space of");
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

Result<int64_t> max_file_bytes(const Path& directory) {
  int64_t limit = kMaxInt64;
  const long bits = ::pathconf(directory.c_str(), _PC_FILESIZEBITS);  // FAT: 33, for 4 GiB
  if (bits > 1 && bits < 63) limit = (int64_t{1} << (bits - 1)) - 1;
  struct rlimit process = {};
  if (::getrlimit(RLIMIT_FSIZE, &process) == 0 && process.rlim_cur != RLIM_INFINITY) {
    limit = std::min(limit, static_cast<int64_t>(std::min<rlim_t>(process.rlim_cur, kMaxInt64)));
  }
  return limit;
}

std::string format_bytes(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  return unit == 0 || value >= 99.5 ? fmt::format("{:.0f} {}", value, kUnits[unit])
                                    : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace nibble::hub
