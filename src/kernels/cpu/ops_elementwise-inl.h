// Element-wise ops: the compressor's pooling, expert scores, SwiGLU and the sum over experts.

struct PoolChannels {
  const float* const* values;
  const float* const* gates;
  int64_t num_slots;
  float* out;
  template <class Part>
  void operator()(int64_t i, Part part) const {
    Vec largest = set1(-__builtin_inff());
    for (int64_t s = 0; s < num_slots; ++s) {
      if (gates[s] != nullptr) largest = max(largest, load(gates[s] + i, part));
    }
    Vec denominator = set1(0.0f);
    Vec sum = set1(0.0f);
    for (int64_t s = 0; s < num_slots; ++s) {
      if (gates[s] == nullptr) continue;
      const Vec weight = exp(sub(load(gates[s] + i, part), largest));
      denominator = add(denominator, weight);
      sum = fma(weight, load(values[s] + i, part), sum);
    }
    store(out + i, div(sum, denominator), part);
  }
};

inline void compress(const float* const* values,
                     const float* const* gates,
                     int64_t num_slots,
                     int64_t begin,
                     int64_t end,
                     float* out) {
  for_each_part(begin, end, PoolChannels{values, gates, num_slots, out});
}

struct ExpertScores {
  const float* logits;
  float* scores;
  template <class Part>
  void operator()(int64_t i, Part part) const {
    const Vec a = load(logits + i, part);
    // softplus(a) = max(a, 0) + log(1 + e^-|a|): no overflow, and small values keep their bits.
    const Vec tail = log1p_unit(exp(sub(set1(0.0f), abs(a))));
    store(scores + i, sqrt(add(max(set1(0.0f), a), tail)), part);
  }
};
inline void expert_scores(const float* logits, int64_t n, float* scores) {
  for_each_part(0, n, ExpertScores{logits, scores});
}

struct SwigluRow {
  const float* gate;
  const float* up;
  Vec limit;
  Vec weight;
  float* y;
  template <class Part>
  void operator()(int64_t i, Part part) const {
    const Vec g = min(limit, load(gate + i, part));
    const Vec u = max(sub(set1(0.0f), limit), min(limit, load(up + i, part)));
    store(y + i, mul(mul(mul(g, sigmoid(g)), u), weight), part);
  }
};
inline void swiglu(const float* x, int64_t width, float limit, float weight, float* y) {
  for_each_part(0, width, SwigluRow{x, x + width, set1(limit), set1(weight), y});
}

struct SumExperts {
  const float* shared;
  const float* experts;
  int64_t stride;
  int64_t count;
  float* y;
  template <class Part>
  void operator()(int64_t i, Part part) const {
    Vec sum = load(shared + i, part);
    for (int64_t j = 0; j < count; ++j) sum = add(sum, load(experts + j * stride + i, part));
    store(y + i, sum, part);
  }
};
inline void combine(const float* shared,
                    const float* experts,
                    int64_t stride,
                    int64_t count,
                    int64_t width,
                    float* y) {
  for_each_part(0, width, SumExperts{shared, experts, stride, count, y});
}
