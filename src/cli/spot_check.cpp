#include "cli/spot_check.h"

#include <fmt/format.h>

#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/utf8.h"
#include "hub/blob_record.h"
#include "hub/repo_cache.h"

namespace nibble::cli {
namespace {

constexpr int32_t kTensorsPerFile = 2;
constexpr int64_t kMaxTensorBytes = 16 << 20;  // about an expert's matrix of the largest models

Error damaged(const Path& file, const std::string& tensor, const std::string& what) {
  return data_loss(
      fmt::format("{}: tensor {}: {}. The file has changed since it was downloaded and verified; "
                  "repair it with "
                  "`nibble pull REPO --verify`.",
                  file.string(),
                  escape_for_display(tensor),
                  what));
}

// The recorded tensors that are small enough to be read now. kDataLoss when one is not there.
Result<std::vector<const hub::TensorHash*>> candidates(const checkpoint::Checkpoint& checkpoint,
                                                       const Path& file,
                                                       const hub::BlobRecord& record) {
  std::vector<const hub::TensorHash*> tensors;
  for (const hub::TensorHash& tensor : record.tensors) {
    const std::optional<TensorView> view = checkpoint.find(tensor.name);
    if (!view) return damaged(file, tensor.name, "is missing");
    if (view->num_bytes() <= kMaxTensorBytes) tensors.push_back(&tensor);
  }
  return tensors;
}

Result<void> check_tensor(const checkpoint::Checkpoint& checkpoint,
                          const Path& file,
                          const hub::TensorHash& tensor) {
  TRY_ASSIGN(const TensorView view, checkpoint.tensor(tensor.name));
  const uint64_t found =
      hash_bytes({static_cast<const std::byte*>(view.data), static_cast<size_t>(view.num_bytes())});
  if (found == tensor.xxh3) return {};
  return damaged(
      file, tensor.name, fmt::format("XXH3 {:016x}, expected {:016x}", found, tensor.xxh3));
}

}  // namespace

Result<SpotCheck> spot_check(const checkpoint::Checkpoint& checkpoint, uint64_t seed) {
  SpotCheck done;
  std::mt19937_64 draw(seed);
  for (const std::string& shard : checkpoint.shard_names()) {
    const Path file = checkpoint.dir() / shard;
    const std::optional<Path> path = hub::record_of_snapshot_file(file);
    if (!path) continue;
    const Result<hub::BlobRecord> record = hub::read_record(*path);
    if (!record.ok()) continue;  // another tool's download, or one for `pull --verify` to judge
    TRY_ASSIGN(std::vector<const hub::TensorHash*> tensors, candidates(checkpoint, file, *record));
    ++done.num_files;
    for (int32_t i = 0; i < kTensorsPerFile && !tensors.empty(); ++i) {
      const size_t drawn = draw() % tensors.size();
      TRY(check_tensor(checkpoint, file, *tensors[drawn]));
      tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(drawn));
      ++done.num_tensors;
    }
  }
  return done;
}

}  // namespace nibble::cli
