// Tensors grouped by the module they belong to, and what such a group physically is: deduced from
// names, dtypes and shapes in headers alone.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quant/diagnostic.h"
#include "quant/scheme.h"
#include "tensor/block_type.h"
#include "tensor/tensor_view.h"

namespace nibble::quant {

// What a tensor is within its module, by the end of its name.
enum class Part : uint8_t {
  kWeight,
  kWeightPacked,
  kQweight,
  kBlocks,
  kScale,
  kScales,
  kWeightScale,
  kWeightScaleInv,
  kWeightScale2,
  kWeightGlobalScale,
  kInputScale,
  kInputGlobalScale,
  kWeightShape,
  kZeroPoint,
  kQzeros,
  kGroupIndex,
  kPreQuantScale,
  kKvScale,
  kBias,
  kQuantState,  // bitsandbytes: everything beside the weight
  kOther,       // a parameter under its full name
};
inline constexpr size_t kNumParts = 21;

// A module: the stored name without suffix and the index of the tensor for each part.
struct StoredModule {
  std::string_view name;
  std::array<int32_t, kNumParts> tensors;  // -1: absent
  int64_t num_bytes = 0;                   // of all its tensors
  int32_t num_tensors = 0;

  int32_t tensor(Part part) const { return tensors[static_cast<size_t>(part)]; }
  bool has(Part part) const { return tensor(part) >= 0; }
};

// Groups all tensors; each belongs to exactly one module. Names view into `tensors`. Scales without
// a weight stay with their module, so that classify() reports them; other parameters become modules
// of their own.
std::vector<StoredModule> group_tensors(std::span<const TensorMeta> tensors);

// What the config knows that shapes alone leave open.
struct ShapeHints {
  std::optional<BlockShape> fp8_block;  // weight_block_size
  int32_t bits = 0;                     // of integer codes; 0: not stated
  bool has_act_order = false;           // desc_act: g_idx is no mere i / group_size
};

// The deduction for one module.
struct Physical {
  Scheme scheme = {};
  int64_t num_matrices = 1;  // experts fused into one tensor
  int64_t n = 0;             // logical [n, k] of one matrix; vectors have n 1
  int64_t k = 0;
  int32_t scale = -1;         // index of the group or block scales
  int32_t global_scale = -1;  // index of the F32 multiplier or divisor
  std::string evidence;       // "I8 + F8_E8M0/32"
  std::vector<Diagnostic> diagnostics;
};

// Errors are S1, S2, S6, P1 and C1b diagnostics inside the result, whose scheme is then kUnknown or
// the best guess.
Physical classify(const StoredModule& module,
                  std::span<const TensorMeta> tensors,
                  const ShapeHints& hints);

// The same for GGUF, where each tensor says what it is. `block_types` are those of `tensors`.
Physical classify_blocks(const StoredModule& module,
                         std::span<const TensorMeta> tensors,
                         std::span<const BlockType* const> block_types);

}  // namespace nibble::quant
