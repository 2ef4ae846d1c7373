// Exact casts between MXFP4 and NVFP4: codes are kept to the bit, scales are re-expressed. Source:
// spec "quantization" 1.5, "Lossless MXFP4 -> NVFP4 cast".
//
// MXFP4 -> NVFP4: with k_j = (scale byte j) - 127 and m = max k - 8, the global scale is 2^m and
// each group's scale 2^(k_j - m), once for either half of the group. E4M3 holds powers of two from
// 2^-9 to 2^8, so this is exact while max k - k_j <= 17. A group of zeros has no value to lose: its
// scale is clamped where it must be.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "quant/format.h"

namespace nibble::tools {

// Whether and how MXFP4 weights that share one global scale can be cast.
struct Nvfp4Cast {
  int32_t global_exponent = 0;     // m: the global scale is 2^m
  int64_t num_clamped_groups = 0;  // groups of zeros whose scale changes; their values do not
  std::string fault;               // why the cast is not exact; empty when it is
};
Nvfp4Cast plan_nvfp4_cast(std::span<const quant::WeightView> weights);

// m for weights whose largest E8M0 scale is `largest`.
int32_t nvfp4_global_exponent(uint8_t largest);

// The E4M3 scales of `weight` [n, k] under global scale 2^global_exponent.   out: [n, k / 16]
void cast_scales_to_nvfp4(const quant::WeightView& weight,
                          int32_t global_exponent,
                          std::span<uint8_t> out);

// Casts the scales of an NVFP4 weight [n, k] to E8M0.   out: [n, k / 32]
// Exact when the global scale and every group scale are powers of two and either half of a group
// has the same one. Otherwise kUnsupported says where not, and `out` is unfinished. Returns the
// number of halves of zeros that took the other half's scale.
Result<int64_t> cast_scales_to_mxfp4(const quant::WeightView& weight, std::span<uint8_t> out);

}  // namespace nibble::tools
