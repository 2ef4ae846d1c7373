#include "tools/convert/encode.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/utf8.h"
#include "quant/reference.h"

namespace nibble::tools {
namespace {

// A multiple of every format's block_shape.n.
constexpr int64_t kSlabRows = 128;

Result<void> decode_rows(const quant::WeightView& weight,
                         std::string_view name,
                         int64_t row_begin,
                         std::span<float> out) {
  const int64_t rows = static_cast<int64_t>(out.size()) / weight.k;
  for (int64_t i = 0; i < rows; ++i) {
    const auto row = out.subspan(static_cast<size_t>(i * weight.k), static_cast<size_t>(weight.k));
    quant::dequantize_row(weight, row_begin + i, row);
    const auto bad =
        std::find_if_not(row.begin(), row.end(), [](float v) { return std::isfinite(v); });
    if (bad == row.end()) continue;
    return data_loss(
        fmt::format("tensor {}: element [{}, {}] is {}, expected a finite number. The file is "
                    "damaged.",
                    escape_for_display(name),
                    row_begin + i,
                    bad - row.begin(),
                    *bad));
  }
  return {};
}

// Calls fn(values) for each slab of decoded rows, top to bottom.
template <class Fn>
Result<void> for_each_slab(const quant::WeightView& weight, std::string_view name, Fn fn) {
  std::vector<float> values;
  for (int64_t begin = 0; begin < weight.n; begin += kSlabRows) {
    const int64_t rows = std::min(kSlabRows, weight.n - begin);
    values.resize(static_cast<size_t>(rows * weight.k));
    TRY(decode_rows(weight, name, begin, values));
    TRY(fn(std::span<const float>(values)));
  }
  return {};
}

}  // namespace

Result<float> weight_amax(const quant::WeightView& weight, std::string_view name) {
  float amax = 0;
  const auto visit = [&](std::span<const float> values) -> Result<void> {
    for (const float value : values) amax = std::max(amax, std::fabs(value));
    return {};
  };
  TRY(for_each_slab(weight, name, visit));
  return amax;
}

Result<ErrorStatistics> encode_weight(const quant::WeightView& weight,
                                      std::string_view name,
                                      const EncodeTarget& target,
                                      const WriteBytes& write) {
  const quant::FormatInfo& info = quant::format_info(target.format);
  ErrorStatistics statistics{.num_changed_tensors = 1};
  std::vector<float> decoded;
  int64_t codes_at = 0;
  int64_t scales_at = 0;
  const auto encode_slab = [&](std::span<const float> values) -> Result<void> {
    const int64_t rows = static_cast<int64_t>(values.size()) / weight.k;
    const quant::QuantizedWeight slab = quant::quantize(
        target.format, values, rows, weight.k, info.scale_dtypes.dtypes[0], target.global_scale);
    decoded.resize(values.size());
    quant::dequantize(slab.view(), decoded);
    statistics.add(values, decoded);
    TRY(write(target.codes_index, codes_at, slab.codes));
    codes_at += static_cast<int64_t>(slab.codes.size());
    if (!info.has_scales()) return {};
    TRY(write(target.scales_index, scales_at, slab.scales));
    scales_at += static_cast<int64_t>(slab.scales.size());
    return {};
  };
  TRY(for_each_slab(weight, name, encode_slab));
  if (statistics.sum_error2 == 0) {
    statistics.num_exact_tensors = 1;
    statistics.num_changed_tensors = 0;
  }
  return statistics;
}

}  // namespace nibble::tools
