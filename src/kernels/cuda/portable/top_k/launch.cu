// A block takes a row: four digits of a radix select find the k-th best score, then prefix sums
// place what is selected in ascending order.
//
// Bytes: 5 times 4 per score, from the L2 cache; 4 per selected index.
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/portable/top_k/launch.h"

namespace nibble::kernels::cuda {
namespace {

constexpr int kSelectThreads = 1024, kSelectWarps = kSelectThreads / 32, kDigits = 256;
constexpr int kScoresPerThread = 4;  // neighbours, in the last pass

struct PortableTopKParams {
  const float* scores;
  const int* counts;
  int64_t columns;
  int k;
  const int* pages;
  int max_pages;
  int entries_per_page;
  int* indices;
  int* num_selected;
  bool skips_short_rows;
};

// Shared memory of a block.
struct SelectState {
  int histogram[kDigits];
  uint32_t warps[kSelectWarps];  // sums
  uint32_t prefix;               // digits of the k-th best so far
  int remaining;                 // how many of those with this prefix are selected
};

// Ascending in the score; -0 equals +0, NaN ranks with -inf.
__device__ __forceinline__ uint32_t rank_key(float score) {
  if (score != score) score = -INFINITY;
  const uint32_t bits = __float_as_uint(score + 0.0f);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

__device__ __forceinline__ int to_pool_row(const PortableTopKParams& params, int row, int index) {
  if (params.pages == nullptr) return index;
  const int page = __ldg(params.pages + static_cast<int64_t>(row) * params.max_pages +
                         index / params.entries_per_page);
  return page * params.entries_per_page + index % params.entries_per_page;
}

// The sum of `value` of all lanes before this one.
__device__ __forceinline__ uint32_t sum_of_lanes_before(uint32_t value) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t sum = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(~0U, sum, step);
    if (lane >= step) sum += other;
  }
  return sum - value;
}

// The sum of `value` of all threads before this one, and of all, to `total`.
__device__ __forceinline__ uint32_t sum_of_threads_before(uint32_t value,
                                                          SelectState& state,
                                                          uint32_t& total) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t before = sum_of_lanes_before(value);
  if (lane == 31) state.warps[warp] = before + value;
  __syncthreads();
  const uint32_t of_warp = state.warps[lane];
  const uint32_t before_warp = sum_of_lanes_before(of_warp);
  before += __shfl_sync(~0U, before_warp, warp);
  total = __shfl_sync(~0U, before_warp + of_warp, 31);
  __syncthreads();
  return before;
}

// The first warp: finds the digit of the k-th best, going down from the largest, eight per lane.
__device__ __forceinline__ void find_digit(int shift, SelectState& state) {
  constexpr int kPerLane = kDigits / 32;
  const int largest = kDigits - 1 - static_cast<int>(threadIdx.x) * kPerLane;
  const int remaining = state.remaining;
  int own = 0;
  for (int i = 0; i < kPerLane; ++i) own += state.histogram[largest - i];
  int before = static_cast<int>(sum_of_lanes_before(static_cast<uint32_t>(own)));
  __syncwarp();
  if (before >= remaining || before + own < remaining) return;
  int digit = largest;
  while (before + state.histogram[digit] < remaining) before += state.histogram[digit--];
  state.remaining = remaining - before;
  state.prefix |= static_cast<uint32_t>(digit) << shift;
}

// Grid: rows.
__global__ void __launch_bounds__(kSelectThreads) portable_top_k(const PortableTopKParams params) {
  extern __shared__ __align__(16) uint8_t memory[];
  SelectState& state = *reinterpret_cast<SelectState*>(memory);
  const auto row = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  launch_dependents();
  wait_for_predecessors();
  const int count = __ldg(params.counts + row);
  if (params.skips_short_rows && count <= params.k) return;
  int* const indices = params.indices + static_cast<int64_t>(row) * params.k;
  if (thread == 0 && params.num_selected != nullptr) {
    params.num_selected[row] = min(params.k, count);
  }
  if (count <= params.k) {
    for (int i = thread; i < params.k; i += kSelectThreads) {
      indices[i] = i < count ? to_pool_row(params, row, i) : -1;
    }
    return;
  }

  const float* const scores = params.scores + static_cast<int64_t>(row) * params.columns;
  if (thread == 0) {
    state.prefix = 0;
    state.remaining = params.k;
  }
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = thread; i < kDigits; i += kSelectThreads) state.histogram[i] = 0;
    __syncthreads();
    const uint32_t prefix = state.prefix;
#pragma unroll 4
    for (int i = thread; i < count; i += kSelectThreads) {
      const uint32_t key = rank_key(__ldcg(scores + i));
      const bool has_prefix = shift == 24 || key >> (shift + 8) == prefix >> (shift + 8);
      if (has_prefix) atomicAdd(&state.histogram[key >> shift & 0xFFU], 1);
    }
    __syncthreads();
    if (thread < 32) find_digit(shift, state);
    __syncthreads();
  }

  // Of those equal to the k-th best, the lowest indices.
  const uint32_t bound = state.prefix;
  const int num_equal = state.remaining;
  constexpr uint32_t kEqual = 1U << 16;  // counts of equal ones above those of better ones
  int better = 0, equal = 0;
  for (int first = 0; first < count; first += kSelectThreads * kScoresPerThread) {
    const int mine = first + thread * kScoresPerThread;
    uint32_t keys[kScoresPerThread];
    uint32_t counts = 0;
#pragma unroll
    for (int j = 0; j < kScoresPerThread; ++j) {
      keys[j] = mine + j < count ? rank_key(__ldcg(scores + mine + j)) : 0;
      counts += keys[j] > bound ? 1 : keys[j] == bound ? kEqual : 0;
    }
    uint32_t total = 0;
    const uint32_t before = sum_of_threads_before(counts, state, total);
    int better_before = better + static_cast<int>(before % kEqual);
    int equal_before = equal + static_cast<int>(before / kEqual);
#pragma unroll
    for (int j = 0; j < kScoresPerThread; ++j) {
      const bool is_better = keys[j] > bound, is_equal = keys[j] == bound;
      if (is_better || (is_equal && equal_before < num_equal)) {
        indices[better_before + min(equal_before, num_equal)] = to_pool_row(params, row, mine + j);
      }
      better_before += is_better ? 1 : 0;
      equal_before += is_equal ? 1 : 0;
    }
    better += static_cast<int>(total % kEqual);
    equal += static_cast<int>(total / kEqual);
  }
}

}  // namespace

Result<void> launch_portable_top_k(const DeviceTopKArgs& args, device::Stream& stream) {
  if (args.m == 0) return {};
  const PortableTopKParams params{.scores = args.scores,
                                  .counts = args.counts,
                                  .columns = args.columns,
                                  .k = args.k,
                                  .pages = args.pages,
                                  .max_pages = args.max_pages,
                                  .entries_per_page = args.entries_per_page,
                                  .indices = args.indices,
                                  .num_selected = args.num_selected,
                                  .skips_short_rows = args.skips_short_rows};
  return launch_kernel(&portable_top_k,
                       {.grid = static_cast<uint32_t>(args.m),
                        .block = kSelectThreads,
                        .shared_bytes = sizeof(SelectState),
                        .is_dependent = args.is_dependent},
                       stream,
                       params);
}

}  // namespace nibble::kernels::cuda
