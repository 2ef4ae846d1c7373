// Which stored tensors form which weight. Every tensor is asked for once, with the shape that the
// config demands; what nobody asked for is reported. Used while loading, on the loading thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "device/buffer.h"
#include "kernels/packed_weight.h"
#include "models/deepseek_v4/module_tensors.h"
#include "tensor/tensor_view.h"

namespace nibble::models::deepseek_v4 {

class WeightMap final {
 public:
  // Indexes the tensors under their original names (tensor_names.h). kDataLoss when two stored
  // tensors mean the same. `checkpoint` must outlive the map.
  static Result<WeightMap> build(const checkpoint::Checkpoint& checkpoint);

  bool contains(std::string_view name) const { return entries_.contains(std::string(name)); }

  // The weight of `module` with its scales under any convention of module_tensors.h, of logical
  // shape [n, k]; the format follows from the dtypes. Names are original ones. kNotFound or
  // kDataLoss name the tensor, its file, what was found and expected.
  Result<kernels::WeightRows> matrix(const std::string& module, int64_t n, int64_t k);

  // A tensor of `shape` decoded to f32, stored as F32, BF16 or F16. kDataLoss when an element is
  // NaN.
  Result<device::Buffer> f32(const std::string& name, const Shape& shape);

  // A matrix of `shape` as it is stored: F32, BF16 or F16. Valid as long as the checkpoint.
  Result<TensorView> table(const std::string& name, const Shape& shape);
  // A copy of one.
  struct Table {
    device::Buffer storage;
    TensorView view;
  };
  static Result<Table> copy(const TensorView& stored);

  // An integer matrix of `shape`, stored as I64 or I32, with every element in [0, limit).
  Result<std::vector<int32_t>> integers(const std::string& name, const Shape& shape, int64_t limit);

  // Marks every tensor whose name starts with `prefix` as known and unused.
  void ignore(std::string_view prefix);

  // Stored names of the tensors that were neither used nor ignored, sorted.
  std::vector<std::string> unclaimed() const;

  int64_t claimed_bytes() const { return claimed_bytes_; }

 private:
  struct Entry {
    std::string stored_name;
    TensorView view;  // of fused experts: one expert's matrix
    int32_t half =
        -1;  // 0 or 1: only the first or second half of the logical rows belongs to this name
    int64_t num_bytes = 0;  // this name's share
    bool is_claimed = false;
  };

  explicit WeightMap(const checkpoint::Checkpoint& checkpoint) : checkpoint_(&checkpoint) {}
  Result<void> add(std::string name, const Entry& entry);
  Result<void> add_fused(const TensorMeta& meta, const TensorView& view);
  const Entry* claim(const std::string& name);
  const Entry* claim_part(const std::string& module, ModulePart part);
  // The multiplier of the module's global scale; nullopt where it has none.
  Result<std::optional<float>> global_scale(const std::string& module);
  Result<const Entry*> require(const std::string& name, std::string_view expected);
  std::string locate(const Entry& entry) const;
  Result<const Entry*> require_shape(const std::string& name, const Shape& shape);

  const checkpoint::Checkpoint* checkpoint_;
  std::unordered_map<std::string, Entry> entries_;
  int64_t claimed_bytes_ = 0;
};

}  // namespace nibble::models::deepseek_v4
