// A block takes a row: four digits of a radix select find the k-th best score, then prefix sums
// place what is selected in ascending order.
//
// Bytes: 5 times 4 per score, from the L2 cache; 4 per selected index.
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/portable/top_k/launch.h"

namespace nibble::kernels::cuda {
namespace {

constexpr int kSelectThreads = 512, kSelectWarps = kSelectThreads / 32, kDigits = 256;

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
};

// Shared memory of a block.
struct SelectState {
  int histogram[kDigits];
  int warps[kSelectWarps];  // prefix sums
  uint32_t prefix;          // digits of the k-th best so far
  int remaining;            // how many of those with this prefix are selected
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

// The number of earlier threads with `value`, and of all, to `total`.
__device__ __forceinline__ int count_before(bool value, SelectState& state, int& total) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t votes = __ballot_sync(~0U, value);
  if (lane == 0) state.warps[warp] = __popc(votes);
  __syncthreads();
  int before = __popc(votes & ((1U << lane) - 1));
  total = 0;
  for (int w = 0; w < kSelectWarps; ++w) {
    before += w < warp ? state.warps[w] : 0;
    total += state.warps[w];
  }
  __syncthreads();
  return before;
}

// Grid: rows.
__global__ void __launch_bounds__(kSelectThreads) portable_top_k(const PortableTopKParams params) {
  extern __shared__ __align__(16) uint8_t memory[];
  SelectState& state = *reinterpret_cast<SelectState*>(memory);
  const auto row = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  launch_dependents();
  wait_for_predecessors();
  const int count = __ldg(params.counts + row);
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
    for (int i = thread; i < count; i += kSelectThreads) {
      const uint32_t key = rank_key(__ldcg(scores + i));
      const bool has_prefix = shift == 24 || key >> (shift + 8) == prefix >> (shift + 8);
      if (has_prefix) atomicAdd(&state.histogram[key >> shift & 0xFFU], 1);
    }
    __syncthreads();
    if (thread == 0) {
      int digit = kDigits - 1;
      while (state.histogram[digit] < state.remaining) state.remaining -= state.histogram[digit--];
      state.prefix = prefix | static_cast<uint32_t>(digit) << shift;
    }
    __syncthreads();
  }

  // Of those equal to the k-th best, the lowest indices.
  const uint32_t bound = state.prefix;
  const int num_equal = state.remaining;
  int placed = 0, equal = 0;
  for (int first = 0; first < count; first += kSelectThreads) {
    const int i = first + thread;
    const uint32_t key = i < count ? rank_key(__ldcg(scores + i)) : 0;
    int all_equal = 0, all_selected = 0;
    const bool is_equal = i < count && key == bound;
    const int equal_before = equal + count_before(is_equal, state, all_equal);
    const bool is_selected = i < count && (key > bound || (is_equal && equal_before < num_equal));
    const int place = placed + count_before(is_selected, state, all_selected);
    if (is_selected) indices[place] = to_pool_row(params, row, i);
    equal += all_equal;
    placed += all_selected;
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
                                  .num_selected = args.num_selected};
  return launch_kernel(&portable_top_k,
                       {.grid = static_cast<uint32_t>(args.m),
                        .block = kSelectThreads,
                        .shared_bytes = sizeof(SelectState),
                        .is_dependent = args.is_dependent},
                       stream,
                       params);
}

}  // namespace nibble::kernels::cuda
