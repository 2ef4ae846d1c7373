// What the kernels of the expert product share: their arguments, and how a panel is written.
// Device code only.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/common/swiglu.cuh"

namespace nibble::kernels::cuda {

inline constexpr int kStageK = 256;
inline constexpr int kMaxK = 7168;

// DeviceGroupedMatMulArgs as the kernels take them.
struct ExpertMatMulParams {
  const uint8_t* x_codes;
  const float* x_scales;
  const __nv_bfloat16* x_bf16;  // instead of codes and scales, which are made of it
  int pairs_per_row;
  const uint8_t* weights;        // packages of all experts
  const float* row_multipliers;  // [experts, n]
  const int* slot_count;
  int max_slots;
  const int* slot_experts;
  const int* slot_pairs;
  bool slots_are_ready;  // before the predecessors end
  bool swiglu;
  float limit;  // infinity: no clamp
  const float* pair_weights;
  void* y;
  int n;
  int k;
};

// acc += d * scale of the column.   scales: [columns] of this block of 128 k; one row: [1]
template <bool kOneRow, int kAccumulators>
__device__ __forceinline__ void promote(float (&acc)[kAccumulators],
                                        const float (&d)[kAccumulators],
                                        const float* scales,
                                        int t) {
#pragma unroll
  for (int tile = 0; tile < kAccumulators / 4; ++tile) {
    float2 scale;
    if constexpr (kOneRow) {
      scale = {scales[0], scales[0]};
    } else {
      scale = *reinterpret_cast<const float2*>(scales + tile * 8 + 2 * t);
    }
    acc[tile * 4 + 0] = fmaf(scale.x, d[tile * 4 + 0], acc[tile * 4 + 0]);
    acc[tile * 4 + 1] = fmaf(scale.y, d[tile * 4 + 1], acc[tile * 4 + 1]);
    acc[tile * 4 + 2] = fmaf(scale.x, d[tile * 4 + 2], acc[tile * 4 + 2]);
    acc[tile * 4 + 3] = fmaf(scale.y, d[tile * 4 + 3], acc[tile * 4 + 3]);
  }
}

// Writes one column of this thread's rows g and g + 8 of a slab.
//   first, second: the sums times the row multipliers
__device__ __forceinline__ void store_column(const ExpertMatMulParams& params,
                                             float first,
                                             float second,
                                             int pair,
                                             float pair_weight,
                                             int slab,
                                             int g) {
  if (params.swiglu) {
    auto* const y =
        static_cast<__nv_bfloat16*>(params.y) + static_cast<size_t>(pair) * (params.n / 2);
    y[slab * 8 + g] = __float2bfloat16(swiglu(first, second, params.limit) * pair_weight);
  } else {
    auto* const y = static_cast<float*>(params.y) + static_cast<size_t>(pair) * params.n;
    y[slab * 16 + g] = first;
    y[slab * 16 + g + 8] = second;
  }
}

}  // namespace nibble::kernels::cuda
