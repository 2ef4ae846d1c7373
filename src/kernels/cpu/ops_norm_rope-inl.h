// RMS norm and rotary embedding.

struct NormRow {
  const float* x;
  const float* gamma;
  Vec factor;
  float* y;
  template <class Part>
  void operator()(int64_t i, Part part) const {
    const Vec scaled = mul(load(x + i, part), factor);
    store(y + i, gamma == nullptr ? scaled : mul(scaled, load(gamma + i, part)), part);
  }
};

inline void rms_norm(const float* x, const float* gamma, float eps, int64_t k, float* y) {
  for_each_part(0, k, NormRow{x, gamma, set1(inverse_rms(x, k, eps)), y});
}

// sin and cos of kWideLanes angles, for |angle| < 2^31: the quadrant is removed in double with pi/2
// in two parts, so the reduced angle is exact to about 1e-16; the Taylor series reach 1e-13.
inline void sin_cos(Wide angle, Wide& sin, Wide& cos) {
  // Adding 1.5 * 2^52 rounds to an integer, which appears in the low bits of the mantissa.
  const Wide magic = wide_set1(6755399441055744.0);
  const Wide bits = wide_fma(angle, wide_set1(0.63661977236758134), magic);
  const Wide n = wide_sub(bits, magic);
  const Wide r = wide_fnma(
      n, wide_set1(6.123233995736766e-17), wide_fnma(n, wide_set1(1.5707963267948966), angle));
  const Wide z = wide_mul(r, r);

  Wide s = wide_set1(1.0 / 6227020800.0);
  s = wide_fma(s, z, wide_set1(-1.0 / 39916800.0));
  s = wide_fma(s, z, wide_set1(1.0 / 362880.0));
  s = wide_fma(s, z, wide_set1(-1.0 / 5040.0));
  s = wide_fma(s, z, wide_set1(1.0 / 120.0));
  s = wide_fma(s, z, wide_set1(-1.0 / 6.0));
  s = wide_fma(wide_mul(s, z), r, r);

  Wide c = wide_set1(-1.0 / 87178291200.0);
  c = wide_fma(c, z, wide_set1(1.0 / 479001600.0));
  c = wide_fma(c, z, wide_set1(-1.0 / 3628800.0));
  c = wide_fma(c, z, wide_set1(1.0 / 40320.0));
  c = wide_fma(c, z, wide_set1(-1.0 / 720.0));
  c = wide_fma(c, z, wide_set1(1.0 / 24.0));
  c = wide_fma(c, z, wide_set1(-0.5));
  c = wide_fma(c, z, wide_set1(1.0));

  // Quadrants 1 and 3 swap the two; 2 and 3 negate the sine, 1 and 2 the cosine.
  sin = negate_by_bit1(bits, select_by_bit0(bits, s, c));
  cos = negate_by_bit1(wide_add(bits, wide_set1(1.0)), select_by_bit0(bits, c, s));
}

// Frequencies that one pass of rope() handles.
inline constexpr int64_t kRopeChunk = 32;

// Factors of the pairs (2i, 2i + 1): out = x * cos + swapped x * sin, with sin = (-sin, +sin).
struct Rotation {
  alignas(64) float cos[2 * kRopeChunk];
  alignas(64) float sin[2 * kRopeChunk];
};

inline void fill_rotation(
    const float* freqs, int64_t count, float position, bool inverse, Rotation& rotation) {
  for (int64_t i = 0; i < count; i += kWideLanes) {
    float angles[kWideLanes] = {};
    for (int64_t lane = 0; lane < kWideLanes && i + lane < count; ++lane) {
      angles[lane] = position * freqs[i + lane];
    }
    Wide sin;
    Wide cos;
    sin_cos(widen(angles), sin, cos);
    float sines[kWideLanes];
    float cosines[kWideLanes];
    narrow(sines, sin);
    narrow(cosines, cos);
    for (int64_t lane = 0; lane < kWideLanes && i + lane < count; ++lane) {
      const int64_t pair = 2 * (i + lane);
      const float s = inverse ? -sines[lane] : sines[lane];
      rotation.cos[pair] = rotation.cos[pair + 1] = cosines[lane];
      rotation.sin[pair] = -s;
      rotation.sin[pair + 1] = s;
    }
  }
}

struct RotatePairs {
  float* x;
  const Rotation* rotation;
  template <class Part>
  void operator()(int64_t i, Part part) const {
    const Vec pairs = load(x + i, part);
    const Vec turned = mul(swap_pairs(pairs), load(rotation->sin + i, part));
    store(x + i, fma(pairs, load(rotation->cos + i, part), turned), part);
  }
};

inline void rope(const RopeTask& task) {
  for (int64_t first = 0; first < task.num_freqs; first += kRopeChunk) {
    const int64_t left = task.num_freqs - first;
    const int64_t count = left < kRopeChunk ? left : kRopeChunk;
    Rotation rotation;
    fill_rotation(task.freqs + first, count, task.position, task.inverse, rotation);
    for (int64_t h = 0; h < task.heads; ++h) {
      float* x = task.x + (h + 1) * task.d - 2 * left;
      for_each_part(0, 2 * count, RotatePairs{x, &rotation});
    }
  }
}
