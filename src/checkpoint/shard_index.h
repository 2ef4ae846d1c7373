// model.safetensors.index.json: which shard holds which tensor. Untrusted: its file names reach the
// file system.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace nibble::checkpoint {

inline constexpr std::string_view kIndexFileName = "model.safetensors.index.json";

struct ShardIndex {
  std::vector<std::string> shards;                       // sorted, unique
  std::vector<std::pair<std::string, int32_t>> tensors;  // name, index into shards; sorted by name
  std::optional<int64_t> total_size;  // metadata.total_size; informational, often wrong in the wild
};

// Parses the index. Shard names must be plain file names: not empty, not "." or "..", no '/', '\'
// or control character, at most 255 bytes, ending in ".safetensors". Hence no path in an index
// leaves its directory. (The files themselves may be symbolic links, as in hub caches; whoever can
// place links there owns the directory.) kDataLoss for everything that is not such an index.
Result<ShardIndex> parse_shard_index(std::string_view text, std::string_view file_name);

}  // namespace nibble::checkpoint
