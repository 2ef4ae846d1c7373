// A file that appears under its name only when it is complete and on the disk: written under a
// temporary name, synchronised, renamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/file.h"
#include "base/result.h"

namespace nibble::checkpoint {

// Faults: kExhausted when the disk is full, kNotFound when the directory is missing,
// kInvalidArgument otherwise. Moves only; a file that was not published removes itself.
class OutputFile final {
 public:
  // Opens `path` + `temporary_suffix`, emptying a file that is there. A `path` that is a directory
  // or a device is refused: publishing would replace it.
  static Result<OutputFile> create(const Path& path, std::string_view temporary_suffix);

  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&& other) noexcept;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  // Sets the size and takes the disk space for it now, where the file system can. A full disk is
  // then found before any work is done.
  Result<void> reserve(int64_t num_bytes);

  // Any thread.
  Result<void> write_at(int64_t offset, std::span<const std::byte> bytes) const;

  // Lets the disk begin with what was written, so that sync() has less to wait for. A hint.
  void start_writeback() const;
  // Waits until everything written is on the disk.
  Result<void> sync();
  // Gives the file its name, replacing what had it, and syncs the directory. After sync().
  Result<void> publish();

 private:
  OutputFile() = default;
  Error fault(std::string_view action) const;

  Path path_;
  Path temporary_;
  int fd_ = -1;
};

// Waits until the entries of `dir` (new, renamed, removed files) are on the disk.
Result<void> sync_directory(const Path& dir);

// Whether `path` can be written: for work that takes long before it has something to write.
Result<void> check_output(const Path& path);

// Writes a whole file: create, write, sync, publish.
Result<void> write_file(const Path& path, std::string_view text);

}  // namespace nibble::checkpoint
