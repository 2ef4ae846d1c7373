// Reference encode and decode of whole weights: scalar, obviously right, the oracle of every
// kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "quant/format.h"
#include "quant/weight_view.h"

namespace nibble::quant {

// Decodes the first out.size() codes of a row as stored, before scaling.
void decode_codes(Format format, const void* row, std::span<float> out);
// Value of element `i` of a run of scales.
float scale_value(DType dtype, const void* scales, int64_t i);

// Decodes row `row` of `weight` to F32.   out: [k]
// Power-of-two scales decode exactly; otherwise the product rounds once, after scale * global_scale
// rounds once.
void dequantize_row(const WeightView& weight, int64_t row, std::span<float> out);

// Decodes the whole weight.   out: [n, k] row-major
void dequantize(const WeightView& weight, std::span<float> out);

// A weight that owns its bytes.
struct QuantizedWeight {
  Format format = Format::kF32;
  int64_t n = 0;
  int64_t k = 0;
  DType scale_dtype = DType::kF32;
  std::vector<std::byte> codes;
  std::vector<std::byte> scales;  // empty for formats without scales
  float global_scale = 1.0f;

  // Valid while this object lives and is not changed.
  WeightView view() const;
};

// The three rules in circulation for the exponent of an MX scale (OCP MX, ModelOpt,
// compressed-tensors).
enum class MxScaleRule : uint8_t { kFloor, kCeil, kEven };

// E8M0 code of a group of E2M1 values with largest magnitude `amax`; an all-zero group gives
// kE8m0One.
uint8_t mxfp4_scale_code(float amax, MxScaleRule rule);

// The global scale of an NVFP4 tensor with largest magnitude `amax`: amax / 2688, 1 for zeros.
float nvfp4_global_scale(float amax);

// Encodes w [n, k] row-major. `scale_dtype` must be one of the format's; k a multiple of
// k_multiple(format). Scales: FP8 amax / 448 per block, rounded up to a power of two for E8M0;
// MXFP4 by MxScaleRule::kCeil; NVFP4 as ModelOpt (global amax / 2688, group scale rounded before
// use); INT4 amax / 7.5 per group. FP4 codes have the sign of w < 0, so -0.0 gives code 0 and a
// negative that rounds to zero gives code 8; FP8 keeps -0. `global_scale` replaces NVFP4's own,
// for parts of a matrix and for matrices that share one.
QuantizedWeight quantize(Format format,
                         std::span<const float> w,
                         int64_t n,
                         int64_t k,
                         DType scale_dtype,
                         std::optional<float> global_scale = std::nullopt);
// With the usual scale dtype of the format.
QuantizedWeight quantize(Format format, std::span<const float> w, int64_t n, int64_t k);

}  // namespace nibble::quant
