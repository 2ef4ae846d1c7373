// The router's choice of experts for one token, see DeviceSelectExpertsArgs. Device code only.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/device_args.h"

namespace nibble::kernels::cuda {

__device__ __forceinline__ float score_of(float logit) {
  return sqrtf(fmaxf(logit, 0.0f) + log1pf(__expf(-fabsf(logit))));
}

// Grows with the value; NaN counts as minus infinity, and every candidate is above 0.
__device__ __forceinline__ uint32_t candidate(float value) {
  if (isnan(value)) value = -INFINITY;
  const uint32_t bits = __float_as_uint(value + 0.0f);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

// As sum1(), but nearly all splits are read before the first is added: a round trip to memory costs
// more than the sum.
__device__ __forceinline__ float sum_at_once(const DeviceSums& sums,
                                             int64_t split_stride,
                                             int64_t index) {
  constexpr int kBatch = 16;
  float total = 0;
  for (int first = 0; first < sums.splits; first += kBatch) {
    float values[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i < sums.splits) {
        values[i] = __ldcg(sums.data + (first + i) * split_stride + index);
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i == 0) {
        total = values[0];
      } else if (first + i < sums.splits) {
        total += values[i];
      }
    }
  }
  return total;
}

// Scores of token t's experts, and by what they are chosen. `num_threads` threads call it.
//   scores, candidates: [num_candidates]; candidates without an expert are 0
__device__ __forceinline__ void score_experts(const DeviceSelectExpertsArgs& args,
                                              int64_t t,
                                              int thread,
                                              int num_threads,
                                              int num_candidates,
                                              float* scores,
                                              uint32_t* candidates) {
  const int64_t split_stride = static_cast<int64_t>(args.tokens.m) * args.num_experts;
  for (int expert = thread; expert < num_candidates; expert += num_threads) {
    uint32_t own = 0;
    if (expert < args.num_experts) {
      const float bias = args.bias != nullptr ? args.bias[expert] : 0.0f;
      const float score =
          score_of(sum_at_once(args.logits, split_stride, t * args.num_experts + expert));
      scores[expert] = score;
      own = candidate(score + bias);
    }
    candidates[expert] = own;
  }
}

// The choices of the highest candidates, the lowest expert first among equals: lane j of the warp
// gets the j-th.   candidates: [32 kValues]
template <int kValues>
__device__ __forceinline__ int choose_best(const uint32_t* candidates, int choices) {
  const int lane = threadIdx.x % 32;
  uint32_t left[kValues];
#pragma unroll
  for (int i = 0; i < kValues; ++i) left[i] = candidates[lane + 32 * i];
  int own = 0;
  for (int j = 0; j < choices; ++j) {
    uint32_t best = 0;
#pragma unroll
    for (int i = 0; i < kValues; ++i) best = max(best, left[i]);
    best = __reduce_max_sync(~0U, best);
    uint32_t id = ~0U;  // the lowest with that value
#pragma unroll
    for (int i = kValues - 1; i >= 0; --i) {
      if (left[i] == best) id = lane + 32 * i;
    }
    id = __reduce_min_sync(~0U, id);
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      if (lane + 32 * i == id) left[i] = 0;
    }
    if (lane == j) own = static_cast<int>(id);
  }
  return own;
}

// Token t's j-th expert for lane j where scores do not decide, else 0.
__device__ __forceinline__ int given_expert(const DeviceSelectExpertsArgs& args, int64_t t) {
  const int lane = threadIdx.x % 32;
  if (lane >= args.choices) return 0;
  if (args.reuse_ids) return args.ids[t * args.choices + lane];
  if (args.token_to_experts == nullptr) return 0;
  return args
      .token_to_experts[static_cast<int64_t>(__ldcg(args.tokens.ids + t)) * args.choices + lane];
}

// Lane j gets the j-th expert and its weight; lanes beyond the choices -1 and 0. One warp.
//   given: see given_expert(); scores, candidates: see score_experts(), [32 kValues]
struct ChosenExpert {
  int id;
  float weight;
};
template <int kValues>
__device__ __forceinline__ ChosenExpert choose_experts(const DeviceSelectExpertsArgs& args,
                                                       int given,
                                                       const float* scores,
                                                       const uint32_t* candidates) {
  constexpr float kMinSum = 1e-20f;  // keeps 0 / 0 away when every chosen score underflows
  const int lane = threadIdx.x % 32;
  const bool is_scored = !args.reuse_ids && args.token_to_experts == nullptr;
  const int own = is_scored ? choose_best<kValues>(candidates, args.choices) : given;
  const float score = lane < args.choices ? scores[own] : 0.0f;
  float sum = kMinSum;
  for (int j = 0; j < args.choices; ++j) sum += __shfl_sync(~0U, score, j);
  if (lane >= args.choices) return {-1, 0};
  return {own, score / sum * args.routed_scaling_factor};
}

}  // namespace nibble::kernels::cuda
