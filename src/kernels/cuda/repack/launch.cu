#include "base/check.h"
#include "base/checked_math.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/repack/launch.h"
#include "kernels/cuda/repack/rows.h"

namespace nibble::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// One thread per row and group.
__global__ void __launch_bounds__(kThreads) expand_scales(RepackArgs args) {
  const int64_t groups = groups_per_row(args);
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < args.num_rows * groups) expand_scale(args, i / groups, i % groups);
}

// One thread per 8 values.
__global__ void __launch_bounds__(kThreads) pack_bf16_panel64(RepackArgs args) {
  const int64_t chunks = bf16_chunks_per_row(args.k);
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < args.num_rows * chunks) pack_bf16_chunk(args, i / chunks, i % chunks);
}

// One thread per 16 codes.
__global__ void __launch_bounds__(kThreads) pack_fp8_panel64(RepackArgs args) {
  const int64_t chunks = fp8_chunks_per_row(args.k);
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < args.num_rows * chunks) pack_fp8_chunk(args, i / chunks, i % chunks);
}

__device__ __forceinline__ void report(const RepackArgs& args, uint32_t wrong) {
  atomicMax(reinterpret_cast<unsigned long long*>(args.failure),
            static_cast<unsigned long long>(args.ticket) << 32 | wrong);
}

// Whether the four lanes of a group hold zeros only.
__device__ __forceinline__ bool is_zero_group(uint32_t nibbles) {
  uint32_t magnitudes = nibbles & 0x77777777U;
  magnitudes |= __shfl_xor_sync(~0U, magnitudes, 1);
  magnitudes |= __shfl_xor_sync(~0U, magnitudes, 2);
  return magnitudes == 0;
}

// One warp per row, four lanes per group. Reads the row twice, the second time from a cache.
__global__ void __launch_bounds__(kThreads) pack_mxfp4_panel64(RepackArgs args) {
  const int64_t row = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (row >= args.num_rows) return;
  const int lane = threadIdx.x % 32, t = lane % 4;
  const int64_t groups = args.k / kPanelGroup;
  ExponentSpan span;
  for (int64_t first = 0; first < groups; first += 8) {
    const int64_t group = first + lane / 4;
    const bool exists = group < groups;
    const uint32_t nibbles = exists ? panel_nibbles(stored_group(args, row, group), t) : 0;
    if (!is_zero_group(nibbles)) {
      const int32_t exponent = stored_exponent(args, row, group);
      span = join(span, {.min = exponent, .max = exponent});
    }
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    span = join(
        span,
        {.min = __shfl_xor_sync(~0U, span.min, step), .max = __shfl_xor_sync(~0U, span.max, step)});
  }
  const int32_t base = panel_base(span);
  for (int64_t first = 0; first < groups; first += 8) {
    const int64_t group = first + lane / 4;
    const bool exists = group < groups;
    const bool is_zero =
        is_zero_group(exists ? panel_nibbles(stored_group(args, row, group), t) : 0);
    if (exists) pack_panel_group(args, row, group, t, base, is_zero);
  }
  if (lane != 0) return;
  args.packed_global_scales[panel_row(args.order, args.n, args.stack_row + row)] =
      panel_multiplier(base);
  const int32_t difference = span.max - span.min;
  if (difference > kPanelScaleMax) report(args, static_cast<uint32_t>(difference));
}

// One thread per row, group and lane.
template <uint32_t (*kPackGroup)(const RepackArgs&, int64_t, int64_t, int64_t)>
__global__ void __launch_bounds__(kThreads) pack_panel64_groups(RepackArgs args) {
  const int64_t groups = panel_groups(args.k);
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.num_rows * groups * 4) return;
  const uint32_t wrong = kPackGroup(args, i / (groups * 4), i / 4 % groups, i % 4);
  if (wrong != 0) report(args, wrong);
}

Result<void> launch(void (*kernel)(RepackArgs),
                    int64_t num_threads,
                    const RepackArgs& args,
                    device::Stream& stream) {
  return launch_kernel(
      kernel,
      {.grid = static_cast<uint32_t>(ceil_div(num_threads, int64_t{kThreads})), .block = kThreads},
      stream,
      args);
}

}  // namespace

Result<void> launch_expand_scales(const RepackArgs& args, device::Stream& stream) {
  return launch(&expand_scales, args.num_rows * groups_per_row(args), args, stream);
}

Result<void> launch_pack_bf16_panel64(const RepackArgs& args, device::Stream& stream) {
  return launch(&pack_bf16_panel64, args.num_rows * bf16_chunks_per_row(args.k), args, stream);
}

Result<void> launch_pack_fp8_panel64(const RepackArgs& args, device::Stream& stream) {
  return launch(&pack_fp8_panel64, args.num_rows * fp8_chunks_per_row(args.k), args, stream);
}

Result<void> launch_pack_mxfp4_panel64(const RepackArgs& args, device::Stream& stream) {
  DCHECK(args.k % kPanelGroup == 0) << args.k;
  return launch(&pack_mxfp4_panel64, args.num_rows * 32, args, stream);
}

Result<void> launch_pack_nvfp4_panel64(const RepackArgs& args, device::Stream& stream) {
  DCHECK(args.k % 16 == 0) << args.k;
  return launch(&pack_panel64_groups<&pack_nvfp4_group>,
                args.num_rows * panel_groups(args.k) * 4,
                args,
                stream);
}

Result<void> launch_pack_int4_panel64(const RepackArgs& args, device::Stream& stream) {
  DCHECK(args.k % kPanelGroup == 0) << args.k;
  return launch(&pack_panel64_groups<&pack_int4_group>,
                args.num_rows * panel_groups(args.k) * 4,
                args,
                stream);
}

}  // namespace nibble::kernels::cuda
