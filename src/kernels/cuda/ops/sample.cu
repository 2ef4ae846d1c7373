// Sampling: steps 4 to 9 of engine/sampler.h. Tokens are ordered by a key of logit and id, so that
// what top_k, top_p and min_p keep is a range of keys. Its end is found without sorting: weights
// are summed by bin, and only the tokens of the bin that holds the end are compared with each
// other. Weights are integers, so that sums do not depend on the order of additions.
#include <algorithm>
#include <cmath>

#include "base/checked_math.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/ops/rows.cuh"

namespace nibble::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxParts = 16;       // blocks that share a row
constexpr int kBlocksAtOnce = 132;  // one per multiprocessor of an H200
constexpr int kBins = 2048;
constexpr int kThreadBins = kBins / kThreads;
constexpr int kBinBits = 11;
static_assert(kBins == 1 << kBinBits);
// Distances from the largest logit are told apart to 2^-17, up to 32: two digits of kBinBits.
constexpr float kStepsPerLogit = 1 << 17;
constexpr int kMaxSteps = (1 << (2 * kBinBits)) - 1;
constexpr int kMaxMembers = 1024;  // of a bin whose tokens are compared
constexpr int kDigitBits = 3, kDigits = 1 << kDigitBits;
constexpr float kGreedyTemperature = 1e-5f;

// Of a row in the workspace: the best token and the smallest logit of each part, and how many parts
// are done. The counter is 0 between launches.
struct RowState {
  unsigned long long best[kMaxParts];
  uint32_t smallest[kMaxParts];  // as ordered_bits(); 0: one is not finite
  unsigned int num_done;
};
constexpr int64_t kRowBytes = 512;  // as sample_workspace_bytes()
static_assert(sizeof(RowState) <= kRowBytes);

// uniform_at() of base/random.h.
__device__ __forceinline__ uint64_t mix64(uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9ULL;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}
__device__ __forceinline__ double uniform_at(uint64_t seed, uint64_t position) {
  constexpr uint64_t kGoldenGamma = 0x9E3779B97F4A7C15ULL;
  return static_cast<double>(mix64(mix64(seed) + (position + 1) * kGoldenGamma) >> 11) * 0x1p-53;
}

__device__ __forceinline__ int bits_of(int64_t count) {
  int bits = 0;
  while (count >> bits != 0) ++bits;
  return bits;
}

// Grows with the logit; -0 equals +0.
__device__ __forceinline__ uint32_t ordered_bits(float logit) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ __forceinline__ float logit_of(uint32_t ordered) {
  return __uint_as_float((ordered & 0x80000000U) != 0 ? ordered & 0x7FFFFFFFU : ~ordered);
}

__device__ unsigned long long block_best(unsigned long long value) {
  __shared__ unsigned long long warps[kWarps];
  for (int step = 16; step > 0; step /= 2) {
    const unsigned long long other = __shfl_xor_sync(~0U, value, step);
    value = value > other ? value : other;
  }
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) value = value > warps[w] ? value : warps[w];
  __syncthreads();
  return value;
}

// The sum over the block, in every thread.
template <int kCount>
__device__ void block_sums(unsigned long long (&values)[kCount]) {
  __shared__ unsigned long long warps[kWarps][kCount];
  for (int i = 0; i < kCount; ++i) {
    for (int step = 16; step > 0; step /= 2) values[i] += __shfl_xor_sync(~0U, values[i], step);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32][i] = values[i];
  }
  __syncthreads();
  for (int i = 0; i < kCount; ++i) {
    values[i] = 0;
    for (int w = 0; w < kWarps; ++w) values[i] += warps[w][i];
  }
  __syncthreads();
}

// The sum over all threads before this one.
__device__ unsigned long long sum_before(unsigned long long value) {
  __shared__ unsigned long long warps[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  unsigned long long sum = value;
  for (int step = 1; step < 32; step *= 2) {
    const unsigned long long other = __shfl_up_sync(~0U, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == 31) warps[warp] = sum;
  __syncthreads();
  for (int w = 0; w < warp; ++w) sum += warps[w];
  __syncthreads();
  return sum - value;
}

// Reads of a thread at once. With more, ptxas runs out of registers from sm_100 on.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kAtOnce = 2;
#else
constexpr int kAtOnce = 8;
#endif

// One row of logits; sums of splits.
struct LogitRow {
  const float* data;  // of the first split
  int64_t split_stride;
  int splits;
  int vocab;

  // Calls visit(logit, id) for the thread's share of [begin, end), many reads at once.
  template <class Visit>
  __device__ __forceinline__ void for_each(int begin, int end, const Visit& visit) const {
    for (int first = begin + static_cast<int>(threadIdx.x); first < end;
         first += kThreads * kAtOnce) {
      float values[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int id = first + i * kThreads;
        if (id < end) values[i] = __ldcg(data + id);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int id = first + i * kThreads;
        if (id >= end) break;
        for (int split = 1; split < splits; ++split) {
          values[i] += __ldcg(data + split * split_stride + id);
        }
        visit(values[i], id);
      }
    }
  }
};

// How tokens are ordered, and what each weighs.
struct Weighing {
  float max_logit;
  float temperature;
  float min_p = 0;
  int id_bits;
  int steps_per_id;
  bool counts = false;              // every token weighs 1
  bool by_id = false;               // and not the most probable first
  unsigned long long smallest = 0;  // of the kept rank keys

  // The largest weight; those of all tokens fit 64 bits.
  __device__ unsigned long long one() const { return 1ULL << (63 - id_bits); }
  __device__ unsigned int id_mask() const { return (1U << id_bits) - 1; }
  // More probable tokens have larger keys, lower ids first among equals.
  __device__ unsigned long long rank_key(float logit, int id) const {
    return static_cast<unsigned long long>(ordered_bits(logit)) << id_bits | (id_mask() - id);
  }
  // The key of the order in which weights are summed.
  __device__ unsigned long long key(float logit, int id) const {
    return by_id ? id_mask() - id : rank_key(logit, id);
  }
  __device__ int id_of(unsigned long long key) const {
    return static_cast<int>(id_mask() - (static_cast<unsigned int>(key) & id_mask()));
  }
  // In units of 1 / one(); 0 for what is not kept.
  __device__ unsigned long long weight(float logit, int id) const {
    if (smallest != 0 && rank_key(logit, id) < smallest) return 0;
    if (counts) return one();
    const float value = expf((logit - max_logit) / temperature);
    return value > 0 && value >= min_p ? __float2ull_rn(value * static_cast<float>(one())) : 0;
  }
  // Grows as keys fall. The last step has all that is far from the largest logit.
  __device__ int steps(float logit, int id) const {
    if (by_id) return min(id * steps_per_id, kMaxSteps);
    return static_cast<int>(fminf((max_logit - logit) * kStepsPerLogit, kMaxSteps));
  }
};

// What the weights shall reach, or exceed: a share of all of them and a number of tokens.
struct Goal {
  double share;
  int count;
  bool exceeds;
};

struct Found {
  unsigned long long key;
  bool is_reached;
};

// What the threads of a block know together of one search.
struct SearchState {
  uint32_t low[kBins], high[kBins];  // halves of the weight of each bin
  unsigned long long keys[kMaxMembers];
  unsigned long long weights[kMaxMembers];
  int num_members;
  int bin;  // that holds the end of the range; kBins: none does
  unsigned long long above;
};

// The search for the end of a range of keys, by one block.
class Search {
 public:
  __device__ Search(const LogitRow& row, const Weighing& weighing, SearchState& state)
      : row_(row), weighing_(weighing), state_(state) {}

  // The largest key with which the weights from there on up reach the goal.
  __device__ __forceinline__ Found find(const Goal& goal) {
    exceeds_ = goal.exceeds;
    for (bin_shift_ = kBinBits; bin_shift_ >= 0; bin_shift_ -= kBinBits) {
      fill_bins();
      if (!choose_bin(goal)) return {0, false};
      if (collect_members()) return find_member();
      above_ = state_.above;
      first_bin_ = state_.bin;
    }
    return find_by_digits();
  }

 private:
  __device__ bool is_reached(unsigned long long sum) const {
    const auto value = static_cast<double>(sum);
    return sum != 0 && (exceeds_ ? value > target_ : value >= target_);  // a token at least
  }
  // Whether the search has come down to steps of which these are some.
  __device__ bool is_searched(int steps) const {
    return steps >> bin_shift_ >> kBinBits == first_bin_;
  }
  __device__ int bin(int steps) const { return steps >> bin_shift_ & (kBins - 1); }

  // Adds to a bin; a warp whose tokens share it adds once.
  __device__ __forceinline__ void add_to_bin(int to, unsigned long long value) const {
    const unsigned int lanes = __activemask();
    int is_shared = 0;
    __match_all_sync(lanes, to, &is_shared);
    if (is_shared != 0) {
      unsigned long long sum = 0;
#pragma unroll
      for (int shift = 0; shift < 64; shift += 16) {
        const auto part = static_cast<uint32_t>(value >> shift & 0xFFFF);
        sum += static_cast<unsigned long long>(__reduce_add_sync(lanes, part)) << shift;
      }
      value = threadIdx.x % 32 == __ffs(lanes) - 1 ? sum : 0;
    }
    if (value == 0) return;
    const auto low = static_cast<uint32_t>(value);
    const bool carries = atomicAdd(&state_.low[to], low) + low < low;
    const uint32_t high = static_cast<uint32_t>(value >> 32) + (carries ? 1 : 0);
    if (high != 0) atomicAdd(&state_.high[to], high);
  }

  // The weights of all bins.
  __device__ __forceinline__ void fill_bins() {
    __syncthreads();  // the last search has been read
    for (int i = threadIdx.x; i < kBins; i += kThreads) state_.low[i] = state_.high[i] = 0;
    if (threadIdx.x == 0) {
      state_.num_members = 0;
      state_.bin = kBins;
    }
    __syncthreads();
    row_.for_each(0, row_.vocab, [&](float logit, int id) {
      const int steps = weighing_.steps(logit, id);
      if (!is_searched(steps)) return;
      const unsigned long long own = weighing_.weight(logit, id);
      if (own != 0) add_to_bin(bin(steps), own);
    });
    __syncthreads();
  }

  // The bin in which the weights reach the goal; false if none does.
  __device__ __forceinline__ bool choose_bin(const Goal& goal) {
    unsigned long long own[kThreadBins], sum[1] = {0};
#pragma unroll
    for (int i = 0; i < kThreadBins; ++i) {
      const int b = threadIdx.x * kThreadBins + i;
      own[i] = static_cast<unsigned long long>(state_.high[b]) << 32 | state_.low[b];
      sum[0] += own[i];
    }
    unsigned long long above = above_ + sum_before(sum[0]);
    block_sums(sum);
    if (bin_shift_ == kBinBits) {
      target_ = goal.share * static_cast<double>(sum[0]) +
                goal.count * static_cast<double>(weighing_.one());
    }
#pragma unroll
    for (int i = 0; i < kThreadBins; ++i) {
      if (own[i] != 0 && !is_reached(above) && is_reached(above + own[i])) {
        state_.bin = threadIdx.x * kThreadBins + i;
        state_.above = above;
      }
      above += own[i];
    }
    __syncthreads();
    return state_.bin != kBins;
  }

  // The tokens of the bin with weight, in no particular order; false if they are too many.
  __device__ __forceinline__ bool collect_members() {
    const int chosen = state_.bin;
    row_.for_each(0, row_.vocab, [&](float logit, int id) {
      const int steps = weighing_.steps(logit, id);
      if (!is_searched(steps) || bin(steps) != chosen) return;
      const unsigned long long own = weighing_.weight(logit, id);
      if (own == 0) return;
      const int at = atomicAdd(&state_.num_members, 1);
      if (at >= kMaxMembers) return;
      state_.keys[at] = weighing_.key(logit, id);
      state_.weights[at] = own;
    });
    __syncthreads();
    return state_.num_members <= kMaxMembers;
  }

  __device__ __forceinline__ Found find_member() const {
    unsigned long long best = 0;
    bool has_any = false;
    for (int i = threadIdx.x; i < state_.num_members; i += kThreads) {
      const unsigned long long own = state_.keys[i];
      unsigned long long sum = state_.above;
      for (int j = 0; j < state_.num_members; ++j) {
        sum += state_.keys[j] >= own ? state_.weights[j] : 0;
      }
      if (!is_reached(sum)) continue;
      has_any = true;
      best = own > best ? own : best;
    }
    has_any = __syncthreads_or(has_any) != 0;
    return {block_best(best), has_any};
  }

  // For very many tokens of one step: equal logits, or all that is far from the largest one.
  __device__ __forceinline__ Found find_by_digits() const {
    const int bits = weighing_.id_bits + (weighing_.by_id ? 0 : 32);
    unsigned long long prefix = 0;
    unsigned long long above = 0;  // weight of keys beyond the prefix
    bool is_here = false;
    for (int shift = (bits + kDigitBits - 1) / kDigitBits * kDigitBits - kDigitBits; shift >= 0;
         shift -= kDigitBits) {
      unsigned long long sums[kDigits] = {};
      row_.for_each(0, row_.vocab, [&](float logit, int id) {
        const unsigned long long own = weighing_.key(logit, id);
        if (own >> shift >> kDigitBits != prefix >> shift >> kDigitBits) return;
        const unsigned long long own_weight = weighing_.weight(logit, id);
        const auto digit = static_cast<int>(own >> shift & (kDigits - 1));
#pragma unroll
        for (int i = 0; i < kDigits; ++i) sums[i] += digit == i ? own_weight : 0;
      });
      block_sums(sums);
      int digit = kDigits;
      is_here = false;
      while (digit > 0 && !is_here) {
        --digit;
        is_here = is_reached(above + sums[digit]);
        if (!is_here && digit > 0) above += sums[digit];
      }
      prefix |= static_cast<unsigned long long>(digit) << shift;
    }
    return {prefix, is_here};
  }

  const LogitRow row_;
  const Weighing weighing_;
  SearchState& state_;
  double target_ = 0;
  bool exceeds_ = false;
  int bin_shift_ = 0;
  int first_bin_ = 0;             // where bins are parts of one: which
  unsigned long long above_ = 0;  // weight of the keys beyond it
};

// One copy of the code; what it reads per token is in registers.
__device__ __noinline__ Found find(LogitRow row, Weighing weighing, Goal goal, SearchState& state) {
  return Search(row, weighing, state).find(goal);
}

// The kept key of positive weight that comes last, where rounding hid the goal.
__device__ __noinline__ unsigned long long last_possible(LogitRow row, Weighing weighing) {
  unsigned long long best = 0;
  row.for_each(0, row.vocab, [&](float logit, int id) {
    const unsigned long long own = ~weighing.key(logit, id);
    if (weighing.weight(logit, id) > 0 && own > best) best = own;
  });
  return ~block_best(best);
}

// A token of a row, by one block.
__device__ int draw(const DeviceSampleArgs& args,
                    const LogitRow& row,
                    int64_t t,
                    float max_logit,
                    SearchState& state) {
  Weighing weighing = {.max_logit = max_logit,
                       .temperature = args.temperatures[t],
                       .id_bits = bits_of(args.vocab),
                       .steps_per_id = max((kMaxSteps + 1) / row.vocab, 1)};
  const int top_k = args.top_k == nullptr ? 0 : args.top_k[t];
  const float top_p = args.top_p == nullptr ? 1.0f : args.top_p[t];
  bool is_sorted = false;
  if (top_k > 0 && top_k < row.vocab) {
    is_sorted = true;
    weighing.counts = true;
    weighing.smallest =
        find(row, weighing, {.share = 0, .count = top_k, .exceeds = false}, state).key;
    weighing.counts = false;
  }
  if (top_p < 1.0f) {
    is_sorted = true;
    const Found found = find(row, weighing, {.share = top_p, .count = 0, .exceeds = false}, state);
    weighing.smallest = max(weighing.smallest, found.key);
  }
  weighing.min_p = args.min_p == nullptr ? 0.0f : args.min_p[t];
  weighing.by_id = !is_sorted;
  const double uniform = uniform_at(args.seeds[t], args.draws[t]);
  const Found found = find(row, weighing, {.share = uniform, .count = 0, .exceeds = true}, state);
  return weighing.id_of(found.is_reached ? found.key : last_possible(row, weighing));
}

// All blocks of a row find its largest logit; the last of them takes its token or draws.
// Bytes: 4 splits V per row, and as much again twice for each of top_k, top_p and the draw: four
// times where a bin has very many tokens, once more for every digit of find_by_digits().
__global__ void __launch_bounds__(kThreads) sample(const DeviceSampleArgs args) {
  launch_dependents();
  __shared__ bool is_last;
  __shared__ SearchState search;
  wait_for_predecessors();
  const int64_t t = blockIdx.y;
  const LogitRow row = {.data = args.logits.data + t * args.vocab,
                        .split_stride = args.m * args.vocab,
                        .splits = args.logits.splits,
                        .vocab = static_cast<int>(args.vocab)};
  auto* const state = reinterpret_cast<RowState*>(args.workspace + t * kRowBytes);
  const auto num_parts = static_cast<int>(gridDim.x);
  const int size = (row.vocab + num_parts - 1) / num_parts;
  const int begin = static_cast<int>(blockIdx.x) * size;
  unsigned long long best = 0;
  uint32_t smallest = ~0U;
  row.for_each(begin, min(row.vocab, begin + size), [&](float logit, int id) {
    const unsigned long long own =
        static_cast<unsigned long long>(ordered_bits(isnan(logit) ? -INFINITY : logit)) << 32 |
        static_cast<uint32_t>(~id);
    best = own > best ? own : best;
    smallest = min(smallest, isfinite(logit) ? static_cast<uint32_t>(own >> 32) : 0U);
  });
  best = block_best(best);
  smallest = ~static_cast<uint32_t>(block_best(~smallest));
  if (threadIdx.x == 0) {
    state->best[blockIdx.x] = best;
    state->smallest[blockIdx.x] = smallest;
    __threadfence();
    is_last = atomicInc(&state->num_done, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  for (int part = 0; part < num_parts; ++part) {
    const unsigned long long other = __ldcg(state->best + part);
    best = other > best ? other : best;
    smallest = min(smallest, __ldcg(state->smallest + part));
  }
  int id = static_cast<int>(~static_cast<uint32_t>(best));
  const float max_logit = logit_of(static_cast<uint32_t>(best >> 32));
  const float temperature = args.temperatures == nullptr ? 0.0f : args.temperatures[t];
  if (temperature >= kGreedyTemperature && max_logit != -INFINITY) {
    id = draw(args, row, t, max_logit, search);
  }
  if (threadIdx.x != 0) return;
  args.ids[t] = id;
  if (args.outcomes == nullptr) return;
  const bool is_flat = args.vocab > 1 && smallest == static_cast<uint32_t>(best >> 32);
  const int fault = is_flat ? DeviceSampleArgs::kAllEqual : id;
  args.outcomes[t] = smallest == 0 ? DeviceSampleArgs::kNotFinite : fault;
}

}  // namespace

Result<void> launch_sample(const DeviceSampleArgs& args, device::Stream& stream) {
  const int num_parts = std::clamp(kBlocksAtOnce / std::max(args.m, 1), 1, kMaxParts);
  return launch_kernel(&sample,
                       {.grid = static_cast<uint32_t>(num_parts),
                        .block = kThreads,
                        .is_dependent = args.is_dependent,
                        .grid_y = static_cast<uint32_t>(args.m)},
                       stream,
                       args);
}

}  // namespace nibble::kernels::cuda
