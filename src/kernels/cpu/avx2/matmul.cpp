// Matrix products with AVX2 in f32. A block of 16 rows is two vectors of 8 lanes.
#include <immintrin.h>

#include "base/checked_math.h"
#include "kernels/cpu/decode_tables.h"
#include "kernels/cpu/isa_region.h"
#include "kernels/cpu/matmul_driver.h"
#include "kernels/registry.h"

namespace nibble::kernels {
namespace avx2 {
namespace {

using quant::Format;

NIBBLE_ISA_BEGIN("avx2,fma,f16c")

struct Math {
  using Vec = __m256;
  using Weight = __m256;  // one f32 of each row
  using Input = float;
  static constexpr int kLanes = 8;
  static constexpr int kStepK = 1;
  static constexpr int kTileTokens = 6;  // 2 x 6 sums, 2 weights, 1 activation: 15 of 16 registers
  static constexpr int64_t kTileBlocks = 2;
  static constexpr int kStreamBlocks = 4;
  static constexpr int kStreamTokens = 2;

  static Vec zero() { return _mm256_setzero_ps(); }
  static Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
  static Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  static Vec broadcast(const Input* x) { return _mm256_broadcast_ss(x); }
  static Vec multiply_add(Vec sum, Weight w, Vec x) { return _mm256_fmadd_ps(w, x, sum); }
  static Vec load_floats(const float* p) { return _mm256_loadu_ps(p); }
  static __m256i first_lanes(int64_t count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static void store(float* out, Vec value, int count) {
    _mm256_maskstore_ps(out, first_lanes(count), value);
  }
  // Copies `count` values, then zeros to a multiple of 16.
  static void prepare(const float* x, int64_t count, Input* out) {
    for (int64_t i = 0; i < round_up(count, kInterleavedRows); i += kLanes) {
      _mm256_storeu_ps(out + i, _mm256_maskload_ps(x + i, first_lanes(count - i)));
    }
  }
};

// --- scales: 8 values of a stored dtype as f32 ---

inline __m256i load_bytes(const std::byte* bytes) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
}

inline __m256 select(__m256i mask, int bits, __m256i otherwise) {
  return _mm256_blendv_ps(_mm256_castsi256_ps(otherwise),
                          _mm256_castsi256_ps(_mm256_set1_epi32(bits)),
                          _mm256_castsi256_ps(mask));
}

inline __m256 load_e8m0(const std::byte* scales) {
  const __m256i codes = load_bytes(scales);
  // Code 0 is 2^-127, a subnormal; code 255 is NaN.
  const __m256 positive = select(
      _mm256_cmpeq_epi32(codes, _mm256_setzero_si256()), 0x00400000, _mm256_slli_epi32(codes, 23));
  return select(_mm256_cmpeq_epi32(codes, _mm256_set1_epi32(0xFF)),
                0x7FC00000,
                _mm256_castps_si256(positive));
}

inline __m256 load_e4m3(const std::byte* scales) {
  const __m256i codes = load_bytes(scales);
  const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(codes, _mm256_set1_epi32(0x80)), 24);
  const __m256i magnitude = _mm256_and_si256(codes, _mm256_set1_epi32(0x7F));
  // The bits in the f32 fields give the value times 2^-120, subnormals included.
  const __m256 scaled = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(magnitude, 20)),
                                      _mm256_set1_ps(0x1p120F));
  const __m256 value = select(_mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7F)),
                              0x7FC00000,
                              _mm256_castps_si256(scaled));
  return _mm256_or_ps(value, _mm256_castsi256_ps(sign));
}

inline __m256 load_scales(const std::byte* scales, DType dtype) {
  const auto* const halves = reinterpret_cast<const __m128i*>(scales);
  switch (dtype) {
    case DType::kF8E8m0:
      return load_e8m0(scales);
    case DType::kF8E4m3:
      return load_e4m3(scales);
    case DType::kBf16:
      return _mm256_castsi256_ps(
          _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(halves)), 16));
    case DType::kF16:
      return _mm256_cvtph_ps(_mm_loadu_si128(halves));
    default:
      return _mm256_loadu_ps(reinterpret_cast<const float*>(scales));
  }
}

// --- decoders (layouts: kernels/packed_weight.h) ---

inline __m256i load_vector(const std::byte* codes) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(codes));
}

// The lower and the upper bf16 of each lane.
inline void bf16_to_f32(__m256i pairs, __m256& low, __m256& high) {
  low = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
  high = _mm256_castsi256_ps(
      _mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xFFFF0000U))));
}

struct F32Decoder {
  static constexpr Format kFormat = Format::kF32;
  static constexpr bool kIsPlain = true;
  static void decode(const std::byte* codes, __m256 (&out)[1]) {
    out[0] = _mm256_load_ps(reinterpret_cast<const float*>(codes));
  }
};

struct Bf16Decoder {
  static constexpr Format kFormat = Format::kBf16;
  static constexpr bool kIsPlain = false;
  static void decode(const std::byte* codes, __m256 (&out)[2]) {
    bf16_to_f32(load_vector(codes), out[0], out[1]);
  }
};

// The lower halves of all lanes, in order.
inline __m128i low_halves(__m256i lanes) {
  const __m256i low = _mm256_and_si256(lanes, _mm256_set1_epi32(0xFFFF));
  const __m256i packed = _mm256_packus_epi32(low, low);  // within each 128 bits
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}

struct F16Decoder {
  static constexpr Format kFormat = Format::kF16;
  static constexpr bool kIsPlain = false;
  static void decode(const std::byte* codes, __m256 (&out)[2]) {
    const __m256i pairs = load_vector(codes);
    out[0] = _mm256_cvtph_ps(low_halves(pairs));
    out[1] = _mm256_cvtph_ps(low_halves(_mm256_srli_epi32(pairs, 16)));
  }
};

// The code bits in the bf16 fields give the value times 2^-120; one multiplication in f32 restores
// it, subnormals included. NaN codes become NaN on the way.
struct Fp8Decoder {
  static constexpr Format kFormat = Format::kFp8E4m3Block128x128;
  static constexpr bool kIsPlain = false;
  static void decode(const std::byte* codes, __m256 (&out)[4]) {
    const auto bytes = [](int value) { return static_cast<char>(value); };
    const __m256i code = load_vector(codes);
    const __m256i magnitude_mask = _mm256_set1_epi8(bytes(0x7F));
    const __m256i nan = _mm256_cmpeq_epi8(_mm256_and_si256(code, magnitude_mask), magnitude_mask);
    const __m256i low = _mm256_and_si256(_mm256_slli_epi16(code, 4), _mm256_set1_epi8(bytes(0xF0)));
    const __m256i sign = _mm256_and_si256(code, _mm256_set1_epi8(bytes(0x80)));
    const __m256i exponent = _mm256_and_si256(_mm256_srli_epi16(code, 4), _mm256_set1_epi8(0x07));
    const __m256i high = _mm256_or_si256(_mm256_or_si256(sign, exponent), nan);
    const __m256i low_or_nan = _mm256_or_si256(low, nan);
    bf16_to_f32(_mm256_unpacklo_epi8(low_or_nan, high), out[0], out[1]);
    bf16_to_f32(_mm256_unpackhi_epi8(low_or_nan, high), out[2], out[3]);
    NIBBLE_UNROLL
    for (__m256& value : out) value = _mm256_mul_ps(value, _mm256_set1_ps(0x1p120F));
  }
};

// Bits 3..0 of each lane, shifted into the sign: an E2M1 code is a sign and an index into eight
// magnitudes.
inline __m256 e2m1_value(__m256i codes, int shift) {
  const __m256 magnitudes = _mm256_load_ps(kE2m1F32Table.values.data());
  const __m256 magnitude = _mm256_permutevar8x32_ps(magnitudes, _mm256_srli_epi32(codes, shift));
  const __m256 sign = _mm256_and_ps(_mm256_castsi256_ps(_mm256_slli_epi32(codes, 28 - shift)),
                                    _mm256_set1_ps(-0.0F));
  return _mm256_or_ps(magnitude, sign);
}

// Codes are offset by 8: flipping the top bit gives two's complement, which shifts extend.
inline __m256 int4_value(__m256i codes, int shift) {
  const __m256i flipped = _mm256_xor_si256(codes, _mm256_set1_epi8(static_cast<char>(0x88)));
  return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(flipped, 28 - shift), 28));
}

template <Format kFormatOfCodes>
struct NibbleDecoder {
  static constexpr Format kFormat = kFormatOfCodes;
  static constexpr bool kIsPlain = false;
  static void decode(const std::byte* codes, __m256 (&out)[8]) {
    const __m256i vector = load_vector(codes);
    NIBBLE_UNROLL
    for (int i = 0; i < 8; ++i) {
      const int shift = 4 * (i / 2) + 16 * (i % 2);
      if constexpr (kFormat == Format::kInt4Group32) {
        out[i] = int4_value(vector, shift);
      } else {
        out[i] = e2m1_value(vector, shift);
      }
    }
  }
};

#include "kernels/cpu/matmul-inl.h"

NIBBLE_ISA_END

using Mxfp4Decoder = NibbleDecoder<Format::kMxfp4>;
using Nvfp4Decoder = NibbleDecoder<Format::kNvfp4>;
using Int4Decoder = NibbleDecoder<Format::kInt4Group32>;

constexpr MatMulTarget kTarget = {.isa = device::kIsaAvx2, .activation = Activation::kF32};

// clang-format off
constexpr KernelInfo kTable[] = {
    matmul_row("matmul.f32.f32.avx2.simd", F32Decoder::kFormat, kTarget, &matmul<F32Decoder>),
    matmul_row("matmul.bf16.f32.avx2.simd", Bf16Decoder::kFormat, kTarget, &matmul<Bf16Decoder>),
    matmul_row("matmul.f16.f32.avx2.simd", F16Decoder::kFormat, kTarget, &matmul<F16Decoder>),
    matmul_row("matmul.fp8_block128x128.f32.avx2.simd", Fp8Decoder::kFormat, kTarget, &matmul<Fp8Decoder>),
    matmul_row("matmul.mxfp4.f32.avx2.simd", Mxfp4Decoder::kFormat, kTarget, &matmul<Mxfp4Decoder>),
    matmul_row("matmul.nvfp4.f32.avx2.simd", Nvfp4Decoder::kFormat, kTarget, &matmul<Nvfp4Decoder>),
    matmul_row("matmul.int4_g32.f32.avx2.simd", Int4Decoder::kFormat, kTarget, &matmul<Int4Decoder>),
    matmul_row("grouped_matmul.f32.f32.avx2.simd", F32Decoder::kFormat, kTarget, &grouped_matmul<F32Decoder>),
    matmul_row("grouped_matmul.bf16.f32.avx2.simd", Bf16Decoder::kFormat, kTarget, &grouped_matmul<Bf16Decoder>),
    matmul_row("grouped_matmul.f16.f32.avx2.simd", F16Decoder::kFormat, kTarget, &grouped_matmul<F16Decoder>),
    matmul_row("grouped_matmul.fp8_block128x128.f32.avx2.simd", Fp8Decoder::kFormat, kTarget, &grouped_matmul<Fp8Decoder>),
    matmul_row("grouped_matmul.mxfp4.f32.avx2.simd", Mxfp4Decoder::kFormat, kTarget, &grouped_matmul<Mxfp4Decoder>),
    matmul_row("grouped_matmul.nvfp4.f32.avx2.simd", Nvfp4Decoder::kFormat, kTarget, &grouped_matmul<Nvfp4Decoder>),
    matmul_row("grouped_matmul.int4_g32.f32.avx2.simd", Int4Decoder::kFormat, kTarget, &grouped_matmul<Int4Decoder>),
};
// clang-format on

}  // namespace
}  // namespace avx2

std::span<const KernelInfo> cpu_avx2_matmul_kernels() { return avx2::kTable; }

}  // namespace nibble::kernels
