// AVX-512 vectors for the ops: 16 floats, 8 doubles. Included inside the region of its namespace.
// Functions whose last parameter is a part (Full, First) touch all lanes or the first n of them.

using Vec = __m512;
using Half = __m256;
using Wide = __m512d;
inline constexpr int64_t kLanes = 16;
inline constexpr int64_t kTile = 8;  // vectors that one sum_tile reduces; lanes of a Half
inline constexpr int64_t kWideLanes = 8;

inline __mmask16 mask_of(First part) { return static_cast<__mmask16>((1U << part.n) - 1U); }

inline Vec load(const float* p, Full = {}) { return _mm512_loadu_ps(p); }
inline Vec load(const float* p, First part) { return _mm512_maskz_loadu_ps(mask_of(part), p); }
inline void store(float* p, Vec v, Full = {}) { _mm512_storeu_ps(p, v); }
inline void store(float* p, Vec v, First part) { _mm512_mask_storeu_ps(p, mask_of(part), v); }

inline Vec bf16_to_f32(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
inline __m256i load_u16(const uint16_t* p, Full = {}) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline __m256i load_u16(const uint16_t* p, First part) {
  return _mm256_maskz_loadu_epi16(mask_of(part), p);
}
template <class Part>
Vec load_bf16(const uint16_t* p, Part part) {
  return bf16_to_f32(load_u16(p, part));
}
template <class Part>
Vec load_f16(const uint16_t* p, Part part) {
  return _mm512_cvtph_ps(load_u16(p, part));
}

// E4M3 codes times 2^-8: their bits in the fields of F16. No code may be NaN.
inline Vec e4m3_to_scaled(__m128i codes) {
  const __m256i wide = _mm256_cvtepi8_epi16(codes);
  return _mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(wide, 7),
                                          _mm256_set1_epi16(static_cast<int16_t>(0xBFFF))));
}
inline Vec load_e4m3_scaled(const uint8_t* p, Full = {}) {
  return e4m3_to_scaled(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Vec load_e4m3_scaled(const uint8_t* p, First part) {
  return e4m3_to_scaled(_mm_maskz_loadu_epi8(mask_of(part), p));
}

inline Vec set1(float x) { return _mm512_set1_ps(x); }
inline Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec fnma(Vec a, Vec b, Vec c) { return _mm512_fnmadd_ps(a, b, c); }
// NaN in b passes through max and min.
inline Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
inline Vec sqrt(Vec a) { return _mm512_sqrt_ps(a); }
inline Vec abs(Vec a) { return _mm512_abs_ps(a); }
inline Vec round(Vec a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// a * 2^n for integral n in [-126, 128]; 2^128 may count as infinite.
inline Vec scale_exp2(Vec a, Vec n) { return _mm512_scalef_ps(a, n); }
// 0 where x < limit, else a.
inline Vec zero_below(Vec a, Vec x, Vec limit) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), a);
}
// `fill` in the lanes from n on.
inline Vec keep_first(Vec a, int64_t n, Vec fill) {
  return n >= kLanes ? a : _mm512_mask_mov_ps(fill, mask_of(First{n}), a);
}
inline Vec swap_pairs(Vec a) { return _mm512_permute_ps(a, 0xB1); }

inline Half low(Vec a) { return _mm512_castps512_ps256(a); }
inline Half high(Vec a) { return _mm512_extractf32x8_ps(a, 1); }
inline Vec join(Half lo, Half hi) { return _mm512_insertf32x8(_mm512_castps256_ps512(lo), hi, 1); }
inline void store(float* p, Half v) { _mm256_storeu_ps(p, v); }

inline float sum(Vec a) {
  const __m256 h = _mm256_add_ps(low(a), high(a));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
inline float max_lane(Vec a) {
  const __m256 h = _mm256_max_ps(low(a), high(a));
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

inline __m512 sum_pair(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
}
inline __m512 sum_quad(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512d ab = _mm512_castps_pd(sum_pair(a, b));
  const __m512d cd = _mm512_castps_pd(sum_pair(c, d));
  return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)),
                       _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
}
// Lane i of the result is the sum of the lanes of v[i]; the same tree of additions for every i.
inline Half sum_tile(const Vec (&v)[kTile]) {
  const __m512 a = sum_quad(v[0], v[1], v[2], v[3]);
  const __m512 b = sum_quad(v[4], v[5], v[6], v[7]);
  const __m512 c =
      _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
  return low(_mm512_add_ps(_mm512_shuffle_f32x4(c, c, 0x88), _mm512_shuffle_f32x4(c, c, 0xDD)));
}

// --- doubles, for angles -------------------------------------------------------------------------

inline Wide widen(const float* p) { return _mm512_cvtps_pd(_mm256_loadu_ps(p)); }
inline void narrow(float* p, Wide v) { _mm256_storeu_ps(p, _mm512_cvtpd_ps(v)); }
inline Wide wide_set1(double x) { return _mm512_set1_pd(x); }
inline Wide wide_add(Wide a, Wide b) { return _mm512_add_pd(a, b); }
inline Wide wide_sub(Wide a, Wide b) { return _mm512_sub_pd(a, b); }
inline Wide wide_mul(Wide a, Wide b) { return _mm512_mul_pd(a, b); }
inline Wide wide_fma(Wide a, Wide b, Wide c) { return _mm512_fmadd_pd(a, b, c); }
inline Wide wide_fnma(Wide a, Wide b, Wide c) { return _mm512_fnmadd_pd(a, b, c); }
// b where bit 0 of the lane's mantissa is set, else a.
inline Wide select_by_bit0(Wide bits, Wide a, Wide b) {
  const __m512i shifted = _mm512_slli_epi64(_mm512_castpd_si512(bits), 63);
  return _mm512_mask_mov_pd(a, _mm512_movepi64_mask(shifted), b);
}
// -v where bit 1 of the lane's mantissa is set, else v.
inline Wide negate_by_bit1(Wide bits, Wide v) {
  const __m512i shifted = _mm512_slli_epi64(_mm512_castpd_si512(bits), 62);
  return _mm512_xor_pd(v, _mm512_and_pd(_mm512_castsi512_pd(shifted), _mm512_set1_pd(-0.0)));
}

// --- comparisons, for selection ------------------------------------------------------------------
// Bit i is set where lane i compares true.

inline uint32_t mask_at_least(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
inline uint32_t mask_equal(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
