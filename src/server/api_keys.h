// The secrets that clients present. Kept as digests only, compared in constant time, never logged.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "server/key_id.h"

namespace nibble::server {

class ApiKeys final {
 public:
  ApiKeys() = default;

  // One key a line; blank lines and surrounding spaces do not count. kInvalidArgument names the
  // line (never its text) of a key that no HTTP header can carry, and a file without keys. Warns
  // when others may read the file.
  static Result<ApiKeys> load(const Path& file);
  static Result<ApiKeys> parse(std::string_view text, std::string_view file_name);

  bool empty() const { return digests_.empty(); }
  size_t size() const { return digests_.size(); }

  // The id of an accepted key. Takes the same time for every key of a length, right or wrong.
  std::optional<KeyId> find(std::string_view key) const;
  bool accepts(std::string_view key) const { return find(key).has_value(); }

 private:
  using Digest = std::array<uint8_t, 32>;
  std::vector<Digest> digests_;
};

}  // namespace nibble::server
