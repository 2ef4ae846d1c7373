#include "models/deepseek_v4/numerics.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string_view>

namespace nibble::models::deepseek_v4 {
namespace {

Error does_not_fit(std::string_view name,
                   int64_t value,
                   std::string_view needs,
                   std::string_view what) {
  return unsupported(fmt::format(
      "faithful precision: {} {} is no {}, which the {} needs. Use default or reference.",
      name,
      value,
      needs,
      what));
}

DType stored_dtype(Precision precision, KvDtype kv_dtype) {
  if (kv_dtype == KvDtype::kFp8) return DType::kF8E4m3;
  const bool is_plain = kv_dtype == KvDtype::kAuto && precision == Precision::kReference;
  return is_plain ? DType::kF32 : DType::kBf16;
}

}  // namespace

Numerics numerics_of(Precision precision, KvDtype kv_dtype) {
  const auto coarse =
      precision == Precision::kReference ? kernels::Activation::kF32 : kernels::Activation::kBf16;
  return {.precision = precision,
          .activation = coarse,
          .head_activation = precision == Precision::kDefault ? coarse : kernels::Activation::kF32,
          .kv_dtype = stored_dtype(precision, kv_dtype),
          .is_simulated = precision == Precision::kFaithful};
}

Result<Numerics> gpu_numerics_of(Precision precision, KvDtype kv_dtype) {
  if (precision == Precision::kFaithful) {
    return unsupported(
        "faithful precision runs on the CPU only. Fix: --precision default, or --device cpu.");
  }
  Numerics numerics = numerics_of(Precision::kDefault, kv_dtype);
  numerics.precision = precision;
  if (precision == Precision::kDefault) numerics.activation = kernels::Activation::kFp8;
  return numerics;
}

kernels::Activation gpu_activation(quant::Format format, kernels::Activation activation) {
  const bool takes_fp8 =
      format == quant::Format::kMxfp4 || format == quant::Format::kFp8E4m3Block128x128;
  return takes_fp8 ? activation : std::min(activation, kernels::Activation::kBf16);
}

Result<void> check_simulated_sizes(const Config& config) {
  if (config.qk_nope_head_dim() % 64 != 0) {
    return does_not_fit("head_dim - qk_rope_head_dim",
                        config.qk_nope_head_dim(),
                        "multiple of 64",
                        "FP8 simulation of KV vectors");
  }
  const auto index_head_dim = static_cast<uint32_t>(config.index_head_dim);
  if (!std::has_single_bit(index_head_dim) || index_head_dim % 32 != 0) {
    return does_not_fit("index_head_dim",
                        config.index_head_dim,
                        "power of two from 32 on",
                        "Hadamard transform and FP4 simulation of the indexer");
  }
  return {};
}

}  // namespace nibble::models::deepseek_v4
