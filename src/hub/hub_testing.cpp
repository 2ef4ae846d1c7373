#include "hub/hub_testing.h"

#include <stdlib.h>

#include <fstream>
#include <random>
#include <system_error>

#include "base/check.h"

namespace nibble::hub {

TemporaryDirectory::TemporaryDirectory() {
  std::string name = (std::filesystem::temp_directory_path() / "nibble-hub-XXXXXX").string();
  CHECK(::mkdtemp(name.data()) != nullptr);
  path_ = name;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void write_text(const Path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  CHECK(file.flush().good()) << path;
}

std::string pattern_bytes(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

}  // namespace nibble::hub
