// Between the products of the experts: the choice of experts, slots, SwiGLU, forms of rows.
#include <algorithm>
#include <cmath>

#include "base/checked_math.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/swiglu.cuh"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/ops/rows.cuh"

namespace nibble::kernels::cuda {
namespace {

// --- choice ---

constexpr int kSelectWarps = 4;
constexpr int kMaxChoices = 32;

__device__ __forceinline__ float score_of(float logit) {
  return sqrtf(fmaxf(logit, 0.0f) + log1pf(expf(-fabsf(logit))));
}

// Orders candidates: the higher value first, then the lower id. NaN counts as minus infinity, and
// every candidate is above 0.
__device__ __forceinline__ unsigned long long candidate(float value, int id) {
  if (isnan(value)) value = -INFINITY;
  const uint32_t bits = __float_as_uint(value + 0.0f);
  const uint32_t ordered = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  return static_cast<unsigned long long>(ordered) << 32 | static_cast<uint32_t>(~id);
}

__device__ __forceinline__ unsigned long long warp_best(unsigned long long value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const unsigned long long other = __shfl_xor_sync(~0U, value, step);
    value = value > other ? value : other;
  }
  return value;
}

// One warp per token; lane l has experts l, l + 32, ..., up to kValues of them. Lane j makes the
// j-th choice.
template <int kValues>
__global__ void __launch_bounds__(kSelectWarps * 32)
    select_experts(const DeviceSelectExpertsArgs args) {
  constexpr float kMinSum = 1e-20f;  // keeps 0 / 0 away when every chosen score underflows
  __shared__ float scores[kSelectWarps][kValues * 32];
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kSelectWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  float* const own_scores = scores[threadIdx.x / 32];
  const bool is_scored = !args.reuse_ids && args.token_to_experts == nullptr;
  float bias[kValues];
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const int id = lane + 32 * i;
    bias[i] = is_scored && args.bias != nullptr && id < args.num_experts ? args.bias[id] : 0.0f;
  }
  launch_dependents();
  wait_for_predecessors();
  if (t >= args.tokens.m) return;
  int* const ids = args.ids + t * args.choices;
  float* const weights = args.weights + t * args.choices;
  if (__ldcg(args.tokens.sequences + t) < 0) {
    if (lane < args.choices) {
      ids[lane] = -1;
      weights[lane] = 0;
    }
    return;
  }
  const int64_t split_stride = static_cast<int64_t>(args.tokens.m) * args.num_experts;
  unsigned long long candidates[kValues];
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const int id = lane + 32 * i;
    candidates[i] = 0;
    if (id >= args.num_experts) continue;
    const float score = score_of(sum1(args.logits, split_stride, t * args.num_experts + id));
    own_scores[id] = score;
    candidates[i] = candidate(score + bias[i], id);
  }
  __syncwarp();
  int own = 0;
  if (!is_scored) {
    const int* const given =
        args.reuse_ids
            ? ids
            : args.token_to_experts + static_cast<int64_t>(args.tokens.ids[t]) * args.choices;
    if (lane < args.choices) own = given[lane];
  } else {
    for (int j = 0; j < args.choices; ++j) {
      unsigned long long best = 0;
#pragma unroll
      for (int i = 0; i < kValues; ++i) best = candidates[i] > best ? candidates[i] : best;
      best = warp_best(best);
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        if (candidates[i] == best) candidates[i] = 0;
      }
      if (lane == j) own = static_cast<int>(~static_cast<uint32_t>(best));
    }
  }
  const float score = lane < args.choices ? own_scores[own] : 0.0f;
  float sum = kMinSum;
  for (int j = 0; j < args.choices; ++j) sum += __shfl_sync(~0U, score, j);
  if (lane >= args.choices) return;
  ids[lane] = own;
  weights[lane] = score / sum * args.routed_scaling_factor;
}

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

// One block; thread e serves expert e. Membership is a bit mask per expert, so that the order in
// which threads meet does not matter; pairs come in batches of as many as the masks hold, first to
// count members, then to place them.
constexpr int kMaskBytes = 96 << 10;
__global__ void __launch_bounds__(1024) make_slots(const DeviceMakeSlotsArgs args, int words) {
  extern __shared__ uint32_t members[];  // [words][num_experts]
  const int expert = threadIdx.x, num_experts = args.num_experts;
  const int batch = words * 32;
  launch_dependents();
  wait_for_predecessors();
  const auto mark = [&](int first) {
    for (int i = threadIdx.x; i < words * num_experts; i += blockDim.x) members[i] = 0;
    __syncthreads();
    const int end = min(args.num_pairs, first + batch);
    for (int pair = first + static_cast<int>(threadIdx.x); pair < end; pair += blockDim.x) {
      const int id = __ldcg(args.ids + pair);
      if (id < 0 || id >= num_experts) continue;
      atomicOr(members + (pair - first) / 32 * num_experts + id, 1U << ((pair - first) % 32));
    }
    __syncthreads();
  };
  int num_members = 0;
  for (int first = 0; first < args.num_pairs; first += batch) {
    mark(first);
    for (int word = 0; expert < num_experts && word < words; ++word) {
      num_members += __popc(members[word * num_experts + expert]);
    }
    __syncthreads();
  }
  const int num_slots = (num_members + args.rows - 1) / args.rows;
  const Prefix slots = block_prefix(num_slots);
  if (threadIdx.x == 0) *args.count = slots.total;
  for (int i = 0; i < num_slots; ++i) args.experts[slots.before + i] = expert;
  int* out = args.pairs + static_cast<int64_t>(slots.before) * args.rows;
  int* const end = out + static_cast<int64_t>(num_slots) * args.rows;
  const bool has_one_batch = args.num_pairs <= batch;
  for (int first = 0; first < args.num_pairs; first += batch) {
    if (!has_one_batch) mark(first);
    for (int word = 0; expert < num_experts && word < words; ++word) {
      for (uint32_t bits = members[word * num_experts + expert]; bits != 0; bits &= bits - 1) {
        *out++ = first + word * 32 + __ffs(static_cast<int>(bits)) - 1;
      }
    }
    __syncthreads();
  }
  while (out != end) *out++ = -1;
}

// --- SwiGLU and forms ---

constexpr int kRowWarps = 4;

// One warp per 128 columns of a row. Bytes: 8 splits per value and the forms.
__global__ void __launch_bounds__(kRowWarps * 32)
    activate(const DeviceSwigluArgs args, float limit) {
  launch_dependents();
  wait_for_predecessors();
  const int64_t groups = (args.n + kGroup - 1) / kGroup;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / 32;
  const int64_t t = item / groups, group = item % groups;
  if (t >= args.m) return;
  const int64_t column = group * kGroup + threadIdx.x % 32 * 4, left = args.n - column;
  const int64_t split_stride = 2 * args.m * args.n;
  const float4 gate = sum4(args.x, split_stride, 2 * t * args.n + column, left);
  const float4 up = sum4(args.x, split_stride, (2 * t + 1) * args.n + column, left);
  write_group(args.y,
              args.m,
              args.n,
              t,
              group,
              {swiglu(gate.x, up.x, limit),
               swiglu(gate.y, up.y, limit),
               swiglu(gate.z, up.z, limit),
               swiglu(gate.w, up.w, limit)});
}

// One warp per 128 columns of a row. Bytes: 2, or 4 splits, per value and the forms.
__global__ void __launch_bounds__(kRowWarps * 32) quantize(const DeviceQuantizeArgs args) {
  launch_dependents();
  wait_for_predecessors();
  const int64_t groups = (args.k + kGroup - 1) / kGroup;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / 32;
  const int64_t t = item / groups, group = item % groups;
  if (t >= args.m) return;
  const int64_t column = group * kGroup + threadIdx.x % 32 * 4, left = args.k - column;
  const int64_t index = t * args.k + column;
  const float4 v = args.x_bf16 != nullptr
                       ? load4(static_cast<const uint16_t*>(args.x_bf16) + index, left)
                       : sum4(args.x_sums, args.m * args.k, index, left);
  write_group(args.y, args.m, args.k, t, group, v);
}

uint32_t row_blocks(int64_t m, int64_t k) {
  return static_cast<uint32_t>(ceil_div(m * ceil_div(k, kGroup), kRowWarps));
}

}  // namespace

Result<void> launch_select_experts(const DeviceSelectExpertsArgs& args, device::Stream& stream) {
  DCHECK(args.num_experts <= 512 && args.choices <= kMaxChoices) << args.num_experts;
  return launch_kernel(args.num_experts <= 256 ? &select_experts<8> : &select_experts<16>,
                       {.grid = static_cast<uint32_t>(ceil_div(args.tokens.m, kSelectWarps)),
                        .block = kSelectWarps * 32,
                        .is_dependent = args.is_dependent},
                       stream,
                       args);
}

Result<void> launch_make_expert_slots(const DeviceMakeSlotsArgs& args, device::Stream& stream) {
  DCHECK(args.num_experts <= 1024) << args.num_experts;
  const int64_t most = kMaskBytes / (args.num_experts * 4);
  const auto words =
      static_cast<int32_t>(std::min(most, ceil_div(std::max(args.num_pairs, 1), 32)));
  return launch_kernel(&make_slots,
                       {.block = static_cast<uint32_t>(round_up(args.num_experts, 32)),
                        .shared_bytes = words * args.num_experts * 4,
                        .is_dependent = args.is_dependent},
                       stream,
                       args,
                       words);
}

Result<void> launch_swiglu(const DeviceSwigluArgs& args, device::Stream& stream) {
  return launch_kernel(&activate,
                       {.grid = row_blocks(args.m, args.n),
                        .block = kRowWarps * 32,
                        .is_dependent = args.is_dependent},
                       stream,
                       args,
                       args.limit > 0 ? args.limit : INFINITY);
}

Result<void> launch_quantize(const DeviceQuantizeArgs& args, device::Stream& stream) {
  return launch_kernel(&quantize,
                       {.grid = row_blocks(args.m, args.k),
                        .block = kRowWarps * 32,
                        .is_dependent = args.is_dependent},
                       stream,
                       args);
}

}  // namespace nibble::kernels::cuda
