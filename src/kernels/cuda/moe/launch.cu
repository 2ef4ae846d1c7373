#include <cuda_bf16.h>

#include "base/checked_math.h"
#include "kernels/cuda/common/fp8.cuh"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/moe/launch.h"

namespace nibble::kernels::cuda {
namespace {

// One warp per row and group of 128; each lane holds four values.
__global__ void __launch_bounds__(256)
    quantize_rows(const __nv_bfloat16* x, int64_t num_groups, uint32_t* codes, float* scales) {
  launch_dependents();
  wait_for_predecessors();
  const int64_t group = static_cast<int64_t>(blockIdx.x) * 8 + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (group >= num_groups) return;
  const uint2 packed = __ldcg(reinterpret_cast<const uint2*>(x + group * 128) + lane);
  const float v[4] = {__uint_as_float(packed.x << 16),
                      __uint_as_float(packed.x & 0xFFFF0000U),
                      __uint_as_float(packed.y << 16),
                      __uint_as_float(packed.y & 0xFFFF0000U)};
  const float amax =
      warp_max(fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3]))));
  const uint32_t exponent = e4m3_scale_exponent(amax);
  codes[group * 32 + lane] = to_e4m3x4(v, inverse_power_of_two(exponent));
  if (lane == 0) scales[group] = power_of_two(exponent);
}

}  // namespace

Result<void> launch_quantize_rows(const QuantizeRowsArgs& args, device::Stream& stream) {
  DCHECK(args.k % 128 == 0) << args.k;
  const int64_t groups = args.rows * (args.k / 128);
  return launch_kernel(&quantize_rows,
                       {.grid = static_cast<uint32_t>(ceil_div(groups, 8)),
                        .block = 256,
                        .is_dependent = args.is_dependent},
                       stream,
                       static_cast<const __nv_bfloat16*>(args.x),
                       groups,
                       reinterpret_cast<uint32_t*>(args.codes),
                       args.scales);
}

}  // namespace nibble::kernels::cuda
