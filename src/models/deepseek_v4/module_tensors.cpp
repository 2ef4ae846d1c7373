#include "models/deepseek_v4/module_tensors.h"

#include <fmt/format.h>

#include <cmath>

#include "base/utf8.h"

namespace nibble::models::deepseek_v4 {

std::optional<ModuleTensorName> split_module_tensor_name(std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  for (const ModulePartSuffix& entry : kModulePartSuffixes) {
    if (name.substr(dot) == entry.suffix) return {{name.substr(0, dot), entry.part}};
  }
  return std::nullopt;
}

Result<float> read_global_scale(ModulePart part, const TensorView& tensor, std::string_view name) {
  if (tensor.dtype != DType::kF32 || tensor.shape.num_elements() != 1) {
    return data_loss(fmt::format("tensor {}: {} {}, expected one F32",
                                 escape_for_display(name),
                                 dtype_name(tensor.dtype),
                                 tensor.shape.to_string()));
  }
  const float value = *tensor.as<const float>();
  const float scale = part == ModulePart::kGlobalDivisor ? 1.0f / value : value;
  if (std::isfinite(scale) && scale > 0) return scale;
  return data_loss(
      fmt::format("tensor {}: {}, expected a finite global scale above 0. The file is damaged.",
                  escape_for_display(name),
                  value));
}

Result<void> check_stored_shape(const TensorView& tensor,
                                std::string_view name,
                                int64_t n,
                                int64_t k) {
  if (tensor.dtype == DType::kI64 && tensor.shape == Shape{2}) {
    const auto* dims = tensor.as<const int64_t>();
    if (dims[0] == n && dims[1] == k) return {};
    return data_loss(fmt::format("tensor {}: [{}, {}], expected [{}, {}] as its weight is packed",
                                 escape_for_display(name),
                                 dims[0],
                                 dims[1],
                                 n,
                                 k));
  }
  return data_loss(fmt::format("tensor {}: {} {}, expected I64 [2]",
                               escape_for_display(name),
                               dtype_name(tensor.dtype),
                               tensor.shape.to_string()));
}

}  // namespace nibble::models::deepseek_v4
