// The tensors that one quantised module is stored as, by the last part of their names. Three
// conventions exist: DeepSeek (weight, scale), ModelOpt (weight, weight_scale, weight_scale_2) and
// compressed-tensors (weight_packed, weight_scale, weight_global_scale, weight_shape).
// Source: spec "quantization" 1.4 to 1.8.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/result.h"
#include "tensor/tensor_view.h"

namespace nibble::models::deepseek_v4 {

enum class ModulePart : uint8_t {
  kWeight,
  kScale,             // one per block of the weight
  kGlobalMultiplier,  // F32, one element: w = code * scale * it
  kGlobalDivisor,     // F32, one element: w = code * scale / it
  kShape,             // I64 [2]: the logical (n, k) of a packed weight
  kInputScale,        // calibration of 4-bit activations
};

struct ModulePartSuffix {
  std::string_view suffix;
  ModulePart part;
};

inline constexpr ModulePartSuffix kModulePartSuffixes[] = {
    {".weight", ModulePart::kWeight},
    {".weight_packed", ModulePart::kWeight},
    {".scale", ModulePart::kScale},
    {".weight_scale", ModulePart::kScale},
    {".weight_scale_2", ModulePart::kGlobalMultiplier},
    {".weight_global_scale", ModulePart::kGlobalDivisor},
    {".weight_shape", ModulePart::kShape},
    {".input_scale", ModulePart::kInputScale},
    {".input_global_scale", ModulePart::kInputScale},
};

struct ModuleTensorName {
  std::string_view module;  // "layers.3.ffn.experts.7.w1"
  ModulePart part = ModulePart::kWeight;
};
// Splits an original name (tensor_names.h); nullopt for names without such a suffix.
std::optional<ModuleTensorName> split_module_tensor_name(std::string_view name);

// The multiplier that a kGlobalMultiplier or kGlobalDivisor tensor means. kDataLoss unless it is
// one finite F32 above 0; `name` is for the message.
Result<float> read_global_scale(ModulePart part, const TensorView& tensor, std::string_view name);

// kDataLoss unless a kShape tensor says [n, k].
Result<void> check_stored_shape(const TensorView& tensor,
                                std::string_view name,
                                int64_t n,
                                int64_t k);

}  // namespace nibble::models::deepseek_v4
