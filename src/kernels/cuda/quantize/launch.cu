#include <cmath>

#include "base/checked_math.h"
#include "kernels/cuda/common/fp8.cuh"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/swiglu.cuh"
#include "kernels/cuda/quantize/launch.h"

namespace nibble::kernels::cuda {
namespace {

constexpr int kGroupsPerBlock = 4;

// Sum over the splits of four neighbouring values.   sums: of the first split
__device__ __forceinline__ float4 sum_splits(const float* sums, int splits, int64_t split_stride) {
  float4 sum{0, 0, 0, 0};
#pragma unroll 4
  for (int split = 0; split < splits; ++split) {
    const float4 part = __ldcg(reinterpret_cast<const float4*>(sums + split * split_stride));
    sum = {sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w};
  }
  return sum;
}

// One warp per row and group of 128; each lane holds four values. `columns`: of the result.
template <bool kSwiglu>
__global__ void __launch_bounds__(kGroupsPerBlock * 32) quantize_sums(
    const float* sums, int splits, int64_t m, int64_t columns, float limit, uint8_t* y) {
  launch_dependents();
  wait_for_predecessors();
  const int64_t group = static_cast<int64_t>(blockIdx.x) * kGroupsPerBlock + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int64_t groups = columns / 128;
  if (group >= m * groups) return;
  const int64_t n = kSwiglu ? 2 * columns : columns;
  const int64_t token = group / groups, block = group % groups;
  const float* const source = sums + token * n + block * 128 + lane * 4;
  const float4 sum = sum_splits(source, splits, m * n);
  float v[4] = {sum.x, sum.y, sum.z, sum.w};
  if constexpr (kSwiglu) {
    const float4 up = sum_splits(source + columns, splits, m * n);
    v[0] = swiglu(v[0], up.x, limit);
    v[1] = swiglu(v[1], up.y, limit);
    v[2] = swiglu(v[2], up.z, limit);
    v[3] = swiglu(v[3], up.w, limit);
  }
  const float amax =
      warp_max(fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3]))));
  const uint32_t exponent = e4m3_scale_exponent(amax);
  const Fp8BlockRow out = fp8_block_row(y, m, columns, token, block);
  *reinterpret_cast<uint32_t*>(out.codes + lane / 4 * out.chunk_bytes + lane % 4 * 4) =
      to_e4m3x4(v, inverse_power_of_two(exponent));
  if (lane == 0) *out.scale = power_of_two(exponent);
}

}  // namespace

Result<void> launch_quantize_sums(const QuantizeSumsArgs& args, device::Stream& stream) {
  const int64_t columns = args.swiglu ? args.n / 2 : args.n;
  DCHECK(columns % 128 == 0) << args.n;
  const int64_t groups = args.m * (columns / 128);
  return launch_kernel(args.swiglu ? &quantize_sums<true> : &quantize_sums<false>,
                       {.grid = static_cast<uint32_t>(ceil_div(groups, kGroupsPerBlock)),
                        .block = kGroupsPerBlock * 32,
                        .is_dependent = args.is_dependent},
                       stream,
                       args.sums,
                       args.splits,
                       args.m,
                       columns,
                       args.limit > 0 ? args.limit : INFINITY,
                       reinterpret_cast<uint8_t*>(args.y));
}

}  // namespace nibble::kernels::cuda
