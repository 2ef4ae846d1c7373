#include "checkpoint/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "checkpoint/display.h"

namespace nibble::checkpoint {
namespace {

// Longer writes make Linux look for megabytes of contiguous page cache, at several times the cost.
constexpr size_t kMaxWriteBytes = 256 << 10;

Error disk_error(const Path& path, std::string_view action) {
  const int saved = errno;
  std::string text =
      fmt::format("{}: cannot {}: {}", display_name(path.string()), action, std::strerror(saved));
  if (saved == ENOSPC || saved == EDQUOT) return exhausted(std::move(text));
  return saved == ENOENT ? not_found(std::move(text)) : invalid_argument(std::move(text));
}

}  // namespace

Result<OutputFile> OutputFile::create(const Path& path, std::string_view temporary_suffix) {
  struct stat info = {};
  const bool is_taken = ::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode);
  if (path.empty() || is_taken) {
    return invalid_argument(
        fmt::format("'{}': found {}, expected a file that can be replaced, or a new name",
                    display_name(path.string()),
                    path.empty() ? "no name" : "a directory or device"));
  }
  OutputFile file;
  file.path_ = path;
  file.temporary_ = path;
  file.temporary_ += temporary_suffix;
  file.fd_ = ::open(file.temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file.fd_ < 0) return file.fault("create");
  return file;
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      fd_(std::exchange(other.fd_, -1)) {}

OutputFile& OutputFile::operator=(OutputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(temporary_, other.temporary_);
  std::swap(fd_, other.fd_);
  return *this;
}

OutputFile::~OutputFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

Error OutputFile::fault(std::string_view action) const { return disk_error(path_, action); }

Result<void> OutputFile::reserve(int64_t num_bytes) {
  if (num_bytes > 0 && ::fallocate(fd_, 0, 0, num_bytes) == 0) return {};
  if (num_bytes > 0 && errno != EOPNOTSUPP && errno != ENOSYS) return fault("reserve space");
  if (::ftruncate(fd_, num_bytes) != 0) return fault("resize");
  return {};
}

Result<void> OutputFile::write_at(int64_t offset, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), std::min(bytes.size(), kMaxWriteBytes), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fault("write");
    offset += n;
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return {};
}

void OutputFile::start_writeback() const { ::sync_file_range(fd_, 0, 0, SYNC_FILE_RANGE_WRITE); }

Result<void> OutputFile::sync() {
  if (::fsync(fd_) != 0) return fault("sync");
  return {};
}

Result<void> OutputFile::publish() {
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return fault("rename");
  ::close(std::exchange(fd_, -1));
  return sync_directory(path_.has_parent_path() ? path_.parent_path() : Path("."));
}

Result<void> sync_directory(const Path& dir) {
  const int fd = ::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return disk_error(dir, "open");
  // Some file systems cannot sync directories; their renames are as durable as they get.
  const bool is_synced = ::fsync(fd) == 0 || errno == EINVAL;
  Result<void> result;
  if (!is_synced) result = disk_error(dir, "sync");
  ::close(fd);
  return result;
}

Result<void> check_output(const Path& path) {
  TRY_ASSIGN(const OutputFile unpublished,
             OutputFile::create(path, fmt::format(".{}.tmp", ::getpid())));
  static_cast<void>(unpublished);
  return {};
}

Result<void> write_file(const Path& path, std::string_view text) {
  TRY_ASSIGN(OutputFile file, OutputFile::create(path, fmt::format(".{}.tmp", ::getpid())));
  TRY(file.write_at(0, std::as_bytes(std::span(text))));
  TRY(file.sync());
  return file.publish();
}

}  // namespace nibble::checkpoint
