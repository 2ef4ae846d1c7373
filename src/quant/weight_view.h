// A stored weight matrix as its tensors, and the deduction of its format from dtypes and shapes
// alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/result.h"
#include "quant/format.h"
#include "tensor/tensor_view.h"

namespace nibble::quant {

// What a checkpoint holds of one weight. Names are for messages.
struct WeightTensors {
  std::string_view name;
  TensorView weight = {};
  std::string_view scale_name;
  std::optional<TensorView> scale = {};
  std::optional<float> global_scale = {};  // NVFP4: the F32 multiplier of the whole tensor
};

// Deduces the format and checks every shape:
//   F32 | BF16 | F16 [n, k]                    without scale                                    ->
//   the same F8_E4M3 [n, k]                             F8_E8M0 | F32 [ceil(n / 128), ceil(k /
//   128)]     -> fp8_block128x128 I8 | U8 [n, k / 2]                         F8_E8M0 [n, k / 32] ->
//   mxfp4 I8 | U8 [n, k / 2]                         F8_E4M3 [n, k / 16] and a global scale ->
//   nvfp4 I32 [n, k / 8]                             BF16 | F16 | F32 [n, k / 32] -> int4_g32
// kUnsupported for dtypes that make no format; kDataLoss for missing scales and shapes that
// contradict each other.
Result<WeightView> make_weight_view(const WeightTensors& tensors);

// Elements that are NaN, for floating-point dtypes (E8M0 0xFF, E4M3 0x7F and 0xFF, ...); 0 for
// integer dtypes. In a scale or code tensor any such element means damaged or mislabelled data.
int64_t count_nan(const TensorView& tensor);

}  // namespace nibble::quant
