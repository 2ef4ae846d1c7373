#include "models/deepseek_v4/key_rows.h"

#include <fmt/format.h>

#include <cstring>

#include "quant/fp8_key.h"
#include "quant/numeric.h"

namespace nibble::models::deepseek_v4 {
namespace {

quant::Fp8KeyLayout fp8_layout(const KeyRowForm& form) {
  return {.num_codes = form.width - form.num_rotary, .num_rotary = form.num_rotary};
}

}  // namespace

int64_t KeyRowForm::row_bytes() const {
  if (dtype != DType::kF8E4m3) return width * dtype_size(dtype);
  return num_rotary == 0 ? quant::fp8_index_key_bytes(width) : fp8_layout(*this).row_bytes();
}

void KeyRowForm::store(std::span<const float> key, std::byte* row) const {
  if (dtype == DType::kF32) {
    std::memcpy(row, key.data(), key.size_bytes());
  } else if (dtype == DType::kBf16) {
    auto* bits = reinterpret_cast<uint16_t*>(row);
    for (size_t i = 0; i < key.size(); ++i) bits[i] = quant::f32_to_bf16(key[i]);
  } else if (num_rotary == 0) {
    quant::encode_fp8_index_key(key, row);
  } else {
    quant::encode_fp8_key(key, fp8_layout(*this), row);
  }
}

KeyRowForm key_vector_form(const Config& config, const Numerics& numerics) {
  return {
      .dtype = numerics.kv_dtype, .width = config.head_dim, .num_rotary = config.qk_rope_head_dim};
}

KeyRowForm index_key_form(const Config& config, const Numerics& numerics) {
  return {.dtype = numerics.kv_dtype, .width = config.index_head_dim};
}

Result<void> check_fp8_key_sizes(const Config& config) {
  if (config.qk_nope_head_dim() % quant::kFp8KeyBlock != 0) {
    return unsupported(
        fmt::format("FP8 KV: head_dim - qk_rope_head_dim {} is no multiple of {}, which a scale "
                    "covers. Fix: --kv-cache-dtype bf16.",
                    config.qk_nope_head_dim(),
                    quant::kFp8KeyBlock));
  }
  if (config.index_head_dim % 4 != 0) {
    return unsupported(
        fmt::format("FP8 KV: index_head_dim {} is no multiple of 4, as the scale behind its codes "
                    "needs. Fix: --kv-cache-dtype bf16.",
                    config.index_head_dim));
  }
  return {};
}

}  // namespace nibble::models::deepseek_v4
