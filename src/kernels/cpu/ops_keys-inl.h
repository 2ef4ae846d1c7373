// Attention over gathered keys and the indexer's scores. Both walk a list of keys in blocks of
// kLanes: a block is fetched once (into scratch, as f32) and used by every head.

struct CopyRow {
  const float* x;
  float* y;
  template <class Part>
  void operator()(int64_t i, Part part) const {
    store(y + i, load(x + i, part), part);
  }
};

// y[i] = code i * scale: `factor` is the scale times 2^8.
struct WidenE4m3 {
  const uint8_t* x;
  Vec factor;
  float* y;
  template <class Part>
  void operator()(int64_t i, Part part) const {
    store(y + i, mul(load_e4m3_scaled(x + i, part), factor), part);
  }
};
inline void widen_e4m3(const uint8_t* x, int64_t n, float scale, float* y) {
  for_each_part(0, n, WidenE4m3{x, set1(scale * 0x1p8f), y});
}

inline float e8m0_scale(uint8_t code) {
  const uint32_t bits = code == 0xFF ? 0x7FC00000U : static_cast<uint32_t>(code) << 23;
  return __builtin_bit_cast(float, bits);
}

// A quant::Fp8KeyLayout row.
inline void widen_fp8_key(const uint8_t* row, int64_t num_codes, int64_t d, float* y) {
  const int64_t num_rotary = d - num_codes;
  const uint8_t* scales = row + num_codes + 2 * num_rotary;
  for (int64_t i = 0; i < num_codes; i += quant::kFp8KeyBlock) {
    widen_e4m3(row + i, quant::kFp8KeyBlock, e8m0_scale(*scales++), y + i);
  }
  widen_bf16(reinterpret_cast<const uint16_t*>(row + num_codes), num_rotary, y + num_codes);
}

// The rows of one block of keys, copied or widened to f32.
struct KeyBlock {
  // Copying pays from a few heads on: addresses 4 KB apart share a set of the first-level cache,
  // and rows of d = 512 are 2 KB long, so gathered rows evict each other. Padded copies do not.
  static constexpr int64_t kPadding = 16;

  const float* rows[kLanes];
  alignas(64) float scratch[kLanes * (kMaxKeyWidth + kPadding)];

  void set(int64_t lane, const void* pool, int64_t index, int64_t d, const KeyRows& from) {
    float* copy = scratch + lane * (d + kPadding);
    const uint8_t* row = static_cast<const uint8_t*>(pool) + index * from.row_bytes;
    switch (from.storage) {
      case KeyStorage::kF32:
        for_each_part(0, d, CopyRow{reinterpret_cast<const float*>(row), copy});
        break;
      case KeyStorage::kBf16:
        widen_bf16(reinterpret_cast<const uint16_t*>(row), d, copy);
        break;
      case KeyStorage::kFp8Key:
        widen_fp8_key(row, from.num_codes, d, copy);
        break;
      case KeyStorage::kFp8IndexKey:
        widen_e4m3(row, d, *reinterpret_cast<const float*>(row + d), copy);
        break;
    }
    rows[lane] = copy;
  }
  // Lanes without a key repeat lane 0; their products are masked by the caller.
  void pad(int64_t from) {
    for (int64_t lane = from; lane < kLanes; ++lane) rows[lane] = rows[0];
  }
};

// --- attention -----------------------------------------------------------------------------------
// Per head and key: 2 d multiply-adds and 4 d bytes of key (2 d for bf16, about d for
// FP8), the bytes once per task.

// Online softmax of one head: maximum so far and the sum of exponentials relative to it.
struct SoftmaxState {
  float max;
  float denominator;
};

inline constexpr float kLowest = -3.402823466e38f;  // a maximum that -inf can be subtracted from

inline SoftmaxState start_softmax(float sink) {
  const float max = sink > kLowest ? sink : kLowest;
  return {max, sink > kLowest ? 1.0f : 0.0f};
}

// Replaces `scores` of `count` keys by their exponentials, updates the state, and returns the
// factor that brings earlier sums to the new maximum.
inline float update_softmax(SoftmaxState& state, Vec& scores, int64_t count) {
  const Vec masked = keep_first(scores, count, set1(-__builtin_inff()));
  const float block_max = max_lane(masked);
  const float new_max = block_max > state.max ? block_max : state.max;
  scores = exp(sub(masked, set1(new_max)));
  float rescale = 1.0f;
  if (new_max > state.max) {
    alignas(64) float lane[kLanes];
    store(lane, exp(set1(state.max - new_max)));
    rescale = lane[0];
  }
  state.max = new_max;
  state.denominator = state.denominator * rescale + sum(scores);
  return rescale;
}

// out_h[i, part] = out_h[i, part] * rescale[h] + sum_j weights[h][j] * rows[j][i, part].
template <int kHeads, int64_t kVectors, class Part>
inline void accumulate_values(const float* const* rows,
                              const float (&weights)[2][kLanes],
                              const float (&rescale)[2],
                              int64_t count,
                              int64_t i,
                              Part part,
                              float* const (&out)[kHeads]) {
  Vec acc[kHeads][kVectors];
  NIBBLE_UNROLL for (int h = 0; h < kHeads; ++h) {
    const Vec factor = set1(rescale[h]);
    NIBBLE_UNROLL for (int64_t v = 0; v < kVectors; ++v) {
      acc[h][v] = mul(load(out[h] + i + v * kLanes, part), factor);
    }
  }
  for (int64_t j = 0; j < count; ++j) {
    const float* row = rows[j] + i;
    Vec p[kHeads];
    NIBBLE_UNROLL for (int h = 0; h < kHeads; ++h) p[h] = set1(weights[h][j]);
    NIBBLE_UNROLL for (int64_t v = 0; v < kVectors; ++v) {
      const Vec value = load(row + v * kLanes, part);
      NIBBLE_UNROLL for (int h = 0; h < kHeads; ++h) acc[h][v] = fma(p[h], value, acc[h][v]);
    }
  }
  NIBBLE_UNROLL for (int h = 0; h < kHeads; ++h) {
    NIBBLE_UNROLL for (int64_t v = 0; v < kVectors; ++v) {
      store(out[h] + i + v * kLanes, acc[h][v], part);
    }
  }
}

template <int kHeads>
inline void attend_block(const AttentionTask& task,
                         const KeyBlock& block,
                         int64_t count,
                         int64_t head,
                         SoftmaxState* states) {
  const int64_t d = task.d;
  const float* q[kHeads];
  float* out[kHeads];
  NIBBLE_UNROLL for (int h = 0; h < kHeads; ++h) {
    q[h] = task.q + (head + h) * d;
    out[h] = task.out + (head + h) * d;
  }

  Vec scores[kHeads];
  dot_rows(q, block.rows, d, scores);
  alignas(64) float weights[2][kLanes];
  float rescale[2];
  NIBBLE_UNROLL for (int h = 0; h < kHeads; ++h) {
    scores[h] = mul(scores[h], set1(task.scale));
    rescale[h] = update_softmax(states[head + h], scores[h], count);
    store(weights[h], scores[h]);
  }

  int64_t i = 0;
  for (; i + kTile * kLanes <= d; i += kTile * kLanes) {
    accumulate_values<kHeads, kTile>(block.rows, weights, rescale, count, i, Full{}, out);
  }
  for (; i + kLanes <= d; i += kLanes) {
    accumulate_values<kHeads, 1>(block.rows, weights, rescale, count, i, Full{}, out);
  }
  if (i < d) {
    accumulate_values<kHeads, 1>(block.rows, weights, rescale, count, i, First{d - i}, out);
  }
}

struct ScaleRow {
  float* x;
  Vec factor;
  template <class Part>
  void operator()(int64_t i, Part part) const {
    store(x + i, mul(load(x + i, part), factor), part);
  }
};

// Up to kMaxHeads heads, so that their softmax states fit the stack.
inline constexpr int64_t kMaxHeads = 64;

inline void attend_heads(const AttentionTask& task) {
  KeyBlock block;
  SoftmaxState states[kMaxHeads];
  for (int64_t h = 0; h < task.heads; ++h) states[h] = start_softmax(task.sink[h]);
  for (int64_t i = 0; i < task.heads * task.d; ++i) task.out[i] = 0.0f;

  const int64_t num_keys = task.num_window + task.num_entries;
  for (int64_t first = 0; first < num_keys; first += kLanes) {
    const int64_t count = num_keys - first < kLanes ? num_keys - first : kLanes;
    for (int64_t lane = 0; lane < count; ++lane) {
      const int64_t key = first + lane;
      if (key < task.num_window) {
        block.set(lane, task.window, task.window_rows[key], task.d, task.key_rows);
      } else {
        const int64_t row = task.entry_rows[key - task.num_window];
        block.set(lane, task.entries, row, task.d, task.key_rows);
      }
    }
    block.pad(count);
    int64_t head = 0;
    for (; head + 2 <= task.heads; head += 2) attend_block<2>(task, block, count, head, states);
    if (head < task.heads) attend_block<1>(task, block, count, head, states);
  }

  for (int64_t h = 0; h < task.heads; ++h) {
    const float denominator = states[h].denominator;
    const Vec factor = set1(denominator > 0.0f ? 1.0f / denominator : 0.0f);
    for_each_part(0, task.d, ScaleRow{task.out + h * task.d, factor});
  }
}

inline void attend(const AttentionTask& task) {
  for (int64_t head = 0; head < task.heads; head += kMaxHeads) {
    AttentionTask group = task;
    group.q += head * task.d;
    group.sink += head;
    group.out += head * task.d;
    group.heads = task.heads - head < kMaxHeads ? task.heads - head : kMaxHeads;
    attend_heads(group);
  }
}

// --- indexer -------------------------------------------------------------------------------------
// Per head and entry: d multiply-adds; 4 d bytes per entry (2 d for bf16, d + 4 for FP8).

// scores[lane] + sum over the kHeads heads from `head` on of relu(q_h . key) * weight_h.
template <int kHeads>
inline Vec add_head_scores(const IndexerTask& task,
                           const KeyBlock& block,
                           int64_t head,
                           Vec scores) {
  const float* q[kHeads];
  NIBBLE_UNROLL for (int h = 0; h < kHeads; ++h) q[h] = task.q + (head + h) * task.d;
  Vec dots[kHeads];
  dot_rows(q, block.rows, task.d, dots);
  NIBBLE_UNROLL for (int h = 0; h < kHeads; ++h) {
    scores = fma(max(dots[h], set1(0.0f)), set1(task.head_weights[head + h]), scores);
  }
  return scores;
}

inline void indexer_scores(const IndexerTask& task) {
  KeyBlock block;
  for (int64_t first = task.begin; first < task.end; first += kLanes) {
    const int64_t count = task.end - first < kLanes ? task.end - first : kLanes;
    for (int64_t lane = 0; lane < count; ++lane) {
      const int64_t entry = first + lane;
      const int64_t page = task.pages[entry / task.entries_per_page];
      const int64_t row = page * task.entries_per_page + entry % task.entries_per_page;
      block.set(lane, task.base, row, task.d, task.key_rows);
    }
    block.pad(count);

    Vec scores = set1(0.0f);
    int64_t head = 0;
    for (; head + 2 <= task.heads; head += 2) {
      scores = add_head_scores<2>(task, block, head, scores);
    }
    if (head < task.heads) scores = add_head_scores<1>(task, block, head, scores);
    scores = add(scores, set1(0.0f));  // -0 + 0 is +0
    if (count == kLanes) {
      store(task.scores + first, scores, Full{});
    } else {
      store(task.scores + first, scores, First{count});
    }
  }
}
