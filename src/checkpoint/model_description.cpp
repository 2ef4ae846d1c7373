#include "checkpoint/model_description.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <system_error>
#include <unordered_map>

#include "checkpoint/display.h"
#include "checkpoint/gguf.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shard_index.h"

namespace nibble::checkpoint {
namespace {

constexpr int64_t kMaxConfigBytes = 64 << 20;
constexpr std::string_view kSingleFileName = "model.safetensors";

constexpr std::array<std::string_view, 8> kConfigFiles = {"config.json",
                                                          "generation_config.json",
                                                          "hf_quant_config.json",
                                                          "quantize_config.json",
                                                          "quant_config.json",
                                                          "quantization_config.json",
                                                          "quant_model_description.json",
                                                          "params.json"};

Error with_reason(Error error, std::string_view reason) {
  if (error.reason.empty()) error.reason = std::string(reason);
  return error;
}

}  // namespace

std::span<const std::string_view> config_file_names() { return kConfigFiles; }

const ConfigFile* ModelDescription::find_config(std::string_view file_name) const {
  for (const ConfigFile& config : configs) {
    if (config.file_name == file_name) return &config;
  }
  return nullptr;
}

int64_t ModelDescription::shard_bytes() const {
  int64_t bytes = 0;
  for (const ShardDescription& shard : shards) bytes += shard.file_bytes;
  return bytes;
}

void ModelDescriptionBuilder::add_config(std::string file_name, std::string text) {
  description_.other_bytes += static_cast<int64_t>(text.size());
  if (file_name == kIndexFileName) {
    index_text_ = std::move(text);
    return;
  }
  description_.configs.push_back({.file_name = std::move(file_name), .text = std::move(text)});
}

void ModelDescriptionBuilder::add_shard(std::string_view file_name,
                                        int64_t file_bytes,
                                        std::span<const std::byte> first_bytes) {
  const auto shard = static_cast<int32_t>(description_.shards.size());
  description_.shards.push_back({.file_name = std::string(file_name), .file_bytes = file_bytes});
  const Result<int64_t> prefix = safetensors_prefix_bytes(first_bytes, file_bytes, file_name);
  if (!prefix.ok()) return add_fault(with_reason(prefix.error(), "Q-F2"));
  description_.shards.back().header_bytes = *prefix;
  if (*prefix > static_cast<int64_t>(first_bytes.size())) {
    return add_fault(with_reason(
        data_loss(fmt::format("{}: {} bytes of its header are known, expected {}. Read it again.",
                              display_name(file_name),
                              first_bytes.size(),
                              *prefix)),
        "Q-F2"));
  }
  Result<SafetensorsHeader> header = parse_safetensors_header(first_bytes, file_bytes, file_name);
  if (!header.ok()) return add_fault(with_reason(std::move(header).error(), "Q-F2"));
  for (StoredTensor& tensor : header->tensors) {
    description_.data_bytes += tensor.end - tensor.begin;
    description_.data_begin.push_back(tensor.begin);
    description_.shard_of.push_back(shard);
    description_.tensors.push_back(std::move(tensor.meta));
  }
}

void ModelDescriptionBuilder::add_gguf(std::string_view file_name,
                                       std::span<const std::byte> file) {
  const auto shard = static_cast<int32_t>(description_.shards.size());
  const auto file_bytes = static_cast<int64_t>(file.size());
  description_.shards.push_back({.file_name = std::string(file_name), .file_bytes = file_bytes});
  Result<GgufHeader> header = parse_gguf_header(file, file_name);
  if (!header.ok()) return add_fault(with_reason(std::move(header).error(), "Q-F2"));
  description_.shards.back().header_bytes = header->data_begin;
  if (description_.architecture.empty()) description_.architecture = header->architecture;
  for (GgufTensor& tensor : header->tensors) {
    description_.data_bytes += tensor.end - tensor.begin;
    description_.data_begin.push_back(tensor.begin);
    description_.shard_of.push_back(shard);
    description_.block_types.push_back(tensor.type);
    description_.tensors.push_back(
        {.name = std::move(tensor.name), .dtype = DType::kU8, .shape = tensor.shape});
  }
}

void ModelDescriptionBuilder::find_duplicates() {
  std::unordered_map<std::string_view, int32_t> seen;
  seen.reserve(description_.tensors.size());
  for (size_t i = 0; i < description_.tensors.size(); ++i) {
    const auto [it, is_new] =
        seen.try_emplace(description_.tensors[i].name, description_.shard_of[i]);
    if (is_new) continue;
    const auto file = [&](int32_t shard) {
      return display_name(description_.shards[static_cast<size_t>(shard)].file_name);
    };
    return add_fault(with_reason(
        data_loss(fmt::format("tensor {}: in {} and in {}; expected in one shard. Fix: files of "
                              "different checkpoints are mixed; fetch the model again.",
                              display_name(description_.tensors[i].name),
                              file(it->second),
                              file(description_.shard_of[i]))),
        "Q-F3"));
  }
}

// Faults of single shards explain missing tensors, so only sound checkpoints are compared.
void ModelDescriptionBuilder::compare_with_index() {
  const Result<ShardIndex> index = parse_shard_index(*index_text_, kIndexFileName);
  if (!index.ok()) return add_fault(with_reason(index.error(), "Q-F3"));
  std::set<std::string_view> present;
  for (const ShardDescription& shard : description_.shards) present.insert(shard.file_name);
  bool is_complete = description_.faults.empty();
  for (const std::string& shard : index->shards) {
    if (present.contains(shard)) continue;
    is_complete = false;
    add_fault(with_reason(
        data_loss(fmt::format("{}: named by {} but missing. Fix: fetch the missing file.",
                              display_name(shard),
                              kIndexFileName)),
        "Q-F3"));
  }
  if (!is_complete) return;
  std::unordered_map<std::string_view, int32_t> indexed;
  for (const auto& [name, shard] : index->tensors) indexed[name] = shard;
  for (size_t i = 0; i < description_.tensors.size(); ++i) {
    const std::string& name = description_.tensors[i].name;
    const std::string& file =
        description_.shards[static_cast<size_t>(description_.shard_of[i])].file_name;
    const auto it = indexed.find(name);
    const bool is_right =
        it != indexed.end() && index->shards[static_cast<size_t>(it->second)] == file;
    if (is_right) continue;
    return add_fault(with_reason(
        data_loss(fmt::format("{}: holds tensor {}, which {} {}. Fix: index and shards are of "
                              "different checkpoints; fetch the model again.",
                              display_name(file),
                              display_name(name),
                              kIndexFileName,
                              it == indexed.end() ? "does not name" : "places elsewhere")),
        "Q-F3"));
  }
  if (indexed.size() != description_.tensors.size()) {
    return add_fault(with_reason(
        data_loss(fmt::format("{}: names {} tensors, the shards hold {}. Fix: index and shards are "
                              "of different checkpoints; fetch the model again.",
                              kIndexFileName,
                              indexed.size(),
                              description_.tensors.size())),
        "Q-F3"));
  }
  if (index->total_size && *index->total_size != description_.data_bytes) {
    description_.warnings.push_back(
        fmt::format("{}: metadata.total_size is {}, the shards hold {} bytes of tensors.",
                    kIndexFileName,
                    *index->total_size,
                    description_.data_bytes));
  }
}

ModelDescription ModelDescriptionBuilder::finish() {
  find_duplicates();
  if (index_text_) {
    compare_with_index();
  } else if (description_.shards.empty()) {
    add_fault(with_reason(
        not_found(fmt::format("{}: neither {} nor {} exists. Fix: pass a safetensors checkpoint.",
                              display_name(description_.name),
                              kIndexFileName,
                              kSingleFileName)),
        "Q-F3"));
  }
  return std::move(description_);
}

Result<std::vector<std::byte>> LocalModel::read(size_t tensor, int64_t begin, int64_t count) const {
  const TensorMeta& meta = description.tensors[tensor];
  const int64_t size = meta.shape.num_elements() * dtype_size(meta.dtype);
  if (begin < 0 || count < 0 || begin + count > size) {
    return data_loss(fmt::format("{}: bytes {} to {} of a tensor of {}",
                                 display_name(meta.name),
                                 begin,
                                 begin + count,
                                 size));
  }
  const std::span<const std::byte> file =
      files[static_cast<size_t>(description.shard_of[tensor])].bytes();
  const auto first = static_cast<size_t>(description.data_begin[tensor] + begin);
  const auto part = file.subspan(first, static_cast<size_t>(count));
  return std::vector<std::byte>(part.begin(), part.end());
}

namespace {

// The GGUF files of a directory, by name.
std::vector<Path> gguf_files(const Path& dir) {
  std::vector<Path> files;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(dir, ignored)) {
    if (entry.path().extension() == ".gguf") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

Result<void> add_gguf_file(const Path& path, ModelDescriptionBuilder& builder, LocalModel& model) {
  TRY_ASSIGN(MappedFile file, MappedFile::open(path));
  builder.add_gguf(path.filename().string(), file.bytes());
  model.files.push_back(std::move(file));
  return {};
}

}  // namespace

Result<LocalModel> describe_gguf_file(const Path& file) {
  LocalModel model;
  ModelDescriptionBuilder builder(file.string());
  TRY(add_gguf_file(file, builder, model));
  model.description = builder.finish();
  return model;
}

Result<LocalModel> describe_directory(const Path& dir) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(dir, ignored)) {
    return not_found(fmt::format("{}: no such directory", display_name(dir.string())));
  }
  LocalModel model;
  ModelDescriptionBuilder builder(dir.string());
  std::vector<std::string> shards;
  bool has_index = false;
  std::vector<std::string> names(kConfigFiles.begin(), kConfigFiles.end());
  names.emplace_back(kIndexFileName);
  for (const std::string& name : names) {
    if (!std::filesystem::exists(dir / name, ignored)) continue;
    Result<std::string> text = read_file(dir / name, kMaxConfigBytes);
    if (!text.ok()) {
      builder.add_fault(with_reason(text.error(), "Q-F2"));
      continue;
    }
    if (name == kIndexFileName) {
      has_index = true;
      const Result<ShardIndex> index = parse_shard_index(*text, kIndexFileName);
      if (index.ok()) shards = index->shards;
    }
    builder.add_config(name, std::move(text).value());
  }
  if (!has_index && std::filesystem::exists(dir / kSingleFileName, ignored)) {
    shards.emplace_back(kSingleFileName);
  }
  if (!has_index && shards.empty()) {
    for (const Path& file : gguf_files(dir)) TRY(add_gguf_file(file, builder, model));
  }
  for (const std::string& shard : shards) {
    Result<MappedFile> file = MappedFile::open(dir / shard);
    if (!file.ok()) continue;  // finish() reports what the index names and nothing holds
    const std::span<const std::byte> bytes = file->bytes();
    builder.add_shard(shard, static_cast<int64_t>(bytes.size()), bytes);
    file->expect_scattered_reads();  // of single scales
    model.files.push_back(std::move(file).value());
  }
  model.description = builder.finish();
  return model;
}

}  // namespace nibble::checkpoint
