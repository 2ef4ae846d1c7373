// Hyper-connections: mixing products, split with Sinkhorn, read and write of the streams.

// Products of up to kTile rows of fn, starting at `row`, with kTokens states.
template <int kTokens>
inline void mix_tile(const HyperMixTask& task,
                     const float* const* rows,
                     int64_t row,
                     int64_t num_rows,
                     int64_t token) {
  const float* states[kTokens];
  NIBBLE_UNROLL for (int t = 0; t < kTokens; ++t) states[t] =
      task.state + (token + t) * task.state_stride;
  Half dots[kTokens];
  dot_tile(states, rows, task.width, dots);
  for (int t = 0; t < kTokens; ++t) {
    float lanes[kTile];
    store(lanes, dots[t]);
    float* mix = task.mix + (token + t) * task.mix_stride + row;
    for (int64_t r = 0; r < num_rows; ++r) mix[r] = lanes[r];
  }
}

// Cost: rows * width multiply-adds per token; fn is read once per pair of tokens.
inline void hyper_mix(const HyperMixTask& task) {
  for (int64_t row = task.row_begin; row < task.row_end; row += kTile) {
    const int64_t num_rows = task.row_end - row < kTile ? task.row_end - row : kTile;
    const float* rows[kTile];
    for (int64_t r = 0; r < kTile; ++r) {
      rows[r] = task.fn + (row + (r < num_rows ? r : 0)) * task.width;
    }
    int64_t token = 0;
    for (; token + 2 <= task.num_tokens; token += 2) {
      mix_tile<2>(task, rows, row, num_rows, token);
    }
    if (token < task.num_tokens) mix_tile<1>(task, rows, row, num_rows, token);
  }
}

// x[i] = sum_m pre[m] * state[m, i]
struct ReadStreams {
  const float* state;
  const float* pre;
  int64_t mult;
  int64_t d;
  float* x;
  template <class Part>
  void operator()(int64_t i, Part part) const {
    Vec sum = mul(set1(pre[0]), load(state + i, part));
    for (int64_t m = 1; m < mult; ++m) {
      sum = fma(set1(pre[m]), load(state + m * d + i, part), sum);
    }
    store(x + i, sum, part);
  }
};

inline __m128 sum_lanes(__m128 row) {
  const __m128 pairs = _mm_add_ps(row, _mm_shuffle_ps(row, row, 0xB1));
  return _mm_add_ps(pairs, _mm_shuffle_ps(pairs, pairs, 0x4E));
}

// Divides each column of four rows by its sum + eps.
inline void normalise_columns(__m128 (&rows)[4], __m128 eps) {
  const __m128 sum =
      _mm_add_ps(_mm_add_ps(rows[0], rows[1]), _mm_add_ps(_mm_add_ps(rows[2], rows[3]), eps));
  NIBBLE_UNROLL for (int64_t i = 0; i < 4; ++i) rows[i] = _mm_div_ps(rows[i], sum);
}

// Sinkhorn on four streams, one register per row. comb: exponentials of the logits, relative to
// the largest of their row.
inline void sinkhorn_4(float* comb, int32_t iterations, float eps) {
  const __m128 e = _mm_set1_ps(eps);
  __m128 rows[4];
  NIBBLE_UNROLL for (int64_t i = 0; i < 4; ++i) {
    const __m128 row = _mm_loadu_ps(comb + 4 * i);
    rows[i] = _mm_add_ps(_mm_div_ps(row, sum_lanes(row)), e);
  }
  normalise_columns(rows, e);
  for (int32_t iteration = 1; iteration < iterations; ++iteration) {
    NIBBLE_UNROLL for (int64_t i = 0; i < 4; ++i) {
      rows[i] = _mm_div_ps(rows[i], _mm_add_ps(sum_lanes(rows[i]), e));
    }
    normalise_columns(rows, e);
  }
  NIBBLE_UNROLL for (int64_t i = 0; i < 4; ++i) _mm_storeu_ps(comb + 4 * i, rows[i]);
}

inline void normalise(float* values, int64_t count, int64_t stride, float eps) {
  float sum = eps;
  for (int64_t i = 0; i < count; ++i) sum += values[i * stride];
  for (int64_t i = 0; i < count; ++i) values[i * stride] /= sum;
}

inline void sinkhorn_any(float* comb, int64_t size, int32_t iterations, float eps) {
  for (int64_t i = 0; i < size; ++i) normalise(comb + i * size, size, 1, 0.0f);
  for (int64_t i = 0; i < size * size; ++i) comb[i] += eps;
  for (int64_t j = 0; j < size; ++j) normalise(comb + j, size, size, eps);
  for (int32_t iteration = 1; iteration < iterations; ++iteration) {
    for (int64_t i = 0; i < size; ++i) normalise(comb + i * size, size, 1, eps);
    for (int64_t j = 0; j < size; ++j) normalise(comb + j, size, size, eps);
  }
}

struct ExpInPlace {
  float* x;
  template <class Part>
  void operator()(int64_t i, Part part) const {
    store(x + i, exp(load(x + i, part)), part);
  }
};
inline void subtract_max(float* values, int64_t count) {
  float max = values[0];
  for (int64_t i = 1; i < count; ++i) max = values[i] > max ? values[i] : max;
  for (int64_t i = 0; i < count; ++i) values[i] -= max;
}

inline void hyper_pre(const HyperSplit& split,
                      const float* state,
                      const float* mix,
                      float* x,
                      float* post,
                      float* comb) {
  const int64_t mult = split.mult;
  const int64_t num_rows = (2 + mult) * mult;
  const float rms = inverse_rms(state, mult * split.d, split.norm_eps);

  // Arguments of all exponentials of the split: -logit for the sigmoids, logit - row maximum for
  // the softmax.
  float terms[kMaxMixRows];
  for (int64_t j = 0; j < num_rows; ++j) {
    const int64_t part = j < mult ? 0 : j < 2 * mult ? 1 : 2;
    const float logit = mix[j] * rms * split.scale[part] + split.base[j];
    terms[j] = part == 2 ? logit : -logit;
  }
  float* comb_terms = terms + 2 * mult;
  for (int64_t i = 0; i < mult; ++i) subtract_max(comb_terms + i * mult, mult);
  for_each_part(0, num_rows, ExpInPlace{terms});

  float pre[kMaxHyperStreams];
  for (int64_t m = 0; m < mult; ++m) pre[m] = 1.0f / (1.0f + terms[m]) + split.hc_eps;
  for (int64_t m = 0; m < mult; ++m) post[m] = 2.0f / (1.0f + terms[mult + m]);
  for (int64_t i = 0; i < mult * mult; ++i) comb[i] = comb_terms[i];
  if (mult == 4) {
    sinkhorn_4(comb, split.sinkhorn_iters, split.hc_eps);
  } else {
    sinkhorn_any(comb, mult, split.sinkhorn_iters, split.hc_eps);
  }
  for_each_part(0, split.d, ReadStreams{state, pre, mult, split.d, x});
}

inline void hyper_head(const HyperSplit& split, const float* state, const float* mix, float* x) {
  const float rms = inverse_rms(state, split.mult * split.d, split.norm_eps);
  float pre[kMaxHyperStreams];
  for (int64_t m = 0; m < split.mult; ++m) {
    pre[m] = -(mix[m] * rms * split.scale[0] + split.base[m]);
  }
  for_each_part(0, split.mult, ExpInPlace{pre});
  for (int64_t m = 0; m < split.mult; ++m) pre[m] = 1.0f / (1.0f + pre[m]) + split.hc_eps;
  for_each_part(0, split.d, ReadStreams{state, pre, split.mult, split.d, x});
}

// state'[j, i] = post[j] * y[i] + sum_m comb[m, j] * state[m, i] for four streams.
struct WriteFourStreams {
  const float* y;
  const float* post;
  const float* comb;
  int64_t d;
  float* state;
  template <class Part>
  void operator()(int64_t i, Part part) const {
    const Vec update = load(y + i, part);
    Vec old[4];
    NIBBLE_UNROLL for (int64_t m = 0; m < 4; ++m) old[m] = load(state + m * d + i, part);
    NIBBLE_UNROLL for (int64_t j = 0; j < 4; ++j) {
      Vec sum = mul(set1(post[j]), update);
      NIBBLE_UNROLL for (int64_t m = 0; m < 4; ++m) {
        sum = fma(set1(comb[4 * m + j]), old[m], sum);
      }
      store(state + j * d + i, sum, part);
    }
  }
};

// The same for any number of streams.
struct WriteStreams {
  const float* y;
  const float* post;
  const float* comb;
  int64_t mult;
  int64_t d;
  float* state;
  template <class Part>
  void operator()(int64_t i, Part part) const {
    float old[kMaxHyperStreams][kLanes];
    for (int64_t m = 0; m < mult; ++m) store(old[m], load(state + m * d + i, part));
    for (int64_t j = 0; j < mult; ++j) {
      Vec sum = mul(set1(post[j]), load(y + i, part));
      for (int64_t m = 0; m < mult; ++m) sum = fma(set1(comb[m * mult + j]), load(old[m]), sum);
      store(state + j * d + i, sum, part);
    }
  }
};

inline void hyper_post(
    const float* y, const float* post, const float* comb, int64_t mult, int64_t d, float* state) {
  if (mult == 4) {
    for_each_part(0, d, WriteFourStreams{y, post, comb, d, state});
  } else {
    for_each_part(0, d, WriteStreams{y, post, comb, mult, d, state});
  }
}
