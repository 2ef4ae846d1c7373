#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "checkpoint/output_file.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shard_layout.h"

namespace nibble::checkpoint {

Result<void> write_safetensors(const Path& path,
                               std::span<const NamedTensor> tensors,
                               std::span<const std::pair<std::string, std::string>> metadata) {
  std::vector<TensorMeta> metas;
  for (const NamedTensor& tensor : tensors) {
    CHECK(tensor.view.is_contiguous() && tensor.view.memory == MemoryKind::kHost) << tensor.name;
    metas.push_back({.name = tensor.name, .dtype = tensor.view.dtype, .shape = tensor.view.shape});
  }
  TRY_ASSIGN(const ShardLayout layout, lay_out_shard(path.string(), metas, metadata));
  TRY_ASSIGN(OutputFile file, OutputFile::create(path, fmt::format(".{}.tmp", ::getpid())));
  TRY(file.write_at(0, std::as_bytes(std::span(layout.prefix))));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const StoredTensor& place = layout.tensors[i];
    TRY(file.write_at(place.begin,
                      {static_cast<const std::byte*>(tensors[i].view.data),
                       static_cast<size_t>(place.end - place.begin)}));
  }
  TRY(file.sync());
  return file.publish();
}

}  // namespace nibble::checkpoint
