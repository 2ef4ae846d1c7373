// A checkpoint as its files describe it, without a byte of weights: configuration texts, tensor
// headers, shard sizes. A directory, a hub client or a test fills it; what reads it needs no files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "tensor/block_type.h"
#include "tensor/tensor_view.h"

namespace nibble::checkpoint {

// The configuration files that may say something about a model, by their plain names.
std::span<const std::string_view> config_file_names();

struct ConfigFile {
  std::string file_name;
  std::string text;
};

struct ShardDescription {
  std::string file_name;
  int64_t file_bytes = 0;
  int64_t header_bytes = 0;  // length field and JSON
};

struct ModelDescription {
  std::string name;  // as the user gave it: a directory, org/name@revision, ...
  std::vector<ConfigFile> configs;
  std::vector<ShardDescription> shards;
  std::vector<TensorMeta> tensors;  // shard by shard
  std::vector<int32_t> shard_of;    // as tensors: index into shards
  std::vector<int64_t> data_begin;  // as tensors: first byte in its file
  // GGUF only: as tensors, whose dtype then says nothing; and general.architecture.
  std::vector<const BlockType*> block_types;
  std::string architecture;
  int64_t data_bytes = 0;   // of all tensors
  int64_t other_bytes = 0;  // of files that are no shards, where known
  // What the files get wrong, each with Error::reason "Q-F1" to "Q-F4". Tensors of damaged shards
  // are missing above.
  std::vector<Error> faults;
  std::vector<std::string> warnings;

  const ConfigFile* find_config(std::string_view file_name) const;
  int64_t shard_bytes() const;
};

// Puts a description together from parts in any order; finish() compares them.
class ModelDescriptionBuilder final {
 public:
  explicit ModelDescriptionBuilder(std::string name) { description_.name = std::move(name); }

  // A configuration file, or model.safetensors.index.json.
  void add_config(std::string file_name, std::string text);
  // A shard by its first bytes: at least the length field and, where that is possible, the whole
  // header.
  void add_shard(std::string_view file_name,
                 int64_t file_bytes,
                 std::span<const std::byte> first_bytes);
  // A GGUF file, whole.
  void add_gguf(std::string_view file_name, std::span<const std::byte> file);
  // A file of another kind, for the size of a download.
  void add_other_file(int64_t file_bytes) { description_.other_bytes += file_bytes; }
  void add_fault(Error fault) { description_.faults.push_back(std::move(fault)); }

  ModelDescription finish();

 private:
  void find_duplicates();
  void compare_with_index();

  ModelDescription description_;
  std::optional<std::string> index_text_;
};

// A model directory: its description, and its files for reading single values.
struct LocalModel {
  ModelDescription description;
  std::vector<MappedFile> files;  // as description.shards

  // Bytes [begin, begin + count) of a tensor's data. kDataLoss beyond its end.
  Result<std::vector<std::byte>> read(size_t tensor, int64_t begin, int64_t count) const;
};

// Of a directory with safetensors, or else with GGUF files. kNotFound when `dir` is no directory;
// damaged and missing files are faults of the description.
Result<LocalModel> describe_directory(const Path& dir);
// A single GGUF file. kNotFound when it cannot be opened.
Result<LocalModel> describe_gguf_file(const Path& file);

}  // namespace nibble::checkpoint
