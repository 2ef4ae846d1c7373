// Products of F32 weights by multiply-adds in f32, for small matrices: a warp takes one output row
// (of gate and up rows both) and up to eight tokens. An output's sums depend on k alone: lane l
// adds values 4 l to 4 l + 3 of every 128, then a fixed tree over the lanes.
//
// Bytes: the weight once per eight tokens. FLOPs: 2 m n k.
#include "base/checked_math.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/common/swiglu.cuh"
#include "kernels/cuda/portable/matmul/launch.h"
#include "kernels/cuda/portable/matmul/params.h"
#include "kernels/cuda/portable/matmul/work.cuh"

namespace nibble::kernels::cuda {
namespace {

constexpr int kF32Warps = 8, kF32Columns = 8;

__device__ __forceinline__ float dot4(const float4& a, const float4& b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

__global__ void __launch_bounds__(kF32Warps * 32) portable_matmul_f32(const MatMulParams params) {
  launch_dependents();
  wait_for_predecessors();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const MatMulWork work = matmul_work(params, static_cast<int>(blockIdx.x), kF32Columns);
  const int local = work.first_row + warp;
  if (work.matrix < 0 || local >= params.rows_per_part) return;
  const float* const w = reinterpret_cast<const float*>(params.codes) +
                         work.matrix * (params.codes_per_matrix / 4) +
                         (int64_t{work.group} * params.rows_per_part + local) * params.k;
  const float* const up = w + (params.swiglu ? int64_t{params.rows_per_part} * params.k : 0);

  const float* x[kF32Columns];
#pragma unroll
  for (int j = 0; j < kF32Columns; ++j) {
    x[j] = reinterpret_cast<const float*>(params.x +
                                          matmul_x_row(params, work, j) * params.x_row_bytes) +
           int64_t{work.group} * params.k;
  }
  float sums[kF32Columns] = {}, up_sums[kF32Columns] = {};
  for (int k = 4 * lane; k < params.k; k += 128) {
    const float4 v = __ldg(reinterpret_cast<const float4*>(w + k));
    const float4 u = __ldg(reinterpret_cast<const float4*>(up + k));
#pragma unroll
    for (int j = 0; j < kF32Columns; ++j) {
      const float4 of_token = __ldcg(reinterpret_cast<const float4*>(x[j] + k));
      sums[j] = dot4(v, of_token, sums[j]);
      if (params.swiglu) up_sums[j] = dot4(u, of_token, up_sums[j]);
    }
  }
#pragma unroll
  for (int j = 0; j < kF32Columns; ++j) {
    const float sum = warp_sum(sums[j]);
    const float up_sum = params.swiglu ? warp_sum(up_sums[j]) : 0.0f;
    const int output = matmul_output(params, work, j);
    if (lane != 0 || output < 0) continue;
    if (params.swiglu) {
      store_swiglu(params, output, local, sum, up_sum);
    } else {
      static_cast<float*>(
          params.y)[output * params.y_stride + int64_t{work.group} * params.rows_per_part + local] =
          sum;
    }
  }
}

Result<void> launch(MatMulParams params,
                    int32_t parts,
                    int32_t columns,
                    int32_t slots,
                    bool is_dependent,
                    device::Stream& stream) {
  params.tile_rows = kF32Warps;
  params.row_tiles = ceil_div(params.rows_per_part, kF32Warps);
  params.column_tiles = ceil_div(columns, kF32Columns);
  const int64_t blocks = int64_t{parts} * params.row_tiles * params.column_tiles * slots;
  if (blocks == 0) return {};
  return launch_kernel(&portable_matmul_f32,
                       {.grid = static_cast<uint32_t>(blocks),
                        .block = kF32Warps * 32,
                        .is_dependent = is_dependent},
                       stream,
                       params);
}

}  // namespace

Result<void> launch_portable_f32_f32(const DeviceMatMulArgs& args, device::Stream& stream) {
  return launch(
      matmul_params(args, ActivationForm::kF32), args.groups, args.m, 1, args.is_dependent, stream);
}

Result<void> launch_portable_grouped_f32_f32(const DeviceGroupedMatMulArgs& args,
                                             device::Stream& stream) {
  return launch(matmul_params(args, ActivationForm::kF32),
                1,
                args.slots.rows,
                args.slots.max_slots,
                args.is_dependent,
                stream);
}

}  // namespace nibble::kernels::cuda
