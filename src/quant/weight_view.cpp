#include "quant/weight_view.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <string>

#include "base/utf8.h"
#include "quant/numeric.h"

namespace nibble::quant {
namespace {

std::string describe(const TensorView& tensor) {
  return fmt::format("{} {}", dtype_name(tensor.dtype), tensor.shape.to_string());
}

std::string join_names(const DTypeSet& set) {
  std::string text;
  for (const DType dtype : set.span()) {
    if (!text.empty()) text += " or ";
    text += dtype_name(dtype);
  }
  return text;
}

// "tensor layers.0.wq.weight: " with hostile bytes made visible.
std::string subject(std::string_view name) {
  return fmt::format("tensor {}: ", escape_for_display(name));
}

// The format whose codes may be labelled `weight` and whose scales may be labelled as `scale` is.
std::optional<Format> find_format(DType weight, const std::optional<TensorView>& scale) {
  for (const FormatInfo& info : kFormats) {
    if (!info.code_dtypes.contains(weight)) continue;
    if (info.has_scales() != scale.has_value()) continue;
    if (!scale || info.scale_dtypes.contains(scale->dtype)) return info.format;
  }
  return std::nullopt;
}

// The remaining case of find_format() == nullopt, put in words.
Error no_such_format(const WeightTensors& tensors) {
  const DType dtype = tensors.weight.dtype;
  std::string expected;
  for (const FormatInfo& info : kFormats) {
    if (!info.code_dtypes.contains(dtype)) continue;
    if (!expected.empty()) expected += ", or ";
    expected += info.has_scales()
                    ? fmt::format("a {} scale ({})", join_names(info.scale_dtypes), info.name)
                    : fmt::format("no scale ({})", info.name);
  }
  if (expected.empty()) {
    return unsupported(
        fmt::format("{}dtype {} is no weight format; expected F32, BF16, F16, F8_E4M3, I8, U8 or "
                    "I32. Convert the checkpoint.",
                    subject(tensors.name),
                    dtype_name(dtype)));
  }
  if (!tensors.scale) {
    return data_loss(fmt::format(
        "{}{} without a scale tensor; expected {} named {}. The checkpoint is incomplete.",
        subject(tensors.name),
        dtype_name(dtype),
        expected,
        escape_for_display(tensors.scale_name)));
  }
  return unsupported(
      fmt::format("{}{} with scale {} of dtype {}; expected {}. Convert the checkpoint.",
                  subject(tensors.name),
                  dtype_name(dtype),
                  escape_for_display(tensors.scale_name),
                  dtype_name(tensors.scale->dtype),
                  expected));
}

Result<void> check_scale(const WeightTensors& tensors, const WeightView& view) {
  const Shape expected = scale_shape(view.format, view.n, view.k);
  const FormatInfo& info = format_info(view.format);
  if (tensors.scale->shape != expected) {
    return data_loss(fmt::format(
        "{}{}, expected shape {} for {} weight {} of logical shape [{}, {}] with block [{}, {}]. "
        "Weight and scale do not belong together; fetch the checkpoint again.",
        subject(tensors.scale_name),
        describe(*tensors.scale),
        expected.to_string(),
        info.name,
        escape_for_display(tensors.name),
        view.n,
        view.k,
        info.block_shape.n,
        info.block_shape.k));
  }
  return {};
}

Result<void> check_global_scale(const WeightTensors& tensors, const WeightView& view) {
  const FormatInfo& info = format_info(view.format);
  if (!info.has_global_scale) {
    if (!tensors.global_scale) return {};
    return data_loss(
        fmt::format("{}{} has a global scale, expected none. The checkpoint mixes two formats.",
                    subject(tensors.name),
                    info.name));
  }
  if (!tensors.global_scale) {
    return data_loss(fmt::format(
        "{}{} without a global scale, expected one F32 value. The checkpoint is incomplete.",
        subject(tensors.name),
        info.name));
  }
  if (!std::isfinite(*tensors.global_scale) || *tensors.global_scale <= 0) {
    return data_loss(fmt::format(
        "{}global scale {}, expected a finite value above 0. The checkpoint is damaged.",
        subject(tensors.name),
        *tensors.global_scale));
  }
  return {};
}

// 2^40 keeps every product with a small constant inside int64_t; no weight comes near it.
bool is_size(int64_t dim) { return dim >= 1 && dim <= int64_t{1} << 40; }

template <class T, class IsNan>
int64_t count_if_nan(const TensorView& tensor, IsNan is_nan) {
  int64_t count = 0;
  const int64_t rows = tensor.num_rows();
  const int64_t columns = rows == 0 ? 0 : tensor.shape.num_elements() / rows;
  for (int64_t i = 0; i < rows; ++i) {
    const T* row = tensor.row<const T>(i);
    for (int64_t j = 0; j < columns; ++j) count += is_nan(row[j]) ? 1 : 0;
  }
  return count;
}

// Bytes that are 0xFF, or would be with the bits of `ignored`: the NaN of E8M0 and E4M3. All scales
// of a model pass through here while it loads, so eight bytes are looked at at a time.
int64_t count_full_bytes(const TensorView& tensor, uint8_t ignored) {
  constexpr uint64_t kEachByte = 0x0101010101010101U;
  int64_t count = 0;
  const int64_t rows = tensor.num_rows();
  const int64_t columns = rows == 0 ? 0 : tensor.shape.num_elements() / rows;
  for (int64_t i = 0; i < rows; ++i) {
    const auto* const row = tensor.row<const uint8_t>(i);
    int64_t j = 0;
    for (; j + 8 <= columns; j += 8) {
      uint64_t word = 0;
      std::memcpy(&word, row + j, sizeof(word));
      const uint64_t gaps = ~(word | ignored * kEachByte);
      // Whether a byte of `gaps` is zero.
      if (((gaps - kEachByte) & ~gaps & kEachByte << 7) == 0) continue;
      for (int64_t b = j; b < j + 8; ++b) count += (row[b] | ignored) == 0xFF ? 1 : 0;
    }
    for (; j < columns; ++j) count += (row[j] | ignored) == 0xFF ? 1 : 0;
  }
  return count;
}

}  // namespace

Result<WeightView> make_weight_view(const WeightTensors& tensors) {
  const TensorView& weight = tensors.weight;
  const std::optional<Format> format = find_format(weight.dtype, tensors.scale);
  if (!format) return no_such_format(tensors);
  const FormatInfo& info = format_info(*format);
  if (weight.shape.rank() != 2 || !is_size(weight.shape[0]) || !is_size(weight.shape[1])) {
    return data_loss(fmt::format(
        "{}{}, expected a matrix [n, k] that is not empty. The tensor is no linear weight.",
        subject(tensors.name),
        describe(weight)));
  }
  WeightView view{.format = *format,
                  .n = weight.shape[0],
                  .k = weight.shape[1] * info.elements_per_code,
                  .codes = weight};
  if (view.k % k_multiple(*format) != 0) {
    return data_loss(
        fmt::format("{}{}, expected k to be a multiple of {} for {} ({} per element). "
                    "The groups do not divide the input width; convert the checkpoint.",
                    subject(tensors.name),
                    describe(weight),
                    k_multiple(*format),
                    info.name,
                    info.elements_per_code));
  }
  if (tensors.scale) {
    TRY(check_scale(tensors, view));
    view.scales = *tensors.scale;
  }
  TRY(check_global_scale(tensors, view));
  view.global_scale = tensors.global_scale.value_or(1.0f);
  return view;
}

int64_t count_nan(const TensorView& tensor) {
  switch (tensor.dtype) {
    case DType::kF8E4m3:
      return count_full_bytes(tensor, 0x80);
    case DType::kF8E5m2:
      return count_if_nan<uint8_t>(tensor, [](uint8_t code) { return (code & 0x7F) > 0x7C; });
    case DType::kF8E8m0:
      return count_full_bytes(tensor, 0);
    case DType::kF16:
      return count_if_nan<uint16_t>(tensor, [](uint16_t bits) { return (bits & 0x7FFF) > 0x7C00; });
    case DType::kBf16:
      return count_if_nan<uint16_t>(tensor, [](uint16_t bits) { return (bits & 0x7FFF) > 0x7F80; });
    case DType::kF32:
      return count_if_nan<float>(tensor, [](float value) { return std::isnan(value); });
    case DType::kF64:
      return count_if_nan<double>(tensor, [](double value) { return std::isnan(value); });
    case DType::kBool:
    case DType::kU8:
    case DType::kI8:
    case DType::kI16:
    case DType::kU16:
    case DType::kI32:
    case DType::kU32:
    case DType::kI64:
    case DType::kU64:
      return 0;
  }
  return 0;
}

}  // namespace nibble::quant
