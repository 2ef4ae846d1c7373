// The tensors that a weight of each format is stored as, in the order in which this program writes
// them. Source: spec "quantization" 1.4 to 1.8.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quant/format.h"
#include "tensor/tensor_view.h"

namespace nibble::tools {

// Positions in stored_tensors().
inline constexpr size_t kCodesIndex = 0;
inline constexpr size_t kScalesIndex = 1;
inline constexpr size_t kGlobalScaleIndex = 2;  // NVFP4
inline constexpr size_t kShapeIndex = 2;        // INT4

// The tensors of `module`, a weight of logical shape [n, k]:
//   f32, bf16, f16             M.weight
//   fp8_block128x128, mxfp4    M.weight, M.scale
//   nvfp4                      M.weight, M.weight_scale, M.weight_scale_2       (ModelOpt)
//   int4_g32                   M.weight_packed, M.weight_scale, M.weight_shape (compressed-tensors)
std::vector<TensorMeta> stored_tensors(const std::string& module,
                                       quant::Format format,
                                       int64_t n,
                                       int64_t k);

}  // namespace nibble::tools
