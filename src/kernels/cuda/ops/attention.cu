// Between the products of attention: queries and the heads' outputs.
#include "base/checked_math.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/ops/queries.cuh"

namespace nibble::kernels::cuda {
namespace {

// --- queries ---

constexpr int kHeadWarps = 8;

// One warp per head of a token, then one per head of the indexer, then one for the head weights.
// Bytes: (4 splits + 2) per value.
template <bool kVectors>
__global__ void __launch_bounds__(kHeadWarps * 32)
    queries(const DeviceQueriesArgs args, int items_per_token) {
  launch_dependents();
  const int lane = threadIdx.x % 32;
  const auto item = static_cast<int>(blockIdx.x * kHeadWarps + threadIdx.x / 32);
  const int64_t m = args.tokens.m;
  const int t = item / items_per_token;
  int head = item % items_per_token;
  const bool is_index = head >= args.heads;
  if (is_index) head -= args.heads;
  const int heads = is_index ? args.index_heads : args.heads;
  const int width = is_index ? args.index_width : args.head_dim;
  Rotation4 angles{};
  if (t < m && head < heads) {
    angles = head_rotation(width, args.rotation, args.tokens.positions[t]);
  }
  wait_for_predecessors();
  if (t >= m) return;
  if (head == heads) {
    for (int h = lane; h < args.index_heads; h += 32) {
      args.head_weights[t * args.index_heads + h] = head_weight(args.weights, m, t, h);
    }
    return;
  }
  const DeviceSums sums = is_index ? args.index_sums : args.q_sums;
  const int64_t first = (static_cast<int64_t>(t) * heads + head) * width;
  HeadSums x;
  read_head<kVectors>(sums, m * heads * width, first, width, x);
  write_head<kVectors>(x,
                       is_index ? 1.0f : head_norm(x, width, args.eps),
                       width,
                       args.rotation,
                       args.tokens.positions[t],
                       angles,
                       static_cast<uint16_t*>(is_index ? args.index_q : args.q) + first);
}

// --- attended ---

// One warp per kItems groups of 128 columns of a token. Bytes: 2 per value and the forms.
template <bool kVectors, int kItems>
__global__ void __launch_bounds__(kHeadWarps * 32) attended(const DeviceAttendedArgs args) {
  launch_dependents();
  const int64_t k = static_cast<int64_t>(args.heads) * args.head_dim;
  const int64_t t = blockIdx.y;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kHeadWarps + threadIdx.x / 32) * kItems;
  const int position = args.tokens.positions[t];
  const auto in_head = [&](int i) {
    const auto column = static_cast<int>((first + i) * kGroup + threadIdx.x % 32 * 4);
    return column % args.head_dim;
  };
  const auto angles_of = [&](int i) {
    return rotation4(in_head(i), args.head_dim, args.rotation, position, true);
  };
  Rotation4 early{};
  if (kItems == 1) early = angles_of(0);
  wait_for_predecessors();
  float4 x[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int64_t column = (first + i) * kGroup + threadIdx.x % 32 * 4;
    x[i] = load4<kVectors>(static_cast<const uint16_t*>(args.x) + t * k + column, k - column);
  }
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if ((first + i) * kGroup >= k) return;
    rotate(x[i], kItems == 1 ? early : angles_of(i));
    write_group<kVectors>(args.y, args.tokens.m, k, t, first + i, x[i]);
  }
}

constexpr int kFewTokens = 32;

}  // namespace

Result<void> launch_queries(const DeviceQueriesArgs& args, device::Stream& stream) {
  DCHECK(args.head_dim <= kHeadGroups * kGroup && args.index_width <= kHeadGroups * kGroup);
  DeviceQueriesArgs own = args;
  if (own.index_sums.data == nullptr) own.index_heads = 0;
  const int items = own.heads + own.index_heads + (own.index_heads > 0 ? 1 : 0);
  const bool is_vector = has_vectors(own.q_sums.data, own.head_dim) &&
                         has_vectors(own.index_sums.data, own.index_width) &&
                         has_vectors(static_cast<const uint16_t*>(own.q), own.head_dim) &&
                         has_vectors(static_cast<const uint16_t*>(own.index_q), own.index_width);
  return launch_kernel(
      is_vector ? &queries<true> : &queries<false>,
      {.grid = static_cast<uint32_t>(ceil_div(int64_t{own.tokens.m} * items, kHeadWarps)),
       .block = kHeadWarps * 32,
       .is_dependent = args.is_dependent},
      stream,
      own,
      items);
}

Result<void> launch_attended(const DeviceAttendedArgs& args, device::Stream& stream) {
  constexpr int kManyItems = 4;
  const int64_t k = int64_t{args.heads} * args.head_dim;
  const bool is_few = args.tokens.m <= kFewTokens;
  const bool is_vector =
      has_vectors(static_cast<const uint16_t*>(args.x), k) && has_vectors(args.y, k);
  const int64_t items = kHeadWarps * (is_few ? 1 : kManyItems);
  auto* const kernel =
      is_few ? (is_vector ? &attended<true, 1> : &attended<false, 1>)
             : (is_vector ? &attended<true, kManyItems> : &attended<false, kManyItems>);
  return launch_kernel(kernel,
                       {.grid = static_cast<uint32_t>(ceil_div(ceil_div(k, kGroup), items)),
                        .block = kHeadWarps * 32,
                        .is_dependent = args.is_dependent,
                        .grid_y = static_cast<uint32_t>(args.tokens.m)},
                       stream,
                       args);
}

}  // namespace nibble::kernels::cuda
