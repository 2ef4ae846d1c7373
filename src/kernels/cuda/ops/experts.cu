// Between the products of the experts: the choice of experts, slots, SwiGLU, forms of rows.
#include <algorithm>
#include <cmath>

#include "base/checked_math.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/swiglu.cuh"
#include "kernels/cuda/ops/choice.cuh"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/ops/rows.cuh"

namespace nibble::kernels::cuda {
namespace {

// --- slots ---

// Exclusive prefix sum over the block's threads, and the total. Warps must be full.
struct Prefix {
  int before;
  int total;
};
__device__ Prefix block_prefix(int value) {
  __shared__ int warp_sums[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, num_warps = blockDim.x / 32;
  int inclusive = value;
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0U, inclusive, step);
    if (lane >= step) inclusive += other;
  }
  if (lane == 31) warp_sums[warp] = inclusive;
  __syncthreads();
  int before = inclusive - value, total = 0;
  for (int w = 0; w < num_warps; ++w) {
    if (w < warp) before += warp_sums[w];
    total += warp_sums[w];
  }
  return {before, total};
}

// Marks what each lane names of the list as empty. Where slots are long by all lanes together, one
// lane's places after the other's: those of a lane are neighbours, those of lanes are not.
__device__ __forceinline__ void mark_empty(int* pairs, int begin, int end, int slot_rows) {
  constexpr int kFewRows = 32;
  const int lane = threadIdx.x % 32;
  if (slot_rows <= kFewRows) {
    for (int i = begin; i < end; ++i) pairs[i] = -1;
    return;
  }
  for (uint32_t left = __ballot_sync(~0U, begin < end); left != 0; left &= left - 1) {
    const int owner = __ffs(static_cast<int>(left)) - 1;
    const int last = __shfl_sync(~0U, end, owner);
    for (int i = __shfl_sync(~0U, begin, owner) + lane; i < last; i += 32) pairs[i] = -1;
  }
}

constexpr int kCountBytes = 40 << 10;
constexpr int kIdBatch = 8;

// Ids of pair first + lane and of each 32nd behind it, before `end`; -1: none.
__device__ void read_ids(const DeviceMakeSlotsArgs& args,
                         int first,
                         int end,
                         int (&ids)[kIdBatch]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kIdBatch; ++i) {
    const int pair = first + 32 * i + lane;
    ids[i] = pair < end ? __ldcg(args.ids + pair) : -1;
  }
#pragma unroll
  for (int i = 0; i < kIdBatch; ++i) {
    if (ids[i] >= args.num_experts) ids[i] = -1;
  }
}

// Thread e writes the slots of expert e, marks their places without a pair, and turns the warps'
// counts of it into their first places.
__device__ __forceinline__ void place_experts(const DeviceMakeSlotsArgs& args,
                                              int num_counters,
                                              int* counts) {
  const int expert = threadIdx.x, num_experts = args.num_experts;
  int num_members = 0;
  if (expert < num_experts) {
    for (int w = 0; w < num_counters; ++w) num_members += counts[w * num_experts + expert];
  }
  const int num_slots = (num_members + args.rows - 1) / args.rows;
  const Prefix slots = block_prefix(num_slots);
  if (threadIdx.x == 0) *args.count = slots.total;
  for (int i = 0; i < num_slots; ++i) args.experts[slots.before + i] = expert;
  int place = slots.before * args.rows;
  if (expert < num_experts) {
    for (int w = 0; w < num_counters; ++w) {
      int& count = counts[w * num_experts + expert];
      const int next = place + count;
      count = place;
      place = next;
    }
  }
  mark_empty(args.pairs, place, (slots.before + num_slots) * args.rows, args.rows);
}

// Writes the warp's pairs, one of each lane and in order, to the places of their experts `id`.
__device__ void scatter_pairs(const DeviceMakeSlotsArgs& args, int pair, int id, int* counts) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, num_experts = args.num_experts;
  const uint32_t same = __match_any_sync(~0U, id);
  const int before = __popc(same & ((1U << lane) - 1));
  int place = 0;
  if (id >= 0) place = counts[warp * num_experts + id] + before;
  __syncwarp();
  if (id >= 0) {
    args.pairs[place] = pair;
    if (before == 0) counts[warp * num_experts + id] = place + __popc(same);
  }
  __syncwarp();
}

// One block. Every warp counts the experts of its share of the pairs; thread e then knows where
// expert e's slots begin and where in them each warp's pairs go, and the warps place their pairs 32
// at a time. Shares and pairs keep their order, so that threads may meet in any. Ids are read
// kIdBatch at a time: what takes time is the way to memory.
//   counts: [num_counters][num_experts] in shared memory: pairs, then places
__device__ __forceinline__ void build_slots(const DeviceMakeSlotsArgs& args,
                                            int num_counters,
                                            int* counts) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, num_experts = args.num_experts;
  const int share = (args.num_pairs + num_counters * 32 - 1) / (num_counters * 32) * 32;
  const int begin = warp * share, end = min(args.num_pairs, begin + share);
  const bool counts_pairs = warp < num_counters;
  for (int i = threadIdx.x; i < num_counters * num_experts; i += blockDim.x) counts[i] = 0;
  __syncthreads();
  int ids[kIdBatch];
  for (int first = begin; counts_pairs && first < end; first += 32 * kIdBatch) {
    read_ids(args, first, end, ids);
#pragma unroll
    for (int i = 0; i < kIdBatch; ++i) {
      if (ids[i] >= 0) atomicAdd(counts + warp * num_experts + ids[i], 1);
    }
  }
  __syncthreads();
  place_experts(args, num_counters, counts);
  __syncthreads();
  for (int first = begin; counts_pairs && first < end; first += 32 * kIdBatch) {
    if (share > 32 * kIdBatch) read_ids(args, first, end, ids);  // else they are still there
#pragma unroll
    for (int i = 0; i < kIdBatch; ++i) {
      if (first + 32 * i < end) scatter_pairs(args, first + 32 * i + lane, ids[i], counts);
    }
  }
}

extern __shared__ int slot_counts[];
__global__ void __launch_bounds__(1024)
    make_slots(const DeviceMakeSlotsArgs args, int num_counters) {
  launch_dependents();
  wait_for_predecessors();
  build_slots(args, num_counters, slot_counts);
}
// Warps of a block of `threads` that count pairs.
int32_t slot_counters(const DeviceMakeSlotsArgs& args, int64_t threads) {
  const int64_t most = std::min<int64_t>(kCountBytes / (args.num_experts * 4), threads / 32);
  return static_cast<int32_t>(std::clamp<int64_t>(ceil_div(args.num_pairs, 32), 1, most));
}

// --- choice ---

// One warp per 128 columns of the shared expert's row. Bytes: 8 splits per value and the forms.
template <bool kVectors>
__device__ __forceinline__ void activate(const DeviceSwiglu& args, int item, float limit) {
  const auto groups = static_cast<int>((args.n + kGroup - 1) / kGroup);
  const int64_t t = item / groups, group = item % groups;
  if (t >= args.m) return;
  const int64_t split_stride = 2 * args.m * args.n;
  const int64_t column = group * kGroup + threadIdx.x % 32 * 4, left = args.n - column;
  const float4 gate = sum4<kVectors>(args.x, split_stride, 2 * t * args.n + column, left);
  const float4 up = sum4<kVectors>(args.x, split_stride, (2 * t + 1) * args.n + column, left);
  write_group<kVectors>(args.y,
                        args.m,
                        args.n,
                        t,
                        group,
                        {swiglu(gate.x, up.x, limit),
                         swiglu(gate.y, up.y, limit),
                         swiglu(gate.z, up.z, limit),
                         swiglu(gate.w, up.w, limit)});
}

// Writes token t's choice. A block, one thread per expert; the first warp chooses.
template <int kValues>
__device__ __forceinline__ void choose_for_token(const DeviceSelectExpertsArgs& args,
                                                 int64_t t,
                                                 bool is_padding) {
  __shared__ float scores[kValues * 32];
  __shared__ uint32_t candidates[kValues * 32];
  ChosenExpert chosen = {-1, 0};
  if (!is_padding) {
    const int given = threadIdx.x < 32 ? given_expert(args, t) : 0;
    score_experts(args, t, threadIdx.x, blockDim.x, kValues * 32, scores, candidates);
    __syncthreads();
    if (threadIdx.x >= 32) return;
    chosen = choose_experts<kValues>(args, given, scores, candidates);
  }
  if (static_cast<int>(threadIdx.x) >= args.choices) return;
  args.ids[t * args.choices + threadIdx.x] = chosen.id;
  args.weights[t * args.choices + threadIdx.x] = chosen.weight;
}

// Blocks of their own for the shared expert. Otherwise one block per token, of which the last to
// have chosen makes the slots.
template <int kValues, bool kVectors>
__global__ void __launch_bounds__(kValues * 32)
    select_experts(const DeviceSelectExpertsArgs args, float limit, int num_counters) {
  launch_dependents();
  if (blockIdx.x >= args.tokens.m) {
    wait_for_predecessors();
    const int block = blockIdx.x - args.tokens.m;
    activate<kVectors>(args.shared, block * kValues + threadIdx.x / 32, limit);
    return;
  }
  const int64_t t = blockIdx.x;
  const bool is_padding = args.tokens.sequences[t] < 0;
  wait_for_predecessors();
  choose_for_token<kValues>(args, t, is_padding);
  if (args.slots.count == nullptr) return;
  __shared__ bool is_last;
  if (threadIdx.x < 32) {
    __syncwarp();  // the warp's choice comes before its arrival
    if (threadIdx.x == 0) is_last = add_acquire_release(args.arrivals) == args.tokens.m - 1;
  }
  __syncthreads();
  if (!is_last) return;
  if (threadIdx.x == 0) *args.arrivals = 0;
  build_slots(args.slots, num_counters, slot_counts);
}

// --- forms ---

constexpr int kRowWarps = 4;

// One warp per kItems groups of 128 columns of a row, `items` of them a row. Bytes: 2, or 4 splits,
// per value and the forms.
template <bool kVectors, int kItems>
__global__ void __launch_bounds__(kRowWarps * 32)
    quantize(const DeviceQuantizeArgs args, int items) {
  launch_dependents();
  wait_for_predecessors();
  const auto item = static_cast<int>(blockIdx.x * kRowWarps + threadIdx.x / 32);
  const int64_t t = item / items, first = item % items * kItems;
  if (t >= args.m) return;
  float4 x[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int64_t column = (first + i) * kGroup + threadIdx.x % 32 * 4, left = args.k - column;
    const int64_t index = t * args.k + column;
    x[i] = args.x_bf16 != nullptr
               ? load4<kVectors>(static_cast<const uint16_t*>(args.x_bf16) + index, left)
               : sum4<kVectors>(args.x_sums, args.m * args.k, index, left);
  }
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if ((first + i) * kGroup >= args.k) return;
    write_group<kVectors>(args.y, args.m, args.k, t, first + i, x[i]);
  }
}

// Groups of a warp: one where there is little to do, so that everything runs at once.
constexpr int kManyItems = 4;
constexpr int64_t kFewGroups = 4096;

bool is_few(int64_t m, int64_t k) { return m * ceil_div(k, kGroup) <= kFewGroups; }
int64_t items_of_row(int64_t m, int64_t k) {
  return ceil_div(ceil_div(k, kGroup), is_few(m, k) ? 1 : kManyItems);
}
LaunchShape row_shape(int64_t m, int64_t k, bool is_dependent) {
  return {.grid = static_cast<uint32_t>(ceil_div(m * items_of_row(m, k), kRowWarps)),
          .block = kRowWarps * 32,
          .is_dependent = is_dependent};
}

}  // namespace

Result<void> launch_select_experts(const DeviceSelectExpertsArgs& args, device::Stream& stream) {
  DCHECK(args.num_experts <= 512 && args.choices <= kMaxChoices) << args.num_experts;
  const DeviceSwiglu& shared = args.shared;
  const bool is_vector = has_vectors(shared.x.data, shared.n) && has_vectors(shared.y, shared.n);
  const bool is_small = args.num_experts <= 256;
  const int32_t warps = is_small ? 8 : 16;
  const int64_t shared_blocks = ceil_div(shared.m * ceil_div(shared.n, kGroup), warps);
  auto* const kernel = is_small
                           ? (is_vector ? &select_experts<8, true> : &select_experts<8, false>)
                           : (is_vector ? &select_experts<16, true> : &select_experts<16, false>);
  const bool makes_slots = args.slots.count != nullptr;
  DCHECK(!makes_slots || (args.slots.ids == args.ids && args.tokens.m <= kMaxSlotTokens));
  const int32_t counters = makes_slots ? slot_counters(args.slots, warps * 32) : 0;
  return launch_kernel(kernel,
                       {.grid = static_cast<uint32_t>(args.tokens.m + shared_blocks),
                        .block = static_cast<uint32_t>(warps * 32),
                        .shared_bytes = counters * args.num_experts * 4,
                        .is_dependent = args.is_dependent},
                       stream,
                       args,
                       shared.limit > 0 ? shared.limit : INFINITY,
                       counters);
}

Result<void> launch_make_expert_slots(const DeviceMakeSlotsArgs& args, device::Stream& stream) {
  DCHECK(args.num_experts <= 1024) << args.num_experts;
  const int32_t counters = slot_counters(args, 1024);
  const int64_t threads = std::max<int64_t>(round_up(args.num_experts, 32), int64_t{counters} * 32);
  return launch_kernel(&make_slots,
                       {.block = static_cast<uint32_t>(threads),
                        .shared_bytes = counters * args.num_experts * 4,
                        .is_dependent = args.is_dependent},
                       stream,
                       args,
                       counters);
}

Result<void> launch_quantize(const DeviceQuantizeArgs& args, device::Stream& stream) {
  const bool is_vector = has_vectors(static_cast<const uint16_t*>(args.x_bf16), args.k) &&
                         has_vectors(args.x_sums.data, args.k) && has_vectors(args.y, args.k);
  auto* const kernel =
      is_few(args.m, args.k)
          ? (is_vector ? &quantize<true, 1> : &quantize<false, 1>)
          : (is_vector ? &quantize<true, kManyItems> : &quantize<false, kManyItems>);
  return launch_kernel(kernel,
                       row_shape(args.m, args.k, args.is_dependent),
                       stream,
                       args,
                       items_of_row(args.m, args.k));
}

}  // namespace nibble::kernels::cuda
