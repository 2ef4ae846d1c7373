// What the AVX-512 files share: stores, scales and table decoders. Included inside an ISA region.

inline __mmask16 first_lanes(int64_t count) { return static_cast<__mmask16>((1U << count) - 1); }

// --- scales: 16 values of a stored dtype as f32 ---

inline __m512 load_e8m0(const std::byte* scales) {
  const __m512i codes =
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales)));
  __m512i bits = _mm512_slli_epi32(codes, 23);
  // Code 0 is 2^-127, a subnormal; code 255 is NaN.
  bits = _mm512_mask_mov_epi32(
      bits, _mm512_testn_epi32_mask(codes, codes), _mm512_set1_epi32(0x00400000));
  bits = _mm512_mask_mov_epi32(
      bits, _mm512_cmpeq_epi32_mask(codes, _mm512_set1_epi32(0xFF)), _mm512_set1_epi32(0x7FC00000));
  return _mm512_castsi512_ps(bits);
}

inline __m512 load_e4m3(const std::byte* scales) {
  const __m512i codes =
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales)));
  const __m512i sign = _mm512_slli_epi32(_mm512_and_si512(codes, _mm512_set1_epi32(0x80)), 24);
  const __m512i magnitude = _mm512_and_si512(codes, _mm512_set1_epi32(0x7F));
  // The bits in the f32 fields give the value times 2^-120, subnormals included.
  const __m512 scaled = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(magnitude, 20)),
                                      _mm512_set1_ps(0x1p120F));
  const __m512i bits =
      _mm512_mask_mov_epi32(_mm512_castps_si512(scaled),
                            _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7F)),
                            _mm512_set1_epi32(0x7FC00000));
  return _mm512_castsi512_ps(_mm512_or_si512(bits, sign));
}

inline __m512 load_scales(const std::byte* scales, DType dtype) {
  const auto* const halves = reinterpret_cast<const __m256i*>(scales);
  switch (dtype) {
    case DType::kF8E8m0:
      return load_e8m0(scales);
    case DType::kF8E4m3:
      return load_e4m3(scales);
    case DType::kBf16:
      return _mm512_castsi512_ps(
          _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(halves)), 16));
    case DType::kF16:
      return _mm512_cvtph_ps(_mm256_loadu_si256(halves));
    default:
      return _mm512_loadu_ps(scales);
  }
}

// --- decoders to bf16 pairs (layouts: kernels/packed_weight.h) ---

inline __m512i load_vector(const std::byte* codes) { return _mm512_load_si512(codes); }

// 4 values of k per row to two vectors of pairs. Exact; NaN stays NaN.
inline void e4m3_to_bf16(__m512i codes, __m512i (&pairs)[2]) {
  const E4m3Bf16Tables& tables = kE4m3Bf16Tables;
  const __m512i low = _mm512_permutex2var_epi8(
      _mm512_load_si512(tables.low.data()), codes, _mm512_load_si512(tables.low.data() + 64));
  const __m512i magnitude = _mm512_permutex2var_epi8(
      _mm512_load_si512(tables.high.data()), codes, _mm512_load_si512(tables.high.data() + 64));
  // magnitude | (codes & 0x80)
  const __m512i high =
      _mm512_ternarylogic_epi32(magnitude, codes, _mm512_set1_epi8(static_cast<char>(0x80)), 0xF8);
  pairs[0] = _mm512_unpacklo_epi8(low, high);
  pairs[1] = _mm512_unpackhi_epi8(low, high);
}
