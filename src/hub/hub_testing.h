// A directory of its own for a test, removed at its end.
#pragma once

#include <string>

#include "base/file.h"

namespace nibble::hub {

class TemporaryDirectory final {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const Path& path() const { return path_; }

 private:
  Path path_;
};

void write_text(const Path& path, const std::string& text);

// Bytes that look random and are the same everywhere.
std::string pattern_bytes(size_t size, uint64_t seed);

}  // namespace nibble::hub
