#include "cuda/cuda_testing.h"

#include <cmath>

#include "base/checked_math.h"
#include "quant/numeric.h"

namespace nibble::cuda_testing {

device::Device* gpu() {
  static const std::unique_ptr<device::Device> device = [] {
    Result<std::unique_ptr<device::Device>> made = device::make_cuda_device(0);
    return made.ok() ? std::move(made).value() : nullptr;
  }();
  return device.get();
}

std::vector<float> random_values(int64_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(size));
  for (float& value : values) value = normal(random);
  return values;
}

quant::QuantizedWeight random_mxfp4(int64_t n, int64_t k, int32_t spread, uint32_t seed) {
  std::mt19937 random(seed);
  quant::QuantizedWeight weight{
      .format = quant::Format::kMxfp4, .n = n, .k = k, .scale_dtype = DType::kF8E8m0};
  weight.codes.resize(static_cast<size_t>(n * k / 2));
  for (std::byte& code : weight.codes) code = static_cast<std::byte>(random() & 0xFFU);
  weight.scales.resize(static_cast<size_t>(n * k / 32));
  for (std::byte& scale : weight.scales) {
    scale = static_cast<std::byte>(118 + random() % static_cast<uint32_t>(spread + 1));
  }
  return weight;
}

quant::QuantizedWeight random_nvfp4(int64_t n, int64_t k, uint32_t seed) {
  constexpr uint32_t kNan = 0x7F;
  std::mt19937 random(seed);
  quant::QuantizedWeight weight{
      .format = quant::Format::kNvfp4, .n = n, .k = k, .scale_dtype = DType::kF8E4m3};
  weight.codes.resize(static_cast<size_t>(n * k / 2));
  for (std::byte& code : weight.codes) code = static_cast<std::byte>(random() & 0xFFU);
  weight.scales.resize(static_cast<size_t>(n * k / 16));
  for (std::byte& scale : weight.scales) scale = static_cast<std::byte>(random() % kNan);
  weight.global_scale = 0.03125f;
  return weight;
}

quant::QuantizedWeight random_int4(int64_t n, int64_t k, uint32_t seed) {
  std::mt19937 random(seed);
  quant::QuantizedWeight weight{
      .format = quant::Format::kInt4Group32, .n = n, .k = k, .scale_dtype = DType::kBf16};
  weight.codes.resize(static_cast<size_t>(n * k / 2));
  for (std::byte& code : weight.codes) code = static_cast<std::byte>(random() & 0xFFU);
  for (int64_t i = 0; i < n * k / 32; ++i) {
    const auto bits = static_cast<uint16_t>(0x3A00U + random() % 0x0400U + random() % 2 * 0x8000U);
    weight.scales.push_back(static_cast<std::byte>(bits & 0xFFU));
    weight.scales.push_back(static_cast<std::byte>(bits >> 8));
  }
  return weight;
}

quant::QuantizedWeight random_fp8(int64_t n, int64_t k, uint32_t seed) {
  constexpr uint8_t kNan = 0x7F;
  std::mt19937 random(seed);
  quant::QuantizedWeight weight{
      .format = quant::Format::kFp8E4m3Block128x128, .n = n, .k = k, .scale_dtype = DType::kF8E8m0};
  weight.codes.resize(static_cast<size_t>(n * k));
  for (std::byte& code : weight.codes) {
    const auto bits = static_cast<uint8_t>(random());
    code = static_cast<std::byte>((bits & kNan) == kNan ? bits - 1 : bits);
  }
  weight.scales.resize(static_cast<size_t>(ceil_div(n, 128) * ceil_div(k, 128)));
  for (std::byte& scale : weight.scales) scale = static_cast<std::byte>(116 + random() % 6);
  return weight;
}

HostFp8Rows random_fp8_rows(int64_t rows, int64_t k, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 100.0f);
  HostFp8Rows x;
  for (int64_t i = 0; i < rows * k / 128; ++i) {
    x.scales.push_back(std::ldexp(1.0f, static_cast<int>(random() % 7) - 10));
  }
  for (int64_t i = 0; i < rows * k; ++i) {
    const uint8_t code = quant::f32_to_e4m3(normal(random));
    x.codes.push_back(code);
    x.values.push_back(static_cast<double>(quant::e4m3_to_f32(code)) *
                       static_cast<double>(x.scales[static_cast<size_t>(i / 128)]));
  }
  return x;
}

}  // namespace nibble::cuda_testing
