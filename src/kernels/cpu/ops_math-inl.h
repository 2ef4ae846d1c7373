// Loops over parts, elementary functions and dot products on the vectors of one instruction set.

// Calls step(i, part) for the vectors that cover [begin, end).
template <class Step>
void for_each_part(int64_t begin, int64_t end, const Step& step) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) step(i, Full{});
  if (i < end) step(i, First{end - i});
}

// e^x with a relative error below 3e-7. Infinite from e^88.8 up (or a little earlier), 0 below
// e^-87.3, where f32 becomes subnormal. NaN stays NaN.
inline Vec exp(Vec x) {
  const Vec smallest = set1(-87.3365f);
  const Vec clamped = min(set1(89.0f), max(smallest, x));
  // x = n ln 2 + r, |r| <= ln(2) / 2; the high part of ln 2 has trailing zeros, so n * hi is exact.
  const Vec n = round(mul(clamped, set1(1.44269504f)));
  const Vec r = fnma(n, set1(-2.12194440e-4f), fnma(n, set1(0.693359375f), clamped));
  // Taylor terms to r^7 / 7!; the next one is below 6e-9.
  Vec p = set1(1.0f / 5040);
  p = fma(p, r, set1(1.0f / 720));
  p = fma(p, r, set1(1.0f / 120));
  p = fma(p, r, set1(1.0f / 24));
  p = fma(p, r, set1(1.0f / 6));
  p = fma(p, r, set1(0.5f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  return zero_below(scale_exp2(p, n), x, smallest);
}

// log(1 + x) for x in [0, 1], accurate relative to the result also near 0.
inline Vec log1p_unit(Vec x) {
  // 2 atanh(s) with s = x / (2 + x) <= 1/3; the first dropped term is s^17 / 17, below 2e-9 s.
  const Vec s = div(x, add(x, set1(2.0f)));
  const Vec t = mul(s, s);
  Vec p = set1(1.0f / 15);
  p = fma(p, t, set1(1.0f / 13));
  p = fma(p, t, set1(1.0f / 11));
  p = fma(p, t, set1(1.0f / 9));
  p = fma(p, t, set1(1.0f / 7));
  p = fma(p, t, set1(1.0f / 5));
  p = fma(p, t, set1(1.0f / 3));
  p = fma(p, t, set1(1.0f));
  return mul(add(s, s), p);
}

// 1 / (1 + e^-x).
inline Vec sigmoid(Vec x) {
  const Vec one = set1(1.0f);
  return div(one, add(one, exp(sub(set1(0.0f), x))));
}

inline float sum_of_squares(const float* x, int64_t n) {
  Vec acc[4] = {set1(0.0f), set1(0.0f), set1(0.0f), set1(0.0f)};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int64_t v = 0; v < 4; ++v) {
      const Vec part = load(x + i + v * kLanes);
      acc[v] = fma(part, part, acc[v]);
    }
  }
  for (; i + kLanes <= n; i += kLanes) {
    const Vec part = load(x + i);
    acc[0] = fma(part, part, acc[0]);
  }
  if (i < n) {
    const Vec part = load(x + i, First{n - i});
    acc[1] = fma(part, part, acc[1]);
  }
  return sum(add(add(acc[0], acc[1]), add(acc[2], acc[3])));
}

inline float inverse_rms(const float* x, int64_t n, float eps) {
  return 1.0f / __builtin_sqrtf(sum_of_squares(x, n) / static_cast<float>(n) + eps);
}

// acc[q][r] += x_q[i, part] * row_r[i, part].
template <int kQueries, class Part>
inline void dot_step(const float* const (&x)[kQueries],
                     const float* const* rows,
                     int64_t i,
                     Part part,
                     Vec (&acc)[kQueries][kTile]) {
  Vec xs[kQueries];
  NIBBLE_UNROLL for (int q = 0; q < kQueries; ++q) xs[q] = load(x[q] + i, part);
  NIBBLE_UNROLL for (int64_t r = 0; r < kTile; ++r) {
    const Vec row = load(rows[r] + i, part);
    NIBBLE_UNROLL for (int q = 0; q < kQueries; ++q) acc[q][r] = fma(xs[q], row, acc[q][r]);
  }
}

// Dot products of kQueries vectors with kTile rows: lane r of out[q] is x_q . rows[r]. One chain of
// additions per product and lane, whatever kQueries is, so a product has the same bits in any tile.
template <int kQueries>
inline void dot_tile(const float* const (&x)[kQueries],
                     const float* const* rows,
                     int64_t n,
                     Half (&out)[kQueries]) {
  Vec acc[kQueries][kTile];
  NIBBLE_UNROLL for (int q = 0; q < kQueries; ++q) {
    NIBBLE_UNROLL for (int64_t r = 0; r < kTile; ++r) acc[q][r] = set1(0.0f);
  }
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) dot_step(x, rows, i, Full{}, acc);
  if (i < n) dot_step(x, rows, i, First{n - i}, acc);
  NIBBLE_UNROLL for (int q = 0; q < kQueries; ++q) out[q] = sum_tile(acc[q]);
}

// As dot_tile for kLanes rows.
template <int kQueries>
inline void dot_rows(const float* const (&x)[kQueries],
                     const float* const* rows,
                     int64_t n,
                     Vec (&out)[kQueries]) {
  Half lo[kQueries];
  Half hi[kQueries];
  dot_tile(x, rows, n, lo);
  dot_tile(x, rows + kTile, n, hi);
  NIBBLE_UNROLL for (int q = 0; q < kQueries; ++q) out[q] = join(lo[q], hi[q]);
}

struct WidenBf16 {
  const uint16_t* x;
  float* y;
  template <class Part>
  void operator()(int64_t i, Part part) const {
    store(y + i, load_bf16(x + i, part), part);
  }
};
inline void widen_bf16(const uint16_t* x, int64_t n, float* y) {
  for_each_part(0, n, WidenBf16{x, y});
}

struct WidenF16 {
  const uint16_t* x;
  float* y;
  template <class Part>
  void operator()(int64_t i, Part part) const {
    store(y + i, load_f16(x + i, part), part);
  }
};
inline void widen_f16(const uint16_t* x, int64_t n, float* y) {
  for_each_part(0, n, WidenF16{x, y});
}
