// Selection of the k best scores: the k-th best is found by bisection on the bit patterns of
// floats, counting the scores at or above a candidate, then one pass writes the indices. At most 33
// passes over the scores, typically half of that, and no scratch.

// NaN as -inf. Comparisons take care of -0.
template <class Part>
Vec load_ranks(const float* scores, int64_t i, Part part) {
  return max(load(scores + i, part), set1(-__builtin_inff()));  // max gives its second operand
}

inline uint32_t lanes_of(Full) { return (1U << kLanes) - 1U; }
inline uint32_t lanes_of(First part) { return (1U << part.n) - 1U; }

// Floats in ascending order have ascending integers; valid from -inf to +inf.
inline int32_t order_of(float x) {
  int32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits < 0 ? bits ^ 0x7FFFFFFF : bits;
}
inline float float_at(int32_t order) {
  const int32_t bits = order < 0 ? order ^ 0x7FFFFFFF : order;
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

struct CountAtLeast {
  const float* scores;
  Vec limit;
  int64_t* count;
  template <class Part>
  void operator()(int64_t i, Part part) const {
    const uint32_t lanes = mask_at_least(load_ranks(scores, i, part), limit) & lanes_of(part);
    *count += __builtin_popcount(lanes);
  }
};

inline int64_t count_at_least(const float* scores, int64_t n, float limit) {
  int64_t count = 0;
  for_each_part(0, n, CountAtLeast{scores, set1(limit), &count});
  return count;
}

// Scores above `limit` are selected, and the first `ties` of those equal to it.
struct Threshold {
  float limit;
  int64_t ties;
};

inline Threshold find_threshold(const float* scores, int64_t n, int64_t k) {
  int32_t low = order_of(-__builtin_inff());  // at least k scores are at or above it
  int32_t high = order_of(__builtin_inff());  // fewer than k are above it
  int64_t num_above = 0;                      // how many
  while (low < high) {
    const int32_t middle = static_cast<int32_t>((int64_t{low} + high + 1) >> 1);
    const int64_t count = count_at_least(scores, n, float_at(middle));
    if (count == k) return {float_at(middle), k};
    if (count > k) {
      low = middle;
    } else {
      high = middle - 1;
      num_above = count;
    }
  }
  return {float_at(low), k - num_above};
}

struct WriteSelected {
  const float* scores;
  Vec limit;
  int64_t ties_left;
  int32_t* next;

  template <class Part>
  void operator()(int64_t i, Part part) {
    const Vec ranks = load_ranks(scores, i, part);
    uint32_t lanes = mask_at_least(ranks, limit) & lanes_of(part);
    if (lanes == 0) return;
    const uint32_t equal = mask_equal(ranks, limit);
    while (lanes != 0) {
      const uint32_t bit = lanes & (0U - lanes);
      lanes ^= bit;
      if ((equal & bit) != 0 && ties_left-- <= 0) continue;
      *next++ = static_cast<int32_t>(i) + __builtin_ctz(bit);
    }
  }
};

inline void top_k(const float* scores, int64_t count, int64_t k, int32_t* indices) {
  const Threshold threshold = find_threshold(scores, count, k);
  WriteSelected write{scores, set1(threshold.limit), threshold.ties, indices};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) write(i, Full{});
  if (i < count) write(i, First{count - i});
}
