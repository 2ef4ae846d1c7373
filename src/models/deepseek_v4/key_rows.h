// How keys are stored in window rings and entry pools (spec 6.1): as f32 or bf16 elements, or in
// the FP8 forms of quant/fp8_key.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "models/deepseek_v4/config.h"
#include "models/deepseek_v4/numerics.h"
#include "tensor/dtype.h"

namespace nibble::models::deepseek_v4 {

// Rows of one width. Which FP8 form they have follows from whether dimensions are rotary: a key of
// the indexer is codes throughout, rotated dimensions included.
struct KeyRowForm {
  DType dtype = DType::kF32;  // kF8E4m3: FP8
  int64_t width = 0;
  int64_t num_rotary = 0;  // at the end of a key vector; 0: a key of the indexer

  int64_t row_bytes() const;
  // row: [row_bytes()]
  void store(std::span<const float> key, std::byte* row) const;
};

// Window and compressed key vectors, [head_dim].
KeyRowForm key_vector_form(const Config& config, const Numerics& numerics);
// [index_head_dim]
KeyRowForm index_key_form(const Config& config, const Numerics& numerics);

// kUnsupported when the FP8 forms do not fit the model's sizes; names the size.
Result<void> check_fp8_key_sizes(const Config& config);

}  // namespace nibble::models::deepseek_v4
