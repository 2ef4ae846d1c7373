// Selection of the k best scores by a radix search for the k-th best: three passes fix 11, 11 and
// 10 bits of its key, a fourth writes the indices. 16 n bytes are read, nothing is allocated.

// Scores as signed integers in the same order: -0 equals +0, NaN equals -inf.
inline Keys load_keys(const float* scores, int64_t i, Full part) {
  const Vec canonical = add(load(scores + i, part), set1(0.0f));
  return order_as_ints(as_keys(replace_nan(canonical, set1(-__builtin_inff()))));
}
inline Keys load_keys(const float* scores, int64_t i, First part) {
  return order_as_ints(
      as_keys(replace_nan(add(load(scores + i, part), set1(0.0f)), set1(-__builtin_inff()))));
}

inline uint32_t lanes_of(Full) { return (1U << kLanes) - 1U; }
inline uint32_t lanes_of(First part) { return (1U << part.n) - 1U; }

constexpr int32_t kBuckets = 1 << 11;

// Counts digits of the keys whose bits under `prefix_mask` equal `prefix`.
struct CountDigits {
  const float* scores;
  int32_t prefix_mask;
  int32_t prefix;
  int32_t shift;
  int32_t*
      counts;  // [2][kBuckets]: two tables, so that equal neighbours do not wait for each other

  template <class Part>
  void operator()(int64_t i, Part part) const {
    const Keys keys = load_keys(scores, i, part);
    uint32_t lanes =
        mask_equal_masked(keys, set1_keys(prefix_mask), set1_keys(prefix)) & lanes_of(part);
    if (lanes == 0) return;
    alignas(64) int32_t values[kLanes];
    store_keys(values, keys);
    while (lanes != 0) {
      const int lane = __builtin_ctz(lanes);
      // The sign bit is flipped, so that digits order like keys.
      const uint32_t digit =
          ((static_cast<uint32_t>(values[lane]) ^ 0x80000000U) >> shift) & (kBuckets - 1U);
      ++counts[(lane & 1) * kBuckets + static_cast<int32_t>(digit)];
      lanes &= lanes - 1;
    }
  }
};

struct WriteSelected {
  const float* scores;
  Keys threshold;
  int64_t ties_left;
  int32_t* next;

  template <class Part>
  void operator()(int64_t i, Part part) {
    const Keys keys = load_keys(scores, i, part);
    uint32_t lanes = mask_at_least(keys, threshold) & lanes_of(part);
    if (lanes == 0) return;
    const uint32_t equal = mask_equal_masked(keys, set1_keys(-1), threshold);
    while (lanes != 0) {
      const uint32_t bit = lanes & (0U - lanes);
      lanes ^= bit;
      if ((equal & bit) != 0 && ties_left-- <= 0) continue;
      *next++ = static_cast<int32_t>(i) + __builtin_ctz(bit);
    }
  }
};

inline void top_k(const float* scores, int64_t count, int64_t k, int32_t* indices) {
  struct Digit {
    int32_t shift;
    int32_t bits;
  };
  constexpr Digit kDigits[] = {{21, 11}, {10, 11}, {0, 10}};

  uint32_t prefix = 0;  // of the k-th best key, sign bit flipped
  uint32_t prefix_mask = 0;
  int64_t wanted = k;  // rank of the k-th best among the keys with this prefix
  for (const Digit digit : kDigits) {
    int32_t counts[2 * kBuckets] = {};
    const uint32_t key_prefix = (prefix ^ 0x80000000U) & prefix_mask;
    for_each_part(0,
                  count,
                  CountDigits{scores,
                              static_cast<int32_t>(prefix_mask),
                              static_cast<int32_t>(key_prefix),
                              digit.shift,
                              counts});
    int32_t bucket = (1 << digit.bits) - 1;
    for (; bucket > 0; --bucket) {
      const int64_t here = counts[bucket] + counts[kBuckets + bucket];
      if (here >= wanted) break;
      wanted -= here;
    }
    prefix |= static_cast<uint32_t>(bucket) << digit.shift;
    prefix_mask |= ((1U << digit.bits) - 1U) << digit.shift;
  }

  const Keys threshold = set1_keys(static_cast<int32_t>(prefix ^ 0x80000000U));
  WriteSelected write{scores, threshold, wanted, indices};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) write(i, Full{});
  if (i < count) write(i, First{count - i});
}
