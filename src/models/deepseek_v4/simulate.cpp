#include "models/deepseek_v4/simulate.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "models/deepseek_v4/host_rows.h"
#include "quant/activation.h"
#include "quant/numeric.h"

namespace nibble::models::deepseek_v4 {
namespace {

constexpr int64_t kActivationBlock = 128;
constexpr int64_t kKvBlock = 64;
constexpr int64_t kIndexBlock = 32;

template <class F>
void transform_rows(const TensorView& x, device::Stream& stream, F&& f) {
  const int64_t width = x.num_rows() == 0 ? 0 : x.shape.num_elements() / x.num_rows();
  for_each_row(x.num_rows(), stream, [&](int64_t row) {
    f(std::span(x.row<float>(row), static_cast<size_t>(width)));
  });
}

// The distance of E4M3 numbers with `scale` around a value, at its larger end.
float fp8_spacing(float magnitude, float scale) {
  constexpr int kMantissaBits = 3;
  constexpr int kMinExponent = -6;
  const int exponent = std::max(std::ilogb(magnitude / scale), kMinExponent);
  return std::ldexp(scale, exponent - kMantissaBits);
}

// The scale that the device took may differ by a factor of two where the largest value is near a
// border.   own: what the row itself is rounded to; may be empty
void impose_span(std::span<float> row, std::span<const float> rounded, std::span<float> own) {
  std::vector<uint8_t> codes(row.size());
  std::vector<float> scales(row.size() / kActivationBlock);
  quant::quantize_fp8(row, kActivationBlock, codes, scales);
  for (size_t i = 0; i < row.size(); ++i) {
    const float scale = scales[i / kActivationBlock];
    const float magnitude = std::max(std::abs(row[i]), std::abs(rounded[i]));
    const bool is_neighbour = std::abs(rounded[i] - row[i]) <= fp8_spacing(magnitude, 2 * scale);
    const float nearest = quant::e4m3_to_f32(codes[i]) * scale;
    if (!own.empty()) own[i] = nearest;
    row[i] = is_neighbour ? rounded[i] : nearest;
  }
}

void round_span(std::span<float> values) {
  for (float& value : values) value = quant::round_to_bf16(value);
}

}  // namespace

void round_bf16(const TensorView& x, device::Stream& stream) {
  transform_rows(x, stream, round_span);
}

void simulate_activation(const TensorView& x, device::Stream& stream) {
  transform_rows(
      x, stream, [](std::span<float> row) { quant::simulate_fp8(row, kActivationBlock); });
}

void impose_roundings(const TensorView& x,
                      const RoundingSite& site,
                      const DecisionTable<float>& roundings,
                      DecisionTable<float>* own,
                      device::Stream& stream) {
  if (site.positions.empty()) return;
  const auto count = static_cast<int64_t>(site.positions.size());
  const int64_t per_position = x.num_rows() / count;
  const auto width = static_cast<size_t>(x.shape.num_elements() / x.num_rows());
  if (own != nullptr) {
    for (const int32_t position : site.positions) {
      if (decision_at(roundings, site.index(), position).empty()) continue;
      decision_slot(*own, site.index(), position).resize(static_cast<size_t>(per_position) * width);
    }
  }
  for_each_row(x.num_rows(), stream, [&](int64_t row) {
    const int32_t position = site.positions[static_cast<size_t>(row / per_position)];
    const auto rounded = decision_at(roundings, site.index(), position);
    if (rounded.empty()) return;
    const auto begin = static_cast<size_t>(row % per_position) * width;
    std::span<float> kept;
    if (own != nullptr) {
      kept = std::span(decision_slot(*own, site.index(), position)).subspan(begin, width);
    }
    impose_span(std::span(x.row<float>(row), width), rounded.subspan(begin, width), kept);
  });
}

void simulate_kv(const TensorView& x, int64_t columns, device::Stream& stream) {
  transform_rows(x, stream, [columns](std::span<float> row) {
    quant::simulate_fp8(row.first(static_cast<size_t>(columns)), kKvBlock);
  });
}

void simulate_index(const TensorView& x, int64_t head_dim, device::Stream& stream) {
  const auto width = static_cast<size_t>(head_dim);
  transform_rows(x, stream, [width](std::span<float> row) {
    for (size_t begin = 0; begin < row.size(); begin += width) {
      const std::span<float> head = row.subspan(begin, width);
      quant::hadamard_transform(head);
      round_span(head);
      quant::simulate_fp4(head, kIndexBlock);
    }
  });
}

}  // namespace nibble::models::deepseek_v4
