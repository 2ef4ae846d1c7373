// Writing key rows into host pools of f32 or bf16.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

#include "quant/numeric.h"
#include "tensor/dtype.h"

namespace nibble::models::deepseek_v4 {

inline void store_kv_row(std::span<const float> row, DType dtype, std::byte* out) {
  if (dtype == DType::kF32) {
    std::memcpy(out, row.data(), row.size_bytes());
    return;
  }
  auto* bits = reinterpret_cast<uint16_t*>(out);
  for (size_t i = 0; i < row.size(); ++i) bits[i] = quant::f32_to_bf16(row[i]);
}

}  // namespace nibble::models::deepseek_v4
