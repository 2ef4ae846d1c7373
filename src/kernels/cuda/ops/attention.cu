// Between the products of attention: latents and keys, queries, the heads' outputs.
#include "base/checked_math.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/ops/rows.cuh"

namespace nibble::kernels::cuda {
namespace {

// --- latents ---

constexpr int kLatentWarps = 8, kLatentKept = 2;  // rows of up to 2048 values

__device__ __forceinline__ float4 scaled(const float4& v, float factor, const float4& g) {
  return {v.x * factor * g.x, v.y * factor * g.y, v.z * factor * g.z, v.w * factor * g.w};
}

// Two blocks per token: one norms the latent of the queries, one makes the key. Warp w has groups
// w, w + 8. Bytes: 4 splits (q_rank + d) per token and what is written.
__global__ void __launch_bounds__(kLatentWarps * 32) latents(const DeviceLatentsArgs args) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t t = blockIdx.x;
  const bool is_key = blockIdx.y == 1;
  const int64_t row_width = int64_t{args.q_rank} + args.head_dim;
  const int width = is_key ? args.head_dim : args.q_rank;
  const float* const gamma = is_key ? args.kv_gamma : args.q_gamma;
  const int64_t first = t * row_width + (is_key ? args.q_rank : 0);
  float4 gammas[kLatentKept];
#pragma unroll
  for (int i = 0; i < kLatentKept; ++i) {
    const int column = (warp + i * kLatentWarps) * kGroup + lane * 4;
    gammas[i] = load4(gamma + column, width - column);
  }
  launch_dependents();
  wait_for_predecessors();
  const int64_t key_row = is_key ? __ldcg(args.key_rows + t) : 0;
  if (key_row < 0) return;
  float4 x[kLatentKept];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kLatentKept; ++i) {
    const int column = (warp + i * kLatentWarps) * kGroup + lane * 4;
    x[i] = sum4(args.qr_kv, args.tokens.m * row_width, first + column, width - column);
    squares += sum_of_squares(x[i]);
  }
  const float factor = rsqrtf(block_sum(squares) / static_cast<float>(width) + args.eps);
#pragma unroll
  for (int i = 0; i < kLatentKept; ++i) {
    const int group = warp + i * kLatentWarps;
    if (group * kGroup >= width) break;
    float4 v = scaled(x[i], factor, gammas[i]);
    if (!is_key) {
      write_group(args.q, args.tokens.m, width, t, group, v);
      continue;
    }
    rotate4(v,
            group * kGroup + lane * 4,
            width,
            args.rotation,
            __ldcg(args.tokens.positions + t),
            false);
    store_key_group(
        v, group, width, args.key_dtype, args.rotation.num_rotary, args.window_pool, key_row);
  }
}

// --- queries ---

constexpr int kHeadWarps = 8;
constexpr int kHeadKept = 4;  // groups of a head: up to 512 values

// One warp per head of a token, then one per head of the indexer, then one for the head weights.
// Bytes: (4 splits + 2) per value.
__global__ void __launch_bounds__(kHeadWarps * 32)
    queries(const DeviceQueriesArgs args, int items_per_token) {
  launch_dependents();
  wait_for_predecessors();
  const int lane = threadIdx.x % 32;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kHeadWarps + threadIdx.x / 32;
  const int64_t t = item / items_per_token, m = args.tokens.m;
  int head = static_cast<int>(item % items_per_token);
  if (t >= m) return;
  if (head == args.heads + args.index_heads) {
    for (int h = lane; h < args.index_heads; h += 32) {
      const float weight =
          sum1(args.projections, m * args.row_width, t * args.row_width + args.weights_column + h);
      args.head_weights[t * args.index_heads + h] = weight * args.weights_scale;
    }
    return;
  }
  const bool is_index = head >= args.heads;
  if (is_index) head -= args.heads;
  const int heads = is_index ? args.index_heads : args.heads;
  const int width = is_index ? args.index_width : args.head_dim;
  const DeviceSums sums = is_index ? args.index_sums : args.q_sums;
  const int64_t first = (t * heads + head) * width;
  float4 x[kHeadKept];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kHeadKept; ++i) {
    const int column = i * kGroup + lane * 4;
    x[i] = sum4(sums, m * heads * width, first + column, width - column);
    squares += sum_of_squares(x[i]);
  }
  const float factor =
      is_index ? 1.0f : rsqrtf(warp_sum(squares) / static_cast<float>(width) + args.eps);
  const int position = __ldcg(args.tokens.positions + t);
  auto* const out = static_cast<uint16_t*>(is_index ? args.index_q : args.q) + first;
#pragma unroll
  for (int i = 0; i < kHeadKept; ++i) {
    const int column = i * kGroup + lane * 4;
    if (i * kGroup >= width) break;
    float4 v = scaled(x[i], factor, {1, 1, 1, 1});
    rotate4(v, column, width, args.rotation, position, false);
    store4(out + column, v, width - column);
  }
}

// --- attended ---

// One warp per 128 columns of a token. Bytes: 2 per value and the forms.
__global__ void __launch_bounds__(kHeadWarps * 32) attended(const DeviceAttendedArgs args) {
  launch_dependents();
  wait_for_predecessors();
  const int64_t k = static_cast<int64_t>(args.heads) * args.head_dim;
  const int64_t t = blockIdx.y;
  const int64_t group = static_cast<int64_t>(blockIdx.x) * kHeadWarps + threadIdx.x / 32;
  if (group * kGroup >= k) return;
  const int64_t column = group * kGroup + threadIdx.x % 32 * 4;
  float4 v = load4(static_cast<const uint16_t*>(args.x) + t * k + column, k - column);
  rotate4(v,
          static_cast<int>(column % args.head_dim),
          args.head_dim,
          args.rotation,
          __ldcg(args.tokens.positions + t),
          true);
  write_group(args.y, args.tokens.m, k, t, group, v);
}

}  // namespace

Result<void> launch_latents(const DeviceLatentsArgs& args, device::Stream& stream) {
  constexpr int kMax = kLatentWarps * kLatentKept * kGroup;
  DCHECK(args.q_rank <= kMax && args.head_dim <= kMax) << args.q_rank;
  return launch_kernel(&latents,
                       {.grid = static_cast<uint32_t>(args.tokens.m),
                        .block = kLatentWarps * 32,
                        .is_dependent = args.is_dependent,
                        .grid_y = 2},
                       stream,
                       args);
}

Result<void> launch_queries(const DeviceQueriesArgs& args, device::Stream& stream) {
  DCHECK(args.head_dim <= kHeadKept * kGroup && args.index_width <= kHeadKept * kGroup);
  DeviceQueriesArgs own = args;
  if (own.index_sums.data == nullptr) own.index_heads = 0;
  const int items = own.heads + own.index_heads + (own.index_heads > 0 ? 1 : 0);
  return launch_kernel(
      &queries,
      {.grid = static_cast<uint32_t>(ceil_div(int64_t{own.tokens.m} * items, kHeadWarps)),
       .block = kHeadWarps * 32,
       .is_dependent = args.is_dependent},
      stream,
      own,
      items);
}

Result<void> launch_attended(const DeviceAttendedArgs& args, device::Stream& stream) {
  const int64_t groups = ceil_div(int64_t{args.heads} * args.head_dim, kGroup);
  return launch_kernel(&attended,
                       {.grid = static_cast<uint32_t>(ceil_div(groups, kHeadWarps)),
                        .block = kHeadWarps * 32,
                        .is_dependent = args.is_dependent,
                        .grid_y = static_cast<uint32_t>(args.tokens.m)},
                       stream,
                       args);
}

}  // namespace nibble::kernels::cuda
