// A directory for one test, removed with everything in it.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "base/check.h"

namespace nibble::checkpoint {

class TemporaryDirectory final {
 public:
  TemporaryDirectory() {
    std::string name = ::testing::TempDir() + "nibble_checkpoint_XXXXXX";
    CHECK(::mkdtemp(name.data()) != nullptr) << name;
    path_ = name;
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::filesystem::path& path() const { return path_; }

  void write(const std::string& file_name, const std::string& bytes) const {
    std::ofstream out(path_ / file_name, std::ios::binary);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    CHECK(out.good()) << file_name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace nibble::checkpoint
