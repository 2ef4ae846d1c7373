#include "kernels/slab16_testing.h"

#include <cmath>
#include <cstring>
#include <random>

namespace nibble::kernels {

quant::QuantizedWeight random_slab_weight(quant::Format format,
                                          int64_t n,
                                          int64_t k,
                                          uint32_t seed) {
  using quant::Format;
  std::mt19937 random(seed);
  quant::QuantizedWeight weight{.format = format, .n = n, .k = k};
  const bool is_fp8 = format == Format::kFp8E4m3Block128x128;
  weight.codes.resize(static_cast<size_t>(is_fp8 ? n * k : n * k / 2));
  for (std::byte& code : weight.codes) {
    do {
      code = static_cast<std::byte>(random() & 0xFFU);
    } while (is_fp8 && (code & std::byte{0x7F}) == std::byte{0x7F});
  }
  if (is_fp8) {
    weight.scale_dtype = DType::kF32;
    weight.scales.resize(
        static_cast<size_t>(ceil_div(n, int64_t{128}) * ceil_div(k, int64_t{128})) * 4);
    for (size_t i = 0; i < weight.scales.size(); i += 4) {
      const float scale = std::ldexp(1.0f + static_cast<float>(random() % 128) / 128,
                                     static_cast<int32_t>(random() % 6) - 8);
      std::memcpy(weight.scales.data() + i, &scale, sizeof(scale));
    }
    return weight;
  }
  const bool is_mxfp4 = format == Format::kMxfp4;
  weight.scale_dtype = is_mxfp4 ? DType::kF8E8m0 : DType::kF8E4m3;
  if (!is_mxfp4) weight.global_scale = 0.375f;
  weight.scales.resize(static_cast<size_t>(n * k / (is_mxfp4 ? 32 : 16)));
  for (std::byte& scale : weight.scales) {
    scale = static_cast<std::byte>(is_mxfp4 ? 118 + random() % 8 : 0x30 + random() % 0x20);
  }
  return weight;
}

}  // namespace nibble::kernels
