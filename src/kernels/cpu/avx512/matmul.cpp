// Matrix products with AVX-512 in f32.
#include <immintrin.h>

#include "base/checked_math.h"
#include "kernels/cpu/decode_tables.h"
#include "kernels/cpu/isa_region.h"
#include "kernels/cpu/matmul_driver.h"
#include "kernels/registry.h"

namespace nibble::kernels {
namespace avx512 {
namespace {

using quant::Format;

NIBBLE_ISA_BEGIN("avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx2,fma,f16c")

#include "kernels/cpu/avx512-inl.h"

struct Math {
  using Vec = __m512;
  using Weight = __m512;  // one f32 of each row
  using Input = float;
  static constexpr int kLanes = 16;
  static constexpr int kStepK = 1;
  static constexpr int kTileTokens =
      12;  // 2 x 12 sums, 2 weights, 1 activation: 27 of 32 registers
  static constexpr int64_t kTileBlocks = 2;
  static constexpr int kStreamBlocks = 8;
  static constexpr int kStreamTokens = 4;

  static Vec zero() { return _mm512_setzero_ps(); }
  static Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  static Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  static Vec broadcast(const Input* x) { return _mm512_set1_ps(*x); }
  static Vec multiply_add(Vec sum, Weight w, Vec x) { return _mm512_fmadd_ps(w, x, sum); }
  static Vec load_floats(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* out, Vec value, int count) {
    _mm512_mask_storeu_ps(out, first_lanes(count), value);
  }
  // Copies `count` values, then zeros to a multiple of 16.
  static void prepare(const float* x, int64_t count, Input* out) {
    for (int64_t i = 0; i < count; i += kLanes) {
      const int64_t rest = count - i;
      const __mmask16 lanes = rest < kLanes ? first_lanes(rest) : first_lanes(kLanes);
      _mm512_storeu_ps(out + i, _mm512_maskz_loadu_ps(lanes, x + i));
    }
  }
};

// The lower and the upper bf16 of each lane.
inline void bf16_to_f32(__m512i pairs, __m512& low, __m512& high) {
  low = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
  high = _mm512_castsi512_ps(
      _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000U))));
}

struct F32Decoder {
  static constexpr Format kFormat = Format::kF32;
  static constexpr bool kIsPlain = true;
  static void decode(const std::byte* codes, __m512 (&out)[1]) { out[0] = _mm512_load_ps(codes); }
};

struct Bf16Decoder {
  static constexpr Format kFormat = Format::kBf16;
  static constexpr bool kIsPlain = false;
  static void decode(const std::byte* codes, __m512 (&out)[2]) {
    bf16_to_f32(load_vector(codes), out[0], out[1]);
  }
};

struct F16Decoder {
  static constexpr Format kFormat = Format::kF16;
  static constexpr bool kIsPlain = false;
  static void decode(const std::byte* codes, __m512 (&out)[2]) {
    const __m512i pairs = load_vector(codes);
    out[0] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs));
    out[1] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(pairs, 16)));
  }
};

struct Fp8Decoder {
  static constexpr Format kFormat = Format::kFp8E4m3Block128x128;
  static constexpr bool kIsPlain = false;
  static void decode(const std::byte* codes, __m512 (&out)[4]) {
    __m512i pairs[2];
    e4m3_to_bf16(load_vector(codes), pairs);
    bf16_to_f32(pairs[0], out[0], out[1]);
    bf16_to_f32(pairs[1], out[2], out[3]);
  }
};

template <Format kFormatOfCodes>
struct NibbleDecoder {
  static constexpr Format kFormat = kFormatOfCodes;
  static constexpr bool kIsPlain = false;
  static void decode(const std::byte* codes, __m512 (&out)[8]) {
    constexpr bool kIsInt4 = kFormat == Format::kInt4Group32;
    const __m512 values =
        _mm512_load_ps(kIsInt4 ? kInt4F32Table.values.data() : kE2m1F32Table.values.data());
    const __m512i even = load_vector(codes);
    const __m512i odd = _mm512_srli_epi32(even, 16);
    NIBBLE_UNROLL
    for (unsigned j = 0; j < 4; ++j) {
      out[2 * j] = _mm512_permutexvar_ps(_mm512_srli_epi32(even, 4 * j), values);
      out[2 * j + 1] = _mm512_permutexvar_ps(_mm512_srli_epi32(odd, 4 * j), values);
    }
  }
};

#include "kernels/cpu/matmul-inl.h"

NIBBLE_ISA_END

using Mxfp4Decoder = NibbleDecoder<Format::kMxfp4>;
using Nvfp4Decoder = NibbleDecoder<Format::kNvfp4>;
using Int4Decoder = NibbleDecoder<Format::kInt4Group32>;

constexpr MatMulTarget kTarget = {.isa = device::kIsaAvx2 | device::kIsaAvx512,
                                  .activation = Activation::kF32};

// clang-format off
constexpr KernelInfo kTable[] = {
    matmul_row("matmul.f32.f32.avx512.simd", F32Decoder::kFormat, kTarget, &matmul<F32Decoder>),
    matmul_row("matmul.bf16.f32.avx512.simd", Bf16Decoder::kFormat, kTarget, &matmul<Bf16Decoder>),
    matmul_row("matmul.f16.f32.avx512.simd", F16Decoder::kFormat, kTarget, &matmul<F16Decoder>),
    matmul_row("matmul.fp8_block128x128.f32.avx512.simd", Fp8Decoder::kFormat, kTarget, &matmul<Fp8Decoder>),
    matmul_row("matmul.mxfp4.f32.avx512.simd", Mxfp4Decoder::kFormat, kTarget, &matmul<Mxfp4Decoder>),
    matmul_row("matmul.nvfp4.f32.avx512.simd", Nvfp4Decoder::kFormat, kTarget, &matmul<Nvfp4Decoder>),
    matmul_row("matmul.int4_g32.f32.avx512.simd", Int4Decoder::kFormat, kTarget, &matmul<Int4Decoder>),
    matmul_row("grouped_matmul.f32.f32.avx512.simd", F32Decoder::kFormat, kTarget, &grouped_matmul<F32Decoder>),
    matmul_row("grouped_matmul.bf16.f32.avx512.simd", Bf16Decoder::kFormat, kTarget, &grouped_matmul<Bf16Decoder>),
    matmul_row("grouped_matmul.f16.f32.avx512.simd", F16Decoder::kFormat, kTarget, &grouped_matmul<F16Decoder>),
    matmul_row("grouped_matmul.fp8_block128x128.f32.avx512.simd", Fp8Decoder::kFormat, kTarget, &grouped_matmul<Fp8Decoder>),
    matmul_row("grouped_matmul.mxfp4.f32.avx512.simd", Mxfp4Decoder::kFormat, kTarget, &grouped_matmul<Mxfp4Decoder>),
    matmul_row("grouped_matmul.nvfp4.f32.avx512.simd", Nvfp4Decoder::kFormat, kTarget, &grouped_matmul<Nvfp4Decoder>),
    matmul_row("grouped_matmul.int4_g32.f32.avx512.simd", Int4Decoder::kFormat, kTarget, &grouped_matmul<Int4Decoder>),
};
// clang-format on

}  // namespace
}  // namespace avx512

std::span<const KernelInfo> cpu_avx512_matmul_kernels() { return avx512::kTable; }

}  // namespace nibble::kernels
