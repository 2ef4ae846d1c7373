// Sampling: steps 4 to 9 of engine/sampler.h. Tokens are ordered by a key of logit and id, so that
// what top_k, top_p and min_p keep is a range of keys, found digit by digit; nothing is sorted.
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
constexpr int kParts = 16;  // blocks that share a row
constexpr int kDigitBits = 3, kDigits = 1 << kDigitBits;
constexpr float kGreedyTemperature = 1e-5f;

// Of a row in the workspace: the best token and the smallest logit of each part, and how many parts
// are done. The counter is 0 between launches.
struct RowState {
  unsigned long long best[kParts];
  uint32_t smallest[kParts];  // as ordered_bits(); 0: one is not finite
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

// The same sums in every thread, in a fixed order.
template <int kCount>
__device__ void block_sums(double (&values)[kCount]) {
  __shared__ double warps[kWarps][kCount];
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

// One row, by one block.
class Drawer {
 public:
  __device__ Drawer(const DeviceSampleArgs& args, int64_t row, float max_logit)
      : args_(args),
        row_(row),
        logits_(args.logits.data + row * args.vocab),
        max_logit_(max_logit),
        temperature_(args.temperatures[row]),
        min_p_(args.min_p == nullptr ? 0.0f : args.min_p[row]),
        id_bits_(bits_of(args.vocab)) {}

  __device__ int draw() {
    const int top_k = args_.top_k == nullptr ? 0 : args_.top_k[row_];
    const float top_p = args_.top_p == nullptr ? 1.0f : args_.top_p[row_];
    const float min_p = min_p_;
    min_p_ = 0;  // comes last
    bool is_sorted = false;
    if (top_k > 0 && top_k < args_.vocab) {
      is_sorted = true;
      counts_ = true;
      smallest_ = find(static_cast<double>(top_k), false).key;
      counts_ = false;
    }
    if (top_p < 1.0f) {
      is_sorted = true;
      const unsigned long long key = find(static_cast<double>(top_p) * total(), false).key;
      smallest_ = key > smallest_ ? key : smallest_;
    }
    min_p_ = min_p;
    by_id_ = !is_sorted;
    const double target = uniform_at(args_.seeds[row_], args_.draws[row_]) * total();
    const Found found = find(target, true);
    const unsigned long long key = found.is_reached ? found.key : last_possible();
    return static_cast<int>(id_mask() - (key & id_mask()));
  }

 private:
  struct Found {
    unsigned long long key;
    bool is_reached;
  };

  __device__ unsigned long long id_mask() const { return (1ULL << id_bits_) - 1; }
  // More probable tokens have larger keys, lower ids first among equals.
  __device__ unsigned long long rank_key(float logit, int64_t id) const {
    return static_cast<unsigned long long>(ordered_bits(logit)) << id_bits_ | (id_mask() - id);
  }
  // The key of the order in which weights are summed.
  __device__ unsigned long long key(float logit, int64_t id) const {
    return by_id_ ? id_mask() - id : rank_key(logit, id);
  }
  // 0 for what is not kept.
  __device__ double weight(float logit, int64_t id) const {
    if (rank_key(logit, id) < smallest_) return 0;
    if (counts_) return 1;
    const float value = expf((logit - max_logit_) / temperature_);
    return value < min_p_ ? 0 : static_cast<double>(value);
  }

  // Calls visit(logit, id) for the thread's share of the vocabulary, many reads at once.
  template <class Visit>
  __device__ void for_each_logit(const Visit& visit) const {
    constexpr int kAtOnce = 8;
    for (int64_t first = threadIdx.x; first < args_.vocab; first += kThreads * kAtOnce) {
      float values[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int64_t id = first + i * kThreads;
        if (id < args_.vocab) values[i] = __ldcg(logits_ + id);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int64_t id = first + i * kThreads;
        if (id >= args_.vocab) break;
        for (int split = 1; split < args_.logits.splits; ++split) {
          values[i] += __ldcg(logits_ + split * (args_.m * args_.vocab) + id);
        }
        visit(values[i], id);
      }
    }
  }

  __device__ double total() const {
    double sum[1] = {0};
    for_each_logit([&](float logit, int64_t id) { sum[0] += weight(logit, id); });
    block_sums(sum);
    return sum[0];
  }

  // The largest key with which the weights from there on up reach `target`, or exceed it.
  __device__ Found find(double target, bool exceeds) const {
    const int bits = id_bits_ + (by_id_ ? 0 : 32);
    unsigned long long prefix = 0;
    double above = 0;  // weight of keys beyond the prefix
    bool is_reached = false;
    for (int shift = (bits + kDigitBits - 1) / kDigitBits * kDigitBits - kDigitBits; shift >= 0;
         shift -= kDigitBits) {
      double sums[kDigits] = {};
      for_each_logit([&](float logit, int64_t id) {
        const unsigned long long own = key(logit, id);
        if (own >> shift >> kDigitBits != prefix >> shift >> kDigitBits) return;
        const double own_weight = weight(logit, id);
        const auto digit = static_cast<int>(own >> shift & (kDigits - 1));
#pragma unroll
        for (int i = 0; i < kDigits; ++i) sums[i] += digit == i ? own_weight : 0;
      });
      block_sums(sums);
      int digit = kDigits;
      is_reached = false;
      while (digit > 0 && !is_reached) {
        --digit;
        const double sum = above + sums[digit];
        is_reached = exceeds ? sum > target : sum >= target;
        if (!is_reached && digit > 0) above = sum;
      }
      prefix |= static_cast<unsigned long long>(digit) << shift;
    }
    return {prefix, is_reached};
  }

  // The kept key of positive weight that comes last, where rounding hid the target.
  __device__ unsigned long long last_possible() const {
    unsigned long long best = 0;
    for_each_logit([&](float logit, int64_t id) {
      const unsigned long long own = ~key(logit, id);
      if (weight(logit, id) > 0 && own > best) best = own;
    });
    return ~block_best(best);
  }

  const DeviceSampleArgs& args_;
  int64_t row_;
  const float* logits_;  // of the first split
  float max_logit_;
  float temperature_;
  float min_p_;
  int id_bits_;
  unsigned long long smallest_ = 0;  // of the kept rank keys
  bool counts_ = false;              // every token weighs 1
  bool by_id_ = false;
};

// kParts blocks find a row's largest logit; the last of them takes its token or draws.
// Bytes: 4 splits V per row, and as much again for every digit of a draw.
__global__ void __launch_bounds__(kThreads) sample(const DeviceSampleArgs args) {
  launch_dependents();
  __shared__ bool is_last;
  wait_for_predecessors();
  const int64_t row = blockIdx.y;
  auto* const state = reinterpret_cast<RowState*>(args.workspace + row * kRowBytes);
  const int64_t size = (args.vocab + kParts - 1) / kParts;
  const int64_t end = min(args.vocab, (blockIdx.x + 1) * size);
  unsigned long long best = 0;
  uint32_t smallest = ~0U;
#pragma unroll 8
  for (int64_t id = blockIdx.x * size + threadIdx.x; id < end; id += kThreads) {
    const float logit = sum1(args.logits, args.m * args.vocab, row * args.vocab + id);
    const unsigned long long own =
        static_cast<unsigned long long>(ordered_bits(isnan(logit) ? -INFINITY : logit)) << 32 |
        static_cast<uint32_t>(~id);
    best = own > best ? own : best;
    smallest = min(smallest, isfinite(logit) ? static_cast<uint32_t>(own >> 32) : 0U);
  }
  best = block_best(best);
  smallest = ~static_cast<uint32_t>(block_best(~smallest));
  if (threadIdx.x == 0) {
    state->best[blockIdx.x] = best;
    state->smallest[blockIdx.x] = smallest;
    __threadfence();
    is_last = atomicInc(&state->num_done, kParts - 1) == kParts - 1;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  for (int part = 0; part < kParts; ++part) {
    const unsigned long long other = __ldcg(state->best + part);
    best = other > best ? other : best;
    smallest = min(smallest, __ldcg(state->smallest + part));
  }
  int id = static_cast<int>(~static_cast<uint32_t>(best));
  const float max_logit = logit_of(static_cast<uint32_t>(best >> 32));
  const float temperature = args.temperatures == nullptr ? 0.0f : args.temperatures[row];
  if (temperature >= kGreedyTemperature && max_logit != -INFINITY) {
    id = Drawer(args, row, max_logit).draw();
  }
  if (threadIdx.x != 0) return;
  args.ids[row] = id;
  if (args.outcomes == nullptr) return;
  const bool is_flat = args.vocab > 1 && smallest == static_cast<uint32_t>(best >> 32);
  const int fault = is_flat ? DeviceSampleArgs::kAllEqual : id;
  args.outcomes[row] = smallest == 0 ? DeviceSampleArgs::kNotFinite : fault;
}

}  // namespace

Result<void> launch_sample(const DeviceSampleArgs& args, device::Stream& stream) {
  return launch_kernel(&sample,
                       {.grid = kParts,
                        .block = kThreads,
                        .is_dependent = args.is_dependent,
                        .grid_y = static_cast<uint32_t>(args.m)},
                       stream,
                       args);
}

}  // namespace nibble::kernels::cuda
