#include "kernels/reference/device_rows.h"

#include <cmath>
#include <cstring>

#include "quant/fp8_key.h"
#include "quant/numeric.h"

namespace nibble::kernels::reference {
std::vector<float> sum_row(const DeviceSums& sums, int64_t m, int64_t width, int64_t row) {
  std::vector<float> total(static_cast<size_t>(width), 0.0f);
  for (int64_t split = 0; split < sums.splits; ++split) {
    const float* const part = sums.data + (split * m + row) * width;
    for (int64_t i = 0; i < width; ++i) total[static_cast<size_t>(i)] += part[i];
  }
  return total;
}

void normalise(std::span<float> x, const float* gamma, float eps) {
  double squares = 0;
  for (const float value : x) squares += double{value} * value;
  const double inverse_rms = 1.0 / std::sqrt(squares / static_cast<double>(x.size()) + eps);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(x[i] * inverse_rms * (gamma == nullptr ? 1.0f : gamma[i]));
  }
}

void rotate(std::span<float> head, const DeviceRotation& rotation, int32_t position, bool inverse) {
  const auto num_rotary = static_cast<size_t>(rotation.num_rotary);
  const std::span<float> rotary = head.last(num_rotary);
  for (size_t i = 0; i < num_rotary / 2; ++i) {
    // The product is rounded to f32 before the sine, as the model's reference code does.
    const float angle = static_cast<float>(position) * rotation.freqs[i];
    const double cos = std::cos(double{angle});
    const double sin = std::sin(double{angle}) * (inverse ? -1.0 : 1.0);
    const double x = rotary[2 * i];
    const double y = rotary[2 * i + 1];
    rotary[2 * i] = static_cast<float>(x * cos - y * sin);
    rotary[2 * i + 1] = static_cast<float>(x * sin + y * cos);
  }
}

int64_t key_row_bytes(DType dtype, int64_t width, int64_t num_rotary) {
  if (dtype != DType::kF8E4m3) return width * dtype_size(dtype);
  if (num_rotary == 0) return quant::fp8_index_key_bytes(width);
  return quant::Fp8KeyLayout{.num_codes = width - num_rotary, .num_rotary = num_rotary}.row_bytes();
}

void store_key(std::span<const float> key, DType dtype, int64_t num_rotary, std::byte* row) {
  if (dtype == DType::kF32) {
    std::memcpy(row, key.data(), key.size_bytes());
  } else if (dtype == DType::kBf16) {
    auto* const out = reinterpret_cast<uint16_t*>(row);
    for (size_t i = 0; i < key.size(); ++i) out[i] = quant::f32_to_bf16(key[i]);
  } else if (num_rotary == 0) {
    quant::encode_fp8_index_key(key, row);
  } else {
    const int64_t num_codes = static_cast<int64_t>(key.size()) - num_rotary;
    quant::encode_fp8_key(key, {.num_codes = num_codes, .num_rotary = num_rotary}, row);
  }
}

}  // namespace nibble::kernels::reference
