// Files: whole reads with a cap, and read-only memory maps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "base/result.h"

namespace nibble {

using Path = std::filesystem::path;

// Reads a regular file of at most `max_bytes`. kNotFound, kInvalidArgument (not a regular file, too
// large).
Result<std::string> read_file(const Path& path, int64_t max_bytes);

// A read-only private mapping of a whole regular file. Moves only; the views handed out live as
// long as it does. A file that is truncated by somebody else while mapped raises SIGBUS on access;
// sizes are checked at opening.
class MappedFile final {
 public:
  static Result<MappedFile> open(const Path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Tells the kernel that reads are few and far apart, so that it fetches no neighbouring pages.
  void expect_scattered_reads() const;
  // Lets the kernel drop the resident pages of this mapping; later reads fetch them again.
  void drop_resident() const;

 private:
  MappedFile() = default;

  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Makes the pages of mapped bytes resident at once, which is cheaper than one by one when all of
// them are about to be read. A hint.
void fetch_mapped(std::span<const std::byte> bytes);

}  // namespace nibble
