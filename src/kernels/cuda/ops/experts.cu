#include "base/checked_math.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/ops/launch.h"

namespace nibble::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kValues = 16;  // of a lane: up to 512 experts
constexpr int kMaxChoices = 32;

struct SelectParams {
  const float* logits;
  int64_t logits_stride;
  int64_t tokens;
  int num_experts;
  int k;
  const float* bias;
  const int* token_to_experts;
  const int* token_ids;
  bool reuse_ids;
  float scaling;
  int* ids;
  int64_t ids_stride;
  float* weights;
  int64_t weights_stride;
};

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

// The id of this lane's choice, lane j the j-th best.
__device__ int choose(const SelectParams& params, const float* logits) {
  const int lane = threadIdx.x % 32;
  unsigned long long candidates[kValues];
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const int id = lane + 32 * i;
    candidates[i] = 0;
    if (id >= params.num_experts) continue;
    candidates[i] =
        candidate(score_of(logits[id]) + (params.bias == nullptr ? 0.0f : params.bias[id]), id);
  }
  int own = 0;
  for (int j = 0; j < params.k; ++j) {
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
  return own;
}

// One warp per token.
__global__ void __launch_bounds__(kWarps * 32) select_experts(const SelectParams params) {
  constexpr float kMinSum = 1e-20f;  // keeps 0 / 0 away when every chosen score underflows
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (token >= params.tokens) return;
  const float* const logits = params.logits + token * params.logits_stride;
  int* const ids = params.ids + token * params.ids_stride;
  int id = 0;
  if (params.reuse_ids) {
    if (lane < params.k) id = ids[lane];
  } else if (params.token_to_experts != nullptr) {
    const auto row = static_cast<int64_t>(params.token_ids[token]) * params.k;
    if (lane < params.k) id = params.token_to_experts[row + lane];
  } else {
    id = choose(params, logits);
  }
  const float score = lane < params.k ? score_of(logits[id]) : 0.0f;
  float sum = kMinSum;
  for (int j = 0; j < params.k; ++j) sum += __shfl_sync(~0U, score, j);
  if (lane >= params.k) return;
  ids[lane] = id;
  params.weights[token * params.weights_stride + lane] = score / sum * params.scaling;
}

}  // namespace

Result<void> launch_select_experts(const SelectExpertsArgs& args, device::Stream& stream) {
  const auto num_experts = static_cast<int>(args.logits.shape[1]);
  const auto k = static_cast<int>(args.ids.shape[1]);
  DCHECK(num_experts <= kValues * 32 && k <= kMaxChoices && k <= num_experts) << num_experts;
  const int64_t tokens = args.logits.num_rows();
  return launch_kernel(
      &select_experts,
      {.grid = static_cast<uint32_t>(ceil_div(tokens, kWarps)), .block = kWarps * 32},
      stream,
      SelectParams{.logits = args.logits.as<float>(),
                   .logits_stride = args.logits.row_stride,
                   .tokens = tokens,
                   .num_experts = num_experts,
                   .k = k,
                   .bias = args.bias,
                   .token_to_experts = args.token_to_experts,
                   .token_ids = args.token_ids.data(),
                   .reuse_ids = args.reuse_ids,
                   .scaling = args.routed_scaling_factor,
                   .ids = args.ids.as<int32_t>(),
                   .ids_stride = args.ids.row_stride,
                   .weights = args.weights.as<float>(),
                   .weights_stride = args.weights.row_stride});
}

}  // namespace nibble::kernels::cuda
