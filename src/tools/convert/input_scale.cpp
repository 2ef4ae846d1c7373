#include "tools/convert/input_scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/utf8.h"
#include "quant/numeric.h"

namespace nibble::tools {
namespace {

constexpr float kLargestGroup = 2688;  // 6 * 448: E2M1's largest value times E4M3's

float element(const TensorView& vector, int64_t i) {
  switch (vector.dtype) {
    case DType::kBf16:
      return quant::bf16_to_f32(vector.as<const uint16_t>()[i]);
    case DType::kF16:
      return quant::f16_to_f32(vector.as<const uint16_t>()[i]);
    default:
      return vector.as<const float>()[i];
  }
}

}  // namespace

float gate_input_scale(const models::deepseek_v4::Config& config, float gamma_amax) {
  return std::sqrt(static_cast<float>(config.hidden_size)) * gamma_amax / kLargestGroup;
}

std::optional<float> down_input_scale(const models::deepseek_v4::Config& config) {
  if (config.swiglu_limit <= 0) return std::nullopt;
  const double weight = std::max(1.0, config.routed_scaling_factor);
  return static_cast<float>(config.swiglu_limit * config.swiglu_limit * weight) / kLargestGroup;
}

Result<float> vector_amax(const TensorView& vector, const std::string& name) {
  const bool is_known =
      vector.dtype == DType::kBf16 || vector.dtype == DType::kF16 || vector.dtype == DType::kF32;
  if (!is_known) {
    return unsupported(fmt::format("tensor {}: {}, expected BF16, F16 or F32",
                                   escape_for_display(name),
                                   dtype_name(vector.dtype)));
  }
  float amax = 0;
  for (int64_t i = 0; i < vector.shape.num_elements(); ++i) {
    const float value = element(vector, i);
    if (!std::isfinite(value)) {
      return data_loss(
          fmt::format("tensor {}: element {} is {}, expected a finite number. The file is damaged.",
                      escape_for_display(name),
                      i,
                      value));
    }
    amax = std::max(amax, std::fabs(value));
  }
  return amax;
}

std::string input_norm_of_expert(const std::string& module) {
  const size_t end = module.find(".ffn.experts.");
  CHECK(end != std::string::npos) << module;
  return module.substr(0, end) + ".ffn_norm.weight";
}

void append_input_scales(std::span<const std::string> modules, std::vector<TensorMeta>& tensors) {
  for (const std::string& module : modules) {
    tensors.push_back({module + ".input_scale", DType::kF32, Shape{}});
  }
}

Result<void> write_input_scales(float scale, size_t first, size_t count, const WriteBytes& write) {
  for (size_t i = first; i < first + count; ++i) {
    TRY(write(i, 0, std::as_bytes(std::span(&scale, 1))));
  }
  return {};
}

}  // namespace nibble::tools
