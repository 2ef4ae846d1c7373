#include "base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

namespace nibble {
namespace {

class FileDescriptor final {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

// Non-blocking: a FIFO would otherwise keep us waiting for its writer before we see what it is.
int open_for_reading(const Path& path) {
  return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

Error file_error(const Path& path, const char* action) {
  const int saved = errno;
  const std::string text =
      fmt::format("{}: cannot {}: {}", path.string(), action, std::strerror(saved));
  return saved == ENOENT || saved == ENOTDIR ? not_found(text) : invalid_argument(text);
}

// The size of an open regular file.
Result<int64_t> regular_file_size(int fd, const Path& path) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return file_error(path, "stat");
  if (!S_ISREG(info.st_mode)) {
    return invalid_argument(fmt::format("{}: is not a regular file", path.string()));
  }
  return static_cast<int64_t>(info.st_size);
}

}  // namespace

Result<std::string> read_file(const Path& path, int64_t max_bytes) {
  const FileDescriptor fd(open_for_reading(path));
  if (fd.get() < 0) return file_error(path, "open");
  TRY_ASSIGN(const int64_t size, regular_file_size(fd.get(), path));
  if (size > max_bytes) {
    return invalid_argument(
        fmt::format("{}: {} bytes, expected at most {}", path.string(), size, max_bytes));
  }
  std::string text(static_cast<size_t>(size), '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::read(fd.get(), text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return file_error(path, "read");
    if (n == 0) break;  // shrank while being read
    done += static_cast<size_t>(n);
  }
  text.resize(done);
  return text;
}

Result<MappedFile> MappedFile::open(const Path& path) {
  const FileDescriptor fd(open_for_reading(path));
  if (fd.get() < 0) return file_error(path, "open");
  TRY_ASSIGN(const int64_t size, regular_file_size(fd.get(), path));
  MappedFile file;
  if (size == 0) return file;  // mmap refuses length 0
  void* address = ::mmap(nullptr, static_cast<size_t>(size), PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (address == MAP_FAILED) return file_error(path, "map");
  file.data_ = static_cast<const std::byte*>(address);
  file.size_ = static_cast<size_t>(size);
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::expect_scattered_reads() const {
  if (data_ != nullptr) ::madvise(const_cast<std::byte*>(data_), size_, MADV_RANDOM);
}

void MappedFile::drop_resident() const {
  if (data_ != nullptr) ::madvise(const_cast<std::byte*>(data_), size_, MADV_DONTNEED);
}

void fetch_mapped(std::span<const std::byte> bytes) {
#ifdef MADV_POPULATE_READ
  if (bytes.empty()) return;
  constexpr uintptr_t kPageBytes = 4096;
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
  const uintptr_t page = begin / kPageBytes * kPageBytes;
  ::madvise(reinterpret_cast<void*>(page), begin + bytes.size() - page, MADV_POPULATE_READ);
#else
  static_cast<void>(bytes);
#endif
}

}  // namespace nibble
