// The weight formats that Nibble stores and computes with, and what each one looks like in memory.
// One constexpr row per format is the only statement of its block shape, bits and permitted dtypes.
// Source of the layouts: OCP Microscaling 1.0 (E2M1, E8M0), ModelOpt (NVFP4), compressed-tensors
// (INT4), DeepSeek-V3/V4 checkpoints (FP8 128x128, MXFP4).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/check.h"
#include "base/checked_math.h"
#include "tensor/dtype.h"
#include "tensor/shape.h"
#include "tensor/tensor_view.h"

namespace nibble::quant {

enum class Format : uint8_t {
  kF32,
  kBf16,
  kF16,
  kFp8E4m3Block128x128,
  kMxfp4,
  kNvfp4,
  kInt4Group32,
  // Known to plans and kernel records; nothing encodes, decodes or packs these yet.
  kFp8E4m3Block32x32,
  kFp8E4m3Tensor,
  kFp8E4m3Channel,
  kMxfp8,
  kInt4Group128,
  kInt8Channel,
};

inline constexpr int32_t kNumFormats = 7;  // with a reference encoder and decoder
inline constexpr int32_t kNumPlannedFormats = 6;

// As a side of a block shape: all of that axis.
inline constexpr int32_t kWholeAxis = INT32_MAX;

// The weight elements that share one scale: `n` output rows by `k` input columns.
struct BlockShape {
  int32_t n = 1;
  int32_t k = 1;

  friend constexpr bool operator==(BlockShape, BlockShape) = default;
};

// A short constexpr list of dtypes.
struct DTypeSet {
  std::array<DType, 3> dtypes{};
  int32_t size = 0;

  constexpr bool contains(DType dtype) const {
    for (int32_t i = 0; i < size; ++i) {
      if (dtypes[static_cast<size_t>(i)] == dtype) return true;
    }
    return false;
  }
  constexpr std::span<const DType> span() const {
    return std::span(dtypes).first(static_cast<size_t>(size));
  }
};

struct FormatInfo {
  Format format = Format::kF32;
  std::string_view name;        // as in kernel names and plans
  BlockShape block_shape;       // {1, 1} for formats without scales
  int32_t bits_per_weight = 0;  // codes only; scales come on top
  DTypeSet code_dtypes;         // how the codes are labelled in a file; the first is the usual one
  int32_t elements_per_code = 1;  // weights packed along k in one element of code_dtypes
  DTypeSet scale_dtypes;          // empty for formats without scales; the first is the usual one
  bool has_global_scale = false;  // one further F32 multiplier per tensor

  constexpr bool has_scales() const { return scale_dtypes.size > 0; }
};

// clang-format off
inline constexpr std::array<FormatInfo, kNumFormats> kFormats = {{
    {.format = Format::kF32, .name = "f32", .block_shape = {1, 1}, .bits_per_weight = 32,
     .code_dtypes = {{DType::kF32}, 1}, .elements_per_code = 1,
     .scale_dtypes = {}, .has_global_scale = false},
    {.format = Format::kBf16, .name = "bf16", .block_shape = {1, 1}, .bits_per_weight = 16,
     .code_dtypes = {{DType::kBf16}, 1}, .elements_per_code = 1,
     .scale_dtypes = {}, .has_global_scale = false},
    {.format = Format::kF16, .name = "f16", .block_shape = {1, 1}, .bits_per_weight = 16,
     .code_dtypes = {{DType::kF16}, 1}, .elements_per_code = 1,
     .scale_dtypes = {}, .has_global_scale = false},
    {.format = Format::kFp8E4m3Block128x128, .name = "fp8_block128x128", .block_shape = {128, 128},
     .bits_per_weight = 8, .code_dtypes = {{DType::kF8E4m3}, 1}, .elements_per_code = 1,
     .scale_dtypes = {{DType::kF8E8m0, DType::kF32}, 2}, .has_global_scale = false},
    {.format = Format::kMxfp4, .name = "mxfp4", .block_shape = {1, 32}, .bits_per_weight = 4,
     .code_dtypes = {{DType::kI8, DType::kU8}, 2}, .elements_per_code = 2,
     .scale_dtypes = {{DType::kF8E8m0}, 1}, .has_global_scale = false},
    {.format = Format::kNvfp4, .name = "nvfp4", .block_shape = {1, 16}, .bits_per_weight = 4,
     .code_dtypes = {{DType::kU8, DType::kI8}, 2}, .elements_per_code = 2,
     .scale_dtypes = {{DType::kF8E4m3}, 1}, .has_global_scale = true},
    {.format = Format::kInt4Group32, .name = "int4_g32", .block_shape = {1, 32},
     .bits_per_weight = 4, .code_dtypes = {{DType::kI32}, 1}, .elements_per_code = 8,
     .scale_dtypes = {{DType::kBf16, DType::kF16, DType::kF32}, 3}, .has_global_scale = false},
}};

inline constexpr std::array<FormatInfo, kNumPlannedFormats> kPlannedFormats = {{
    {.format = Format::kFp8E4m3Block32x32, .name = "fp8_block32x32", .block_shape = {32, 32},
     .bits_per_weight = 8, .code_dtypes = {{DType::kF8E4m3}, 1}, .elements_per_code = 1,
     .scale_dtypes = {{DType::kF8E8m0, DType::kF32}, 2}, .has_global_scale = false},
    {.format = Format::kFp8E4m3Tensor, .name = "fp8_tensor",
     .block_shape = {kWholeAxis, kWholeAxis}, .bits_per_weight = 8,
     .code_dtypes = {{DType::kF8E4m3}, 1}, .elements_per_code = 1,
     .scale_dtypes = {{DType::kF32, DType::kBf16}, 2}, .has_global_scale = false},
    {.format = Format::kFp8E4m3Channel, .name = "fp8_channel", .block_shape = {1, kWholeAxis},
     .bits_per_weight = 8, .code_dtypes = {{DType::kF8E4m3}, 1}, .elements_per_code = 1,
     .scale_dtypes = {{DType::kF32, DType::kBf16}, 2}, .has_global_scale = false},
    {.format = Format::kMxfp8, .name = "mxfp8", .block_shape = {1, 32}, .bits_per_weight = 8,
     .code_dtypes = {{DType::kF8E4m3}, 1}, .elements_per_code = 1,
     .scale_dtypes = {{DType::kF8E8m0}, 1}, .has_global_scale = false},
    {.format = Format::kInt4Group128, .name = "int4_g128", .block_shape = {1, 128},
     .bits_per_weight = 4, .code_dtypes = {{DType::kI32}, 1}, .elements_per_code = 8,
     .scale_dtypes = {{DType::kBf16, DType::kF16, DType::kF32}, 3}, .has_global_scale = false},
    {.format = Format::kInt8Channel, .name = "int8", .block_shape = {1, kWholeAxis},
     .bits_per_weight = 8, .code_dtypes = {{DType::kI8}, 1}, .elements_per_code = 1,
     .scale_dtypes = {{DType::kF32, DType::kBf16, DType::kF16}, 3}, .has_global_scale = false},
}};
// clang-format on

constexpr bool has_codec(Format format) { return static_cast<int32_t>(format) < kNumFormats; }

constexpr const FormatInfo& format_info(Format format) {
  const auto index = static_cast<size_t>(format);
  return has_codec(format) ? kFormats[index] : kPlannedFormats[index - kFormats.size()];
}
constexpr std::string_view format_name(Format format) { return format_info(format).name; }

constexpr std::optional<Format> format_from_name(std::string_view name) {
  for (const FormatInfo& info : kFormats) {
    if (info.name == name) return info.format;
  }
  for (const FormatInfo& info : kPlannedFormats) {
    if (info.name == name) return info.format;
  }
  return std::nullopt;
}

// The smallest step of k that keeps groups and packed codes whole. FP8 blocks may be ragged, so it
// is 1 there.
constexpr int64_t k_multiple(Format format) {
  const FormatInfo& info = format_info(format);
  return info.block_shape.n == 1 && info.block_shape.k != kWholeAxis ? info.block_shape.k : 1;
}

// Shape of the stored codes and scales of a logical [n, k] weight; k must be a multiple of
// k_multiple(format).
inline Shape code_shape(Format format, int64_t n, int64_t k) {
  DCHECK(k % k_multiple(format) == 0);
  return Shape{n, k / format_info(format).elements_per_code};
}
inline Shape scale_shape(Format format, int64_t n, int64_t k) {
  const FormatInfo& info = format_info(format);
  CHECK(info.has_scales()) << info.name;
  return Shape{ceil_div(n, info.block_shape.n), ceil_div(k, info.block_shape.k)};
}

// A linear weight y = x * W^T with logical shape [n, k] (output features, input features). Owns
// nothing.
//   codes: code_shape(format, n, k), contiguous
//   scales: scale_shape(format, n, k), contiguous, one of the format's scale_dtypes; data is null
//   without scales
// w[i, j] = code value * scale of its block * global_scale.
struct WeightView {
  Format format = Format::kF32;
  int64_t n = 0;
  int64_t k = 0;
  TensorView codes = {};
  TensorView scales = {};
  float global_scale = 1.0f;

  int64_t num_bytes() const {
    return codes.num_bytes() + (format_info(format).has_scales() ? scales.num_bytes() : 0);
  }
};

}  // namespace nibble::quant
