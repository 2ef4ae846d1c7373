// A head's query as launch_queries() makes it of sums. Device code only.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/ops/rows.cuh"

namespace nibble::kernels::cuda {

inline constexpr int kHeadGroups = 4;  // of a head: up to 512 values

// A head's sums, four of each group per lane.
using HeadSums = float4[kHeadGroups];

//   first: of the head's values; stride: of splits
template <bool kVectors>
__device__ __forceinline__ void read_head(
    const DeviceSums& sums, int64_t stride, int64_t first, int width, HeadSums& x) {
#pragma unroll
  for (int i = 0; i < kHeadGroups; ++i) {
    const int column = i * kGroup + threadIdx.x % 32 * 4;
    x[i] = sum4<kVectors>(sums, stride, first + column, width - column);
  }
}

// The rotation of the head's last group.
__device__ __forceinline__ Rotation4 head_rotation(int width,
                                                   const DeviceRotation& rotation,
                                                   int position) {
  const int last = (width - 1) / kGroup * kGroup;
  return rotation4(last + static_cast<int>(threadIdx.x % 32) * 4, width, rotation, position, false);
}

// What the norm multiplies a head by. The whole warp.
__device__ __forceinline__ float head_norm(const HeadSums& x, int width, float eps) {
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kHeadGroups; ++i) squares += sum_of_squares(x[i]);
  return rsqrtf(warp_sum(squares) / static_cast<float>(width) + eps);
}

// Writes the head times `factor`, rotated.   angles: head_rotation()
template <bool kVectors>
__device__ __forceinline__ void write_head(const HeadSums& x,
                                           float factor,
                                           int width,
                                           const DeviceRotation& rotation,
                                           int position,
                                           const Rotation4& angles,
                                           uint16_t* out) {
  const int last_group = (width - 1) / kGroup;
#pragma unroll
  for (int i = 0; i < kHeadGroups; ++i) {
    const int column = i * kGroup + threadIdx.x % 32 * 4;
    if (i > last_group) break;
    float4 v = {x[i].x * factor, x[i].y * factor, x[i].z * factor, x[i].w * factor};
    if (i == last_group) {
      rotate(v, angles);
    } else if ((i + 1) * kGroup > width - rotation.num_rotary) {
      rotate(v, rotation4(column, width, rotation, position, false));
    }
    store4<kVectors>(out + column, v, width - column);
  }
}

}  // namespace nibble::kernels::cuda
