// AVX2 vectors for the ops: 8 floats, 4 doubles. Included inside the region of its namespace.
// Functions whose last parameter is a part (Full, First) touch all lanes or the first n of them.

using Vec = __m256;
using Half = __m128;
using Wide = __m256d;
inline constexpr int64_t kLanes = 8;
inline constexpr int64_t kTile = 4;  // vectors that one sum_tile reduces; lanes of a Half
inline constexpr int64_t kWideLanes = 4;

inline __m256i mask_of(First part) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int32_t>(part.n)), lane);
}

inline Vec load(const float* p, Full = {}) { return _mm256_loadu_ps(p); }
inline Vec load(const float* p, First part) { return _mm256_maskload_ps(p, mask_of(part)); }
inline void store(float* p, Vec v, Full = {}) { _mm256_storeu_ps(p, v); }
inline void store(float* p, Vec v, First part) { _mm256_maskstore_ps(p, mask_of(part), v); }

inline __m128i load_u16(const uint16_t* p, Full = {}) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
inline __m128i load_u16(const uint16_t* p, First part) {
  uint16_t lanes[kLanes] = {};
  for (int64_t i = 0; i < part.n; ++i) lanes[i] = p[i];
  return load_u16(lanes);
}
template <class Part>
Vec load_bf16(const uint16_t* p, Part part) {
  const __m256i bits = _mm256_cvtepu16_epi32(load_u16(p, part));
  return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
}
template <class Part>
Vec load_f16(const uint16_t* p, Part part) {
  return _mm256_cvtph_ps(load_u16(p, part));
}

// E4M3 codes times 2^-8: their bits in the fields of F16. No code may be NaN.
inline Vec load_e4m3_scaled(const uint8_t* p, Full = {}) {
  const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  return _mm256_cvtph_ps(
      _mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16(static_cast<int16_t>(0xBFFF))));
}
inline Vec load_e4m3_scaled(const uint8_t* p, First part) {
  uint8_t lanes[kLanes] = {};
  for (int64_t i = 0; i < part.n; ++i) lanes[i] = p[i];
  return load_e4m3_scaled(lanes);
}

inline Vec set1(float x) { return _mm256_set1_ps(x); }
inline Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec fnma(Vec a, Vec b, Vec c) { return _mm256_fnmadd_ps(a, b, c); }
// NaN in b passes through max and min.
inline Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
inline Vec sqrt(Vec a) { return _mm256_sqrt_ps(a); }
inline Vec abs(Vec a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
inline Vec round(Vec a) {
  return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// a * 2^n for integral n in [-126, 128]; 2^128 may count as infinite.
inline Vec scale_exp2(Vec a, Vec n) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}
// 0 where x < limit, else a.
inline Vec zero_below(Vec a, Vec x, Vec limit) {
  return _mm256_andnot_ps(_mm256_cmp_ps(x, limit, _CMP_LT_OQ), a);
}
// `fill` in the lanes from n on.
inline Vec keep_first(Vec a, int64_t n, Vec fill) {
  return n >= kLanes ? a : _mm256_blendv_ps(fill, a, _mm256_castsi256_ps(mask_of(First{n})));
}
inline Vec swap_pairs(Vec a) { return _mm256_permute_ps(a, 0xB1); }

inline Half low(Vec a) { return _mm256_castps256_ps128(a); }
inline Half high(Vec a) { return _mm256_extractf128_ps(a, 1); }
inline Vec join(Half lo, Half hi) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(lo), hi, 1);
}
inline void store(float* p, Half v) { _mm_storeu_ps(p, v); }

inline float sum(Vec a) {
  __m128 q = _mm_add_ps(low(a), high(a));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
inline float max_lane(Vec a) {
  __m128 q = _mm_max_ps(low(a), high(a));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}
// Lane i of the result is the sum of the lanes of v[i]; the same tree of additions for every i.
inline Half sum_tile(const Vec (&v)[kTile]) {
  const __m256 quad = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
  return _mm_add_ps(low(quad), high(quad));
}

// --- doubles, for angles -------------------------------------------------------------------------

inline Wide widen(const float* p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }
inline void narrow(float* p, Wide v) { _mm_storeu_ps(p, _mm256_cvtpd_ps(v)); }
inline Wide wide_set1(double x) { return _mm256_set1_pd(x); }
inline Wide wide_add(Wide a, Wide b) { return _mm256_add_pd(a, b); }
inline Wide wide_sub(Wide a, Wide b) { return _mm256_sub_pd(a, b); }
inline Wide wide_mul(Wide a, Wide b) { return _mm256_mul_pd(a, b); }
inline Wide wide_fma(Wide a, Wide b, Wide c) { return _mm256_fmadd_pd(a, b, c); }
inline Wide wide_fnma(Wide a, Wide b, Wide c) { return _mm256_fnmadd_pd(a, b, c); }
// b where bit 0 of the lane's mantissa is set, else a.
inline Wide select_by_bit0(Wide bits, Wide a, Wide b) {
  const __m256i shifted = _mm256_slli_epi64(_mm256_castpd_si256(bits), 63);
  return _mm256_blendv_pd(a, b, _mm256_castsi256_pd(shifted));
}
// -v where bit 1 of the lane's mantissa is set, else v.
inline Wide negate_by_bit1(Wide bits, Wide v) {
  const __m256i shifted = _mm256_slli_epi64(_mm256_castpd_si256(bits), 62);
  return _mm256_xor_pd(v, _mm256_and_pd(_mm256_castsi256_pd(shifted), _mm256_set1_pd(-0.0)));
}

// --- comparisons, for selection ------------------------------------------------------------------
// Bit i is set where lane i compares true.

inline uint32_t mask_at_least(Vec a, Vec b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ)));
}
inline uint32_t mask_equal(Vec a, Vec b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)));
}
