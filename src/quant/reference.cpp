#include "quant/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "quant/numeric.h"

namespace nibble::quant {
namespace {

// Stores the rounded scale and returns the value that decoding will see.
float store_scale(QuantizedWeight& weight, int64_t index, float scale) {
  const auto write = [&](auto stored) {
    std::memcpy(weight.scales.data() + static_cast<size_t>(index) * sizeof(stored),
                &stored,
                sizeof(stored));
  };
  switch (weight.scale_dtype) {
    case DType::kF8E8m0: {
      const int32_t exponent = std::clamp(ceil_log2(scale), -126, 127);
      write(static_cast<uint8_t>(exponent + 127));
      return exp2_int(exponent);
    }
    case DType::kF8E4m3: {
      const uint8_t code = f32_to_e4m3(std::clamp(scale, exp2_int(-9), kE4m3Max));
      write(code);
      return e4m3_to_f32(code);
    }
    case DType::kBf16:
      write(f32_to_bf16(scale));
      return round_to_bf16(scale);
    case DType::kF16:
      write(f32_to_f16(scale));
      return f16_to_f32(f32_to_f16(scale));
    case DType::kF32:
      write(scale);
      return scale;
    default:
      CHECK(false) << dtype_name(weight.scale_dtype);
  }
  return 1;
}

// FP4 weights have the sign of w < 0: -0.0 gives code 0, a negative that rounds to zero gives 8.
uint8_t e2m1_weight_code(float w, float scale) {
  return static_cast<uint8_t>(f32_to_e2m1(std::fabs(w) / scale) | (w < 0 ? 8 : 0));
}

void store_code(QuantizedWeight& weight, int64_t index, float w, float scale) {
  const float value = w / scale;

  const auto write = [&](auto stored) {
    std::memcpy(
        weight.codes.data() + static_cast<size_t>(index) * sizeof(stored), &stored, sizeof(stored));
  };
  const auto write_nibble = [&](uint8_t nibble) {
    std::byte& packed = weight.codes[static_cast<size_t>(index / 2)];
    packed |= static_cast<std::byte>(nibble << (index % 2 * 4));  // codes start as zero
  };
  switch (weight.format) {
    case Format::kF32:
      return write(value);
    case Format::kBf16:
      return write(f32_to_bf16(value));
    case Format::kF16:
      return write(f32_to_f16(value));
    case Format::kFp8E4m3Block128x128:
      return write(f32_to_e4m3(value));
    case Format::kMxfp4:
    case Format::kNvfp4:
      return write_nibble(e2m1_weight_code(w, scale));
    case Format::kInt4Group32:
      return write_nibble(f32_to_int4(value));
    case Format::kFp8E4m3Block32x32:
    case Format::kFp8E4m3Tensor:
    case Format::kFp8E4m3Channel:
    case Format::kMxfp8:
    case Format::kInt4Group128:
    case Format::kInt8Channel:
      CHECK(false) << format_name(weight.format);
  }
}

// The scale of a block before it is rounded to the scale dtype; 1 for a block of zeros.
float ideal_scale(Format format, float amax, float global_scale) {
  if (amax == 0) return 1.0f;
  switch (format) {
    case Format::kFp8E4m3Block128x128:
      return amax / kE4m3Max;
    case Format::kMxfp4:
      return e8m0_to_f32(mxfp4_scale_code(amax, MxScaleRule::kCeil));
    case Format::kNvfp4:
      return amax / (kE2m1Max * global_scale);
    case Format::kInt4Group32:
      return amax / 7.5f;
    case Format::kF32:
    case Format::kBf16:
    case Format::kF16:
    case Format::kFp8E4m3Block32x32:
    case Format::kFp8E4m3Tensor:
    case Format::kFp8E4m3Channel:
    case Format::kMxfp8:
    case Format::kInt4Group128:
    case Format::kInt8Channel:
      break;
  }
  return 1.0f;
}

struct Block {
  int64_t row_begin = 0;
  int64_t row_end = 0;
  int64_t column_begin = 0;
  int64_t column_end = 0;
};

float block_amax(std::span<const float> w, int64_t k, const Block& block) {
  float amax = 0;
  for (int64_t i = block.row_begin; i < block.row_end; ++i) {
    for (int64_t j = block.column_begin; j < block.column_end; ++j) {
      amax = std::max(amax, std::fabs(w[static_cast<size_t>(i * k + j)]));
    }
  }
  return amax;
}

void encode_block(QuantizedWeight& weight,
                  std::span<const float> w,
                  const Block& block,
                  float scale) {
  for (int64_t i = block.row_begin; i < block.row_end; ++i) {
    for (int64_t j = block.column_begin; j < block.column_end; ++j) {
      const int64_t index = i * weight.k + j;
      store_code(weight, index, w[static_cast<size_t>(index)], scale);
    }
  }
}

template <typename Code, auto kDecode>
void decode_each(const void* row, std::span<float> out) {
  const auto* const codes = static_cast<const Code*>(row);
  for (size_t j = 0; j < out.size(); ++j) out[j] = kDecode(codes[j]);
}

template <auto kDecode>
void decode_each_nibble(const void* row, std::span<float> out) {
  const auto* const bytes = static_cast<const uint8_t*>(row);
  for (size_t j = 0; j < out.size(); ++j) {
    out[j] = static_cast<float>(kDecode(packed_nibble(bytes, static_cast<int64_t>(j))));
  }
}

}  // namespace

void decode_codes(Format format, const void* row, std::span<float> out) {
  switch (format) {
    case Format::kF32:
      std::memcpy(out.data(), row, out.size_bytes());
      return;
    case Format::kBf16:
      return decode_each<uint16_t, bf16_to_f32>(row, out);
    case Format::kF16:
      return decode_each<uint16_t, f16_to_f32>(row, out);
    case Format::kFp8E4m3Block128x128:
      return decode_each<uint8_t, e4m3_to_f32>(row, out);
    case Format::kMxfp4:
    case Format::kNvfp4:
      return decode_each_nibble<e2m1_to_f32>(row, out);
    case Format::kInt4Group32:
      return decode_each_nibble<int4_to_int>(row, out);
    case Format::kFp8E4m3Block32x32:
    case Format::kFp8E4m3Tensor:
    case Format::kFp8E4m3Channel:
    case Format::kMxfp8:
    case Format::kInt4Group128:
    case Format::kInt8Channel:
      CHECK(false) << format_name(format);
  }
}

float scale_value(DType dtype, const void* scales, int64_t i) {
  switch (dtype) {
    case DType::kF8E8m0:
      return e8m0_to_f32(static_cast<const uint8_t*>(scales)[i]);
    case DType::kF8E4m3:
      return e4m3_to_f32(static_cast<const uint8_t*>(scales)[i]);
    case DType::kBf16:
      return bf16_to_f32(static_cast<const uint16_t*>(scales)[i]);
    case DType::kF16:
      return f16_to_f32(static_cast<const uint16_t*>(scales)[i]);
    case DType::kF32:
      return static_cast<const float*>(scales)[i];
    default:
      CHECK(false) << dtype_name(dtype);
  }
  return 0;
}

void dequantize_row(const WeightView& weight, int64_t row, std::span<float> out) {
  DCHECK(static_cast<int64_t>(out.size()) == weight.k);
  const FormatInfo& info = format_info(weight.format);
  const char* codes = static_cast<const char*>(weight.codes.data) +
                      row * weight.codes.row_stride * dtype_size(weight.codes.dtype);
  decode_codes(weight.format, codes, out);
  if (!info.has_scales()) return;
  const TensorView scales = weight.scales.rows(row / info.block_shape.n, 1);
  for (int64_t j = 0; j < weight.k; ++j) {
    out[static_cast<size_t>(j)] *=
        scale_value(scales.dtype, scales.data, j / info.block_shape.k) * weight.global_scale;
  }
}

void dequantize(const WeightView& weight, std::span<float> out) {
  CHECK(static_cast<int64_t>(out.size()) == weight.n * weight.k) << out.size();
  for (int64_t i = 0; i < weight.n; ++i) {
    dequantize_row(
        weight, i, out.subspan(static_cast<size_t>(i * weight.k), static_cast<size_t>(weight.k)));
  }
}

WeightView QuantizedWeight::view() const {
  const FormatInfo& info = format_info(format);
  WeightView out{.format = format, .n = n, .k = k, .global_scale = global_scale};
  out.codes =
      TensorView::read_only(codes.data(), info.code_dtypes.dtypes[0], code_shape(format, n, k));
  if (info.has_scales()) {
    out.scales = TensorView::read_only(scales.data(), scale_dtype, scale_shape(format, n, k));
  }
  return out;
}

uint8_t mxfp4_scale_code(float amax, MxScaleRule rule) {
  if (amax == 0) return kE8m0One;
  int32_t exponent_plus_1 = 0;
  const float mantissa = 2 * std::frexp(amax, &exponent_plus_1);  // in [1, 2)
  int32_t exponent = exponent_plus_1 - 1 - 2;  // 2^2 is the exponent of the largest code
  if (rule == MxScaleRule::kEven && mantissa >= 1.75f) ++exponent;
  if (rule == MxScaleRule::kCeil && mantissa > 1.5f) ++exponent;  // amax / 6 <= 2^exponent
  return static_cast<uint8_t>(std::clamp(exponent + 127, 0, 254));
}

float nvfp4_global_scale(float amax) { return amax == 0 ? 1.0f : amax / (kE2m1Max * kE4m3Max); }

QuantizedWeight quantize(Format format,
                         std::span<const float> w,
                         int64_t n,
                         int64_t k,
                         DType scale_dtype,
                         std::optional<float> global_scale) {
  const FormatInfo& info = format_info(format);
  CHECK(static_cast<int64_t>(w.size()) == n * k) << w.size();
  CHECK(k % k_multiple(format) == 0) << k;
  CHECK(!info.has_scales() || info.scale_dtypes.contains(scale_dtype)) << dtype_name(scale_dtype);
  QuantizedWeight weight{
      .format = format, .n = n, .k = k, .scale_dtype = scale_dtype, .codes = {}, .scales = {}};
  weight.codes.resize(static_cast<size_t>(n * k * info.bits_per_weight / 8));
  const Block whole{.row_begin = 0, .row_end = n, .column_begin = 0, .column_end = k};
  if (!info.has_scales()) {
    encode_block(weight, w, whole, 1.0f);
    return weight;
  }
  const Shape blocks = scale_shape(format, n, k);
  weight.scales.resize(static_cast<size_t>(blocks.num_elements() * dtype_size(scale_dtype)));
  if (info.has_global_scale) {
    weight.global_scale =
        global_scale ? *global_scale : nvfp4_global_scale(block_amax(w, k, whole));
  }
  for (int64_t bi = 0; bi < blocks[0]; ++bi) {
    for (int64_t bj = 0; bj < blocks[1]; ++bj) {
      const Block block{.row_begin = bi * info.block_shape.n,
                        .row_end = std::min<int64_t>(n, (bi + 1) * info.block_shape.n),
                        .column_begin = bj * info.block_shape.k,
                        .column_end = std::min<int64_t>(k, (bj + 1) * info.block_shape.k)};
      const float ideal = ideal_scale(format, block_amax(w, k, block), weight.global_scale);
      const float scale = store_scale(weight, bi * blocks[1] + bj, ideal);
      encode_block(weight, w, block, scale * weight.global_scale);
    }
  }
  return weight;
}

QuantizedWeight quantize(Format format, std::span<const float> w, int64_t n, int64_t k) {
  return quantize(format, w, n, k, format_info(format).scale_dtypes.dtypes[0]);
}

}  // namespace nibble::quant
