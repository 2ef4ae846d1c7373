// Matrix products with AVX512-BF16: activations rounded to bf16 (nearest even), weights decoded to
// bf16 exactly, pairs along k multiplied and added in f32 by one instruction. That instruction
// takes subnormal inputs and products below 2^-126 as zero, which is far below the rounding of the
// activations. Scales multiply f32 sums of a group, so no scale can overflow or vanish in bf16.
#include <immintrin.h>

#include "base/checked_math.h"
#include "kernels/cpu/decode_tables.h"
#include "kernels/cpu/isa_region.h"
#include "kernels/cpu/matmul_driver.h"
#include "kernels/registry.h"

namespace nibble::kernels {
namespace avx512_bf16 {
namespace {

using quant::Format;

NIBBLE_ISA_BEGIN("avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512bf16,avx2,fma,f16c")

#include "kernels/cpu/avx512-inl.h"

struct Math {
  using Vec = __m512;
  using Weight = __m512i;  // a bf16 pair along k of each row
  using Input = uint32_t;  // a bf16 pair along k
  static constexpr int kLanes = 16;
  static constexpr int kStepK = 2;
  static constexpr int kTileTokens =
      12;  // 2 x 12 sums, 2 weights, 1 activation: 27 of 32 registers
  static constexpr int64_t kTileBlocks = 4;
  static constexpr int kStreamBlocks = 8;
  static constexpr int kStreamTokens = 4;

  static Vec zero() { return _mm512_setzero_ps(); }
  static Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  static Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  static Weight broadcast(const Input* x) { return _mm512_set1_epi32(static_cast<int>(*x)); }
  static Vec multiply_add(Vec sum, Weight w, Weight x) {
    return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)x);
  }
  static Vec load_floats(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* out, Vec value, int count) {
    _mm512_mask_storeu_ps(out, first_lanes(count), value);
  }
  // Rounds `count` values, then zeros to a multiple of 16.
  static void prepare(const float* x, int64_t count, Input* out) {
    for (int64_t i = 0; i < count; i += kLanes, out += kLanes / kStepK) {
      const int64_t rest = count - i;
      const __mmask16 lanes = rest < kLanes ? first_lanes(rest) : first_lanes(kLanes);
      const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(lanes, x + i));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), (__m256i)rounded);
    }
  }
};

struct Bf16Decoder {
  static constexpr Format kFormat = Format::kBf16;
  static constexpr bool kIsPlain = true;
  static void decode(const std::byte* codes, __m512i (&out)[1]) { out[0] = load_vector(codes); }
};

struct Fp8Decoder {
  static constexpr Format kFormat = Format::kFp8E4m3Block128x128;
  static constexpr bool kIsPlain = false;
  static void decode(const std::byte* codes, __m512i (&out)[2]) {
    e4m3_to_bf16(load_vector(codes), out);
  }
};

inline void decode_nibbles(const NibbleBf16Table& table, __m512i codes, __m512i (&out)[4]) {
  const __m512i values = _mm512_load_si512(table.values.data());
  out[0] = _mm512_permutexvar_epi16(codes, values);
  out[1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 4), values);
  out[2] = _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 8), values);
  out[3] = _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 12), values);
}

template <Format kFormatOfCodes>
struct NibbleDecoder {
  static constexpr Format kFormat = kFormatOfCodes;
  static constexpr bool kIsPlain = false;
  static void decode(const std::byte* codes, __m512i (&out)[4]) {
    constexpr bool kIsInt4 = kFormat == Format::kInt4Group32;
    decode_nibbles(kIsInt4 ? kInt4Bf16Table : kE2m1Bf16Table, load_vector(codes), out);
  }
};

#include "kernels/cpu/matmul-inl.h"

NIBBLE_ISA_END

using Mxfp4Decoder = NibbleDecoder<Format::kMxfp4>;
using Nvfp4Decoder = NibbleDecoder<Format::kNvfp4>;
using Int4Decoder = NibbleDecoder<Format::kInt4Group32>;

constexpr MatMulTarget kTarget = {
    .isa = device::kIsaAvx2 | device::kIsaAvx512 | device::kIsaAvx512Bf16,
    .activation = Activation::kBf16};

// clang-format off
constexpr KernelInfo kTable[] = {
    matmul_row("matmul.bf16.bf16.avx512_bf16.simd", Bf16Decoder::kFormat, kTarget, &matmul<Bf16Decoder>),
    matmul_row("matmul.fp8_block128x128.bf16.avx512_bf16.simd", Fp8Decoder::kFormat, kTarget, &matmul<Fp8Decoder>),
    matmul_row("matmul.mxfp4.bf16.avx512_bf16.simd", Mxfp4Decoder::kFormat, kTarget, &matmul<Mxfp4Decoder>),
    matmul_row("matmul.nvfp4.bf16.avx512_bf16.simd", Nvfp4Decoder::kFormat, kTarget, &matmul<Nvfp4Decoder>),
    matmul_row("matmul.int4_g32.bf16.avx512_bf16.simd", Int4Decoder::kFormat, kTarget, &matmul<Int4Decoder>),
    matmul_row("grouped_matmul.bf16.bf16.avx512_bf16.simd", Bf16Decoder::kFormat, kTarget, &grouped_matmul<Bf16Decoder>),
    matmul_row("grouped_matmul.fp8_block128x128.bf16.avx512_bf16.simd", Fp8Decoder::kFormat, kTarget, &grouped_matmul<Fp8Decoder>),
    matmul_row("grouped_matmul.mxfp4.bf16.avx512_bf16.simd", Mxfp4Decoder::kFormat, kTarget, &grouped_matmul<Mxfp4Decoder>),
    matmul_row("grouped_matmul.nvfp4.bf16.avx512_bf16.simd", Nvfp4Decoder::kFormat, kTarget, &grouped_matmul<Nvfp4Decoder>),
    matmul_row("grouped_matmul.int4_g32.bf16.avx512_bf16.simd", Int4Decoder::kFormat, kTarget, &grouped_matmul<Int4Decoder>),
};
// clang-format on

}  // namespace
}  // namespace avx512_bf16

std::span<const KernelInfo> cpu_avx512_bf16_matmul_kernels() { return avx512_bf16::kTable; }

}  // namespace nibble::kernels
