#include "checkpoint/shard_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/checked_math.h"
#include "base/json.h"
#include "checkpoint/display.h"

namespace nibble::checkpoint {
namespace {

constexpr std::string_view kMetadataKey = "__metadata__";

// Positions of `tensors` in the order of the file.
std::vector<size_t> file_order(std::span<const TensorMeta> tensors) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const int64_t width_a = dtype_size(tensors[a].dtype);
    const int64_t width_b = dtype_size(tensors[b].dtype);
    return width_a != width_b ? width_a > width_b : tensors[a].name < tensors[b].name;
  });
  return order;
}

Error bad_name(std::string_view file, std::string_view name, std::string_view why) {
  return invalid_argument(fmt::format("{}: tensor {}: the name is {}, expected a unique one.",
                                      display_name(file),
                                      display_name(name),
                                      why));
}

// The length field and the JSON, padded so that the data starts aligned for every dtype.
std::string make_prefix(const json::Object& header) {
  std::string text = json::dump(header, json::Style::kCompact);
  text.resize(static_cast<size_t>(round_up(static_cast<int64_t>(text.size()), 8)), ' ');
  std::string prefix;
  for (size_t i = 0; i < 8; ++i) prefix += static_cast<char>(text.size() >> (8 * i));
  return prefix + text;
}

}  // namespace

Result<ShardLayout> lay_out_shard(std::string file_name,
                                  std::span<const TensorMeta> tensors,
                                  std::span<const std::pair<std::string, std::string>> metadata) {
  ShardLayout layout;
  layout.file_name = std::move(file_name);
  layout.tensors.resize(tensors.size());
  json::Object header;
  if (!metadata.empty()) {
    json::Object object;
    for (const auto& [key, text] : metadata) object.set(key, text);
    header.insert(std::string(kMetadataKey), std::move(object));
  }
  int64_t offset = 0;
  for (const size_t i : file_order(tensors)) {
    const TensorMeta& meta = tensors[i];
    const int64_t end = offset + meta.shape.num_elements() * dtype_size(meta.dtype);
    json::Array shape;
    for (const int64_t dim : meta.shape.dims()) shape.emplace_back(dim);
    if (meta.name == kMetadataKey) return bad_name(layout.file_name, meta.name, "reserved");
    const bool is_new =
        header.insert(meta.name,
                      json::make_object({{"dtype", dtype_name(meta.dtype)},
                                         {"shape", std::move(shape)},
                                         {"data_offsets", json::Array{offset, end}}}));
    if (!is_new) return bad_name(layout.file_name, meta.name, "used twice");
    layout.tensors[i] = {.meta = meta, .begin = offset, .end = end};
    offset = end;
  }
  layout.prefix = make_prefix(header);
  const auto data_begin = static_cast<int64_t>(layout.prefix.size());
  for (StoredTensor& tensor : layout.tensors) {
    tensor.begin += data_begin;
    tensor.end += data_begin;
  }
  layout.file_bytes = data_begin + offset;
  return layout;
}

std::string shard_file_name(int32_t index, int32_t num_shards) {
  if (num_shards == 1) return "model.safetensors";
  return fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, num_shards);
}

std::string shard_index_text(std::span<const ShardLayout> shards) {
  int64_t total_size = 0;
  std::vector<std::pair<std::string_view, std::string_view>> entries;
  for (const ShardLayout& shard : shards) {
    for (const StoredTensor& tensor : shard.tensors) {
      total_size += tensor.end - tensor.begin;
      entries.emplace_back(tensor.meta.name, shard.file_name);
    }
  }
  std::sort(entries.begin(), entries.end());
  json::Object map;
  for (const auto& [name, file] : entries) map.set(std::string(name), file);
  return json::dump(
      json::make_object({{"metadata", json::make_object({{"total_size", total_size}})},
                         {"weight_map", std::move(map)}}),
      json::Style::kPython);
}

}  // namespace nibble::checkpoint
