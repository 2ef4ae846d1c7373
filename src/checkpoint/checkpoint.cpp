#include "checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <system_error>
#include <utility>

#include "checkpoint/display.h"
#include "checkpoint/shard_index.h"

namespace nibble::checkpoint {
namespace {

constexpr const char* kSingleFileName = "model.safetensors";
constexpr int64_t kMaxIndexBytes = 64 << 20;

// Also true for a dangling link: an index that cannot be read is a fault, not an absent one.
bool has_entry(const Path& path) {
  std::error_code ignored;
  return std::filesystem::symlink_status(path, ignored).type() !=
         std::filesystem::file_type::not_found;
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const Path& dir) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(dir, ignored)) {
    return not_found(
        fmt::format("{}: no such directory, expected one with config.json and model.safetensors.",
                    display_name(dir.string())));
  }
  Checkpoint checkpoint;
  checkpoint.dir_ = dir;
  if (!has_entry(dir / kIndexFileName)) {
    TRY(checkpoint.add_shard(
        kSingleFileName,
        fmt::format("Neither it nor {} exists; pass the directory of a safetensors checkpoint.",
                    kIndexFileName)));
    TRY(checkpoint.sort_and_refuse_duplicates());
    return checkpoint;
  }
  TRY_ASSIGN(const std::string text, read_file(dir / kIndexFileName, kMaxIndexBytes));
  TRY_ASSIGN(const ShardIndex index, parse_shard_index(text, kIndexFileName));
  for (const std::string& shard : index.shards) {
    TRY(checkpoint.add_shard(
        shard,
        fmt::format("{} names it, expected it beside the index. Fetch the missing file.",
                    kIndexFileName)));
  }
  TRY(checkpoint.sort_and_refuse_duplicates());
  TRY(checkpoint.compare_with_index(index));
  return checkpoint;
}

Result<Checkpoint> Checkpoint::from_memory(const Path& dir,
                                           std::string config_text,
                                           std::vector<StoredTensor> tensors,
                                           std::shared_ptr<const std::byte> memory) {
  Checkpoint checkpoint;
  checkpoint.dir_ = dir;
  checkpoint.config_text_ = std::move(config_text);
  checkpoint.memory_ = std::move(memory);
  checkpoint.shard_names_ = {"memory"};
  for (StoredTensor& tensor : tensors) {
    checkpoint.locations_.push_back({.shard = 0, .begin = tensor.begin});
    checkpoint.data_bytes_ += tensor.end - tensor.begin;
    checkpoint.tensors_.push_back(std::move(tensor.meta));
  }
  TRY(checkpoint.sort_and_refuse_duplicates());
  return checkpoint;
}

Result<ConfigReader> Checkpoint::read_config() const {
  if (memory_ == nullptr) return checkpoint::read_config(dir_);
  return ConfigReader::parse(config_text_, "config.json");
}

Result<void> Checkpoint::add_shard(const std::string& file_name, std::string_view remedy) {
  Result<MappedFile> file = MappedFile::open(dir_ / file_name);
  if (!file.ok()) {
    Error error = std::move(file).error();
    error.message =
        fmt::format("{}: {}. {}", display_name(file_name), display_name(error.message), remedy);
    return error;
  }
  const std::span<const std::byte> bytes = file->bytes();
  TRY_ASSIGN(SafetensorsHeader header,
             parse_safetensors_header(bytes, static_cast<int64_t>(bytes.size()), file_name));
  const auto shard = static_cast<int32_t>(shards_.size());
  for (StoredTensor& tensor : header.tensors) {
    locations_.push_back({.shard = shard, .begin = tensor.begin});
    data_bytes_ += tensor.end - tensor.begin;
    tensors_.push_back(std::move(tensor.meta));
  }
  shard_names_.push_back(file_name);
  shards_.push_back(std::move(file).value());
  return {};
}

Result<void> Checkpoint::sort_and_refuse_duplicates() {
  std::vector<size_t> order(tensors_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return tensors_[a].name < tensors_[b].name;
  });
  std::vector<TensorMeta> tensors;
  std::vector<Location> locations;
  tensors.reserve(order.size());
  locations.reserve(order.size());
  for (const size_t i : order) {
    if (!tensors.empty() && tensors.back().name == tensors_[i].name) {
      return data_loss(
          fmt::format("{}: tensor {}: found in {} too, expected in one shard only. "
                      "Files of different checkpoints are mixed; fetch the model again.",
                      display_name(shard_names_[static_cast<size_t>(locations.back().shard)]),
                      display_name(tensors_[i].name),
                      display_name(shard_names_[static_cast<size_t>(locations_[i].shard)])));
    }
    tensors.push_back(std::move(tensors_[i]));
    locations.push_back(locations_[i]);
  }
  tensors_ = std::move(tensors);
  locations_ = std::move(locations);
  return {};
}

Result<void> Checkpoint::compare_with_index(const ShardIndex& index) {
  constexpr std::string_view kRemedy =
      "Index and shards are of different checkpoints; fetch the model again.";
  for (const auto& [name, shard] : index.tensors) {
    const std::optional<size_t> position = position_of(name);
    const std::string& expected = index.shards[static_cast<size_t>(shard)];
    if (position && locations_[*position].shard == shard) continue;
    return data_loss(fmt::format("{}: tensor {}: found in {}, expected in {}. {}",
                                 kIndexFileName,
                                 display_name(name),
                                 position ? display_name(shard_of(name)) : "no shard",
                                 display_name(expected),
                                 kRemedy));
  }
  if (tensors_.size() != index.tensors.size()) {
    const auto extra =
        std::find_if(tensors_.begin(), tensors_.end(), [&](const TensorMeta& tensor) {
          const auto it = std::lower_bound(
              index.tensors.begin(),
              index.tensors.end(),
              tensor.name,
              [](const auto& entry, const std::string& name) { return entry.first < name; });
          return it == index.tensors.end() || it->first != tensor.name;
        });
    return data_loss(fmt::format("{}: tensor {}: found in this shard, expected an entry in {}. {}",
                                 display_name(shard_of(extra->name)),
                                 display_name(extra->name),
                                 kIndexFileName,
                                 kRemedy));
  }
  if (index.total_size && *index.total_size != data_bytes_) {
    warnings_.push_back(
        fmt::format("{}: metadata.total_size is {}, the shards hold {} bytes of tensors.",
                    kIndexFileName,
                    *index.total_size,
                    data_bytes_));
  }
  return {};
}

std::optional<size_t> Checkpoint::position_of(std::string_view name) const {
  const auto it = std::lower_bound(
      tensors_.begin(), tensors_.end(), name, [](const TensorMeta& tensor, std::string_view n) {
        return tensor.name < n;
      });
  if (it == tensors_.end() || it->name != name) return std::nullopt;
  return static_cast<size_t>(it - tensors_.begin());
}

TensorView Checkpoint::view_at(size_t position) const {
  const Location& location = locations_[position];
  const std::byte* shard = memory_ != nullptr
                               ? memory_.get()
                               : shards_[static_cast<size_t>(location.shard)].bytes().data();
  const std::byte* data = shard + location.begin;
  return TensorView::read_only(data, tensors_[position].dtype, tensors_[position].shape);
}

const TensorMeta* Checkpoint::find_meta(std::string_view name) const {
  const std::optional<size_t> position = position_of(name);
  return position ? &tensors_[*position] : nullptr;
}

std::optional<TensorView> Checkpoint::find(std::string_view name) const {
  const std::optional<size_t> position = position_of(name);
  if (!position) return std::nullopt;
  return view_at(*position);
}

Result<TensorView> Checkpoint::tensor(std::string_view name) const {
  if (const std::optional<TensorView> view = find(name)) return *view;
  return not_found(fmt::format(
      "{}: tensor {}: not found in {} tensors of {} files. The checkpoint is incomplete or of "
      "another architecture.",
      display_name(dir_.string()),
      display_name(name),
      tensors_.size(),
      shard_names_.size()));
}

std::string_view Checkpoint::shard_of(std::string_view name) const {
  const std::optional<size_t> position = position_of(name);
  if (!position) return {};
  return shard_names_[static_cast<size_t>(locations_[*position].shard)];
}

void Checkpoint::drop_resident() const {
  for (const MappedFile& shard : shards_) shard.drop_resident();
}

}  // namespace nibble::checkpoint
