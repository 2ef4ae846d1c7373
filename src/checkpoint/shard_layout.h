// Where each tensor of a safetensors file will be, computed before a byte is written. With the
// sizes known, the header goes first and tensors may follow in any order, from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "checkpoint/safetensors.h"
#include "tensor/tensor_view.h"

namespace nibble::checkpoint {

struct ShardLayout {
  std::string file_name;
  std::string prefix;                 // the length field and the header
  std::vector<StoredTensor> tensors;  // as given to lay_out_shard()
  int64_t file_bytes = 0;
};

// Lays out one file: wide dtypes first, so that each tensor is aligned to its element, then by
// name, so that equal content gives equal bytes. kInvalidArgument for duplicate or reserved names.
Result<ShardLayout> lay_out_shard(
    std::string file_name,
    std::span<const TensorMeta> tensors,
    std::span<const std::pair<std::string, std::string>> metadata = {});

// "model-00002-of-00046.safetensors", or "model.safetensors" for a single shard.
std::string shard_file_name(int32_t index, int32_t num_shards);

// The text of model.safetensors.index.json.
std::string shard_index_text(std::span<const ShardLayout> shards);

}  // namespace nibble::checkpoint
