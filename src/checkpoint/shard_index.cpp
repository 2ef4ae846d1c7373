#include "checkpoint/shard_index.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"
#include "checkpoint/display.h"

namespace nibble::checkpoint {
namespace {

// {"weight_map": {name: file}} is two deep; metadata may hold a little more.
constexpr json::Limits kIndexLimits = {
    .max_depth = 8, .max_nodes = 4'000'000, .max_bytes = 64 << 20};
constexpr size_t kMaxFileNameBytes = 255;  // NAME_MAX
constexpr size_t kMaxShards = 10'000;      // each is a memory map; Linux allows 65,530
constexpr std::string_view kSuffix = ".safetensors";

Error fault(std::string_view file, const std::string& what) {
  return data_loss(
      fmt::format("{}: {}. The index is damaged; fetch it again from the model's source.",
                  display_name(file),
                  what));
}

// Why `name` may not be opened beside the index; nullptr when it may.
const char* plain_file_name_fault(std::string_view name) {
  if (name.empty()) return "is empty";
  if (name.size() > kMaxFileNameBytes) return "is longer than 255 bytes";
  for (const char c : name) {
    if (c == '/' || c == '\\') return "contains a path separator";
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) return "contains a control character";
  }
  if (!name.ends_with(kSuffix) || name == kSuffix) return "does not end in .safetensors";
  return nullptr;
}

std::optional<int64_t> read_total_size(const json::Value& document) {
  const json::Value* metadata = document.find("metadata");
  const json::Value* total = metadata == nullptr ? nullptr : metadata->find("total_size");
  return total == nullptr ? std::nullopt : total->as_int64();
}

int32_t position_of(const std::vector<std::string>& sorted, const std::string& name) {
  return static_cast<int32_t>(std::lower_bound(sorted.begin(), sorted.end(), name) -
                              sorted.begin());
}

}  // namespace

Result<ShardIndex> parse_shard_index(std::string_view text, std::string_view file_name) {
  const Result<json::Value> document = json::parse(text, kIndexLimits);
  if (!document.ok())
    return fault(file_name, document.error().message + ", expected a JSON object");
  const json::Value* map = document->find("weight_map");
  if (map == nullptr || !map->is_object()) {
    return fault(file_name,
                 fmt::format("weight_map is {}, expected an object of tensor and file names",
                             map == nullptr ? "missing" : display_value(*map)));
  }
  ShardIndex index;
  index.total_size = read_total_size(*document);
  for (const json::Member& member : *map->as_object()) {
    const std::string* shard = member.value.as_string();
    if (shard == nullptr) {
      return fault(file_name,
                   fmt::format("weight_map: tensor {}: shard is {}, expected a file name",
                               display_name(member.key),
                               display_value(member.value)));
    }
    if (const char* why = plain_file_name_fault(*shard)) {
      return fault(file_name,
                   fmt::format("weight_map: tensor {}: shard \"{}\" {}, expected a plain file name",
                               display_name(member.key),
                               display_name(*shard),
                               why));
    }
    index.shards.push_back(*shard);
  }
  if (index.shards.empty())
    return fault(file_name, "weight_map names 0 tensors, expected at least 1");
  std::sort(index.shards.begin(), index.shards.end());
  index.shards.erase(std::unique(index.shards.begin(), index.shards.end()), index.shards.end());
  if (index.shards.size() > kMaxShards) {
    return fault(
        file_name,
        fmt::format(
            "weight_map names {} shards, expected at most {}", index.shards.size(), kMaxShards));
  }
  for (const json::Member& member : *map->as_object()) {
    index.tensors.emplace_back(member.key, position_of(index.shards, *member.value.as_string()));
  }
  std::sort(index.tensors.begin(), index.tensors.end());
  return index;
}

}  // namespace nibble::checkpoint
