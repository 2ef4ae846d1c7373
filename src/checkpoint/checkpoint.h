// A model directory opened for reading: every tensor by name, mapped and not copied. Knows files,
// not models. Immutable after open(); any thread may read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "checkpoint/config_reader.h"
#include "checkpoint/safetensors.h"
#include "tensor/tensor_view.h"

namespace nibble::checkpoint {

struct ShardIndex;

class Checkpoint final {
 public:
  // Opens `dir`: the shards named by model.safetensors.index.json, or model.safetensors alone where
  // no index exists (other files beside it are ignored). All headers and all file sizes are checked
  // before this returns, so truncated or over-long shards are found before any weight is used;
  // weight data is not read. kNotFound for missing files, kDataLoss for damaged files and for an
  // index that contradicts its shards, kUnsupported for dtypes that this program does not know.
  static Result<Checkpoint> open(const Path& dir);

  // Tensors that somebody made in memory, as if they had been read from `dir`. `begin` and `end`
  // are relative to `memory`, which lives as long as this object; `config_text` replaces
  // DIR/config.json. kDataLoss for duplicate names.
  static Result<Checkpoint> from_memory(const Path& dir,
                                        std::string config_text,
                                        std::vector<StoredTensor> tensors,
                                        std::shared_ptr<const std::byte> memory);

  const Path& dir() const { return dir_; }

  // config.json. kNotFound when it is missing.
  Result<ConfigReader> read_config() const;

  // Every tensor, sorted by name.
  std::span<const TensorMeta> tensors() const { return tensors_; }
  const TensorMeta* find_meta(std::string_view name) const;

  // The bytes of a tensor, valid while this object lives. kNotFound names the directory and the
  // tensor.
  Result<TensorView> tensor(std::string_view name) const;
  std::optional<TensorView> find(std::string_view name) const;

  // File names, and the one that holds a tensor (empty for an unknown tensor).
  std::span<const std::string> shard_names() const { return shard_names_; }
  std::string_view shard_of(std::string_view name) const;

  // Bytes of all tensors, without headers.
  int64_t data_bytes() const { return data_bytes_; }

  // What is odd but harmless, such as a wrong total_size in the index. Sentences for a log.
  std::span<const std::string> warnings() const { return warnings_; }

  // Lets the kernel drop the resident pages of all shards, once weights are copied or repacked.
  void drop_resident() const;

 private:
  // Where the bytes of tensors_[i] are.
  struct Location {
    int32_t shard = 0;
    int64_t begin = 0;
  };

  Checkpoint() = default;
  std::optional<size_t> position_of(std::string_view name) const;
  TensorView view_at(size_t position) const;
  Result<void> add_shard(const std::string& file_name, std::string_view remedy);
  Result<void> sort_and_refuse_duplicates();
  Result<void> compare_with_index(const ShardIndex& index);

  Path dir_;
  std::vector<std::string> shard_names_;
  std::vector<MappedFile> shards_;  // as shard_names_
  std::vector<TensorMeta> tensors_;
  std::vector<Location> locations_;  // as tensors_
  int64_t data_bytes_ = 0;
  std::vector<std::string> warnings_;
  std::shared_ptr<const std::byte> memory_;  // of from_memory(), instead of shards_
  std::string config_text_;                  // the same
};

}  // namespace nibble::checkpoint
