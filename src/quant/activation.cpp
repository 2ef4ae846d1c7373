#include "quant/activation.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "quant/numeric.h"

namespace nibble::quant {
namespace {

// Keeps the FP8 scale of a block of zeros away from 0 (model reference).
constexpr float kFp8AmaxMin = 1e-4f;
// 6 * 2^-126: the FP4 scale never falls below the smallest normal F32.
constexpr float kFp4AmaxMin = 6.0f * exp2_int(-126);

float amax_of(std::span<const float> x) {
  float amax = 0;
  for (const float value : x) amax = std::max(amax, std::fabs(value));
  return amax;
}

float fp4_scale(float amax) {
  // The division cannot round onto a power of two from above: one ulp of 6 * 2^e is 1.3 half ulps
  // of 2^e.
  return exp2_int(ceil_log2(std::max(amax, kFp4AmaxMin) / kE2m1Max));
}

}  // namespace

float fp8_activation_scale(float amax) {
  return exp2_int(ceil_log2(std::max(amax, kFp8AmaxMin) * (1.0f / kE4m3Max)));
}

void quantize_fp8(std::span<const float> x,
                  int64_t block,
                  std::span<uint8_t> codes,
                  std::span<float> scales) {
  const auto width = static_cast<size_t>(block);
  CHECK(block > 0 && x.size() % width == 0) << x.size() << " by " << block;
  CHECK(codes.size() == x.size() && scales.size() == x.size() / width);
  for (size_t b = 0; b < scales.size(); ++b) {
    const std::span<const float> values = x.subspan(b * width, width);
    scales[b] = fp8_activation_scale(amax_of(values));
    for (size_t i = 0; i < width; ++i) codes[b * width + i] = f32_to_e4m3(values[i] / scales[b]);
  }
}

void simulate_fp8(std::span<float> x, int64_t block) {
  const auto width = static_cast<size_t>(block);
  CHECK(block > 0 && x.size() % width == 0) << x.size() << " by " << block;
  for (size_t begin = 0; begin < x.size(); begin += width) {
    const std::span<float> values = x.subspan(begin, width);
    const float scale = fp8_activation_scale(amax_of(values));
    for (float& value : values) value = e4m3_to_f32(f32_to_e4m3(value / scale)) * scale;
  }
}

void simulate_fp4(std::span<float> x, int64_t block) {
  const auto width = static_cast<size_t>(block);
  CHECK(block > 0 && x.size() % width == 0) << x.size() << " by " << block;
  for (size_t begin = 0; begin < x.size(); begin += width) {
    const std::span<float> values = x.subspan(begin, width);
    const float scale = fp4_scale(amax_of(values));
    for (float& value : values) value = e2m1_to_f32(f32_to_e2m1(value / scale)) * scale;
  }
}

void hadamard_transform(std::span<float> x) {
  CHECK(std::has_single_bit(x.size())) << x.size();
  for (size_t stride = 1; stride < x.size(); stride *= 2) {
    for (size_t begin = 0; begin < x.size(); begin += 2 * stride) {
      for (size_t i = begin; i < begin + stride; ++i) {
        const float a = x[i];
        const float b = x[i + stride];
        x[i] = a + b;
        x[i + stride] = a - b;
      }
    }
  }
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(x.size())));
  for (float& value : x) value *= scale;
}

}  // namespace nibble::quant
