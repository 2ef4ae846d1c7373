// The compressors of a layer (model specification 3.5): entries of blocks that tokens close, and
// ring rows for the steps to come.
#include <cmath>

#include "base/checked_math.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/ops/rows.cuh"

namespace nibble::kernels::cuda {
namespace {

constexpr int kMaxWidth = 512;         // of an entry
constexpr int kLanes = kMaxWidth / 4;  // threads that own four channels each
constexpr int kShares = 4;             // of a block's slots
constexpr int kThreads = kLanes * kShares;
constexpr int kGroups = kMaxWidth / kGroup;

// A softmax-weighted sum of four channels over some of the slots: values are relative to `largest`.
struct Pool {
  float4 largest;
  float4 denominator;
  float4 sum;
};
__device__ __forceinline__ Pool empty_pool() {
  return {{-INFINITY, -INFINITY, -INFINITY, -INFINITY}, {0, 0, 0, 0}, {0, 0, 0, 0}};
}

__device__ __forceinline__ void add_channel(
    float& largest, float& denominator, float& sum, float gate, float value) {
  const float next = fmaxf(largest, gate);
  // Both are -infinity only where nothing was added and nothing is.
  const float old_share = largest == next ? 1.0f : __expf(largest - next);
  const float share = gate == next ? 1.0f : __expf(gate - next);
  denominator = fmaf(denominator, old_share, share);
  sum = fmaf(sum, old_share, share * value);
  largest = next;
}
__device__ __forceinline__ void add(Pool& pool, const float4& gate, const float4& value) {
  add_channel(pool.largest.x, pool.denominator.x, pool.sum.x, gate.x, value.x);
  add_channel(pool.largest.y, pool.denominator.y, pool.sum.y, gate.y, value.y);
  add_channel(pool.largest.z, pool.denominator.z, pool.sum.z, gate.z, value.z);
  add_channel(pool.largest.w, pool.denominator.w, pool.sum.w, gate.w, value.w);
}
__device__ __forceinline__ void merge_channel(float& largest,
                                              float& denominator,
                                              float& sum,
                                              float other_largest,
                                              float other_denominator,
                                              float other_sum) {
  if (other_denominator == 0) return;
  const float next = fmaxf(largest, other_largest);
  const float share = largest == next ? 1.0f : __expf(largest - next);
  const float other_share = other_largest == next ? 1.0f : __expf(other_largest - next);
  denominator = denominator * share + other_denominator * other_share;
  sum = sum * share + other_sum * other_share;
  largest = next;
}
__device__ __forceinline__ void merge(Pool& a, const Pool& b) {
  merge_channel(a.largest.x, a.denominator.x, a.sum.x, b.largest.x, b.denominator.x, b.sum.x);
  merge_channel(a.largest.y, a.denominator.y, a.sum.y, b.largest.y, b.denominator.y, b.sum.y);
  merge_channel(a.largest.z, a.denominator.z, a.sum.z, b.largest.z, b.denominator.z, b.sum.z);
  merge_channel(a.largest.w, a.denominator.w, a.sum.w, b.largest.w, b.denominator.w, b.sum.w);
}

struct Sequence {
  int index;
  int64_t ring_row;  // its first
  int row_begin;
  int position_begin;
};

// Four channels of gates and values of the token at `position`, `channel` counting from the part's
// columns.
struct Slot {
  float4 gate;
  float4 value;
};
__device__ __forceinline__ Slot read_slot(const DeviceCompressArgs& args,
                                          const DeviceCompressor& part,
                                          const Sequence& sequence,
                                          int position,
                                          int channel,
                                          int64_t left) {
  // Ring rows are complete; rows of this step are sums without the position bias.
  const bool is_old = position < sequence.position_begin;
  const int64_t row =
      is_old ? (sequence.ring_row + position % args.ring_capacity) * args.ring_width
             : (int64_t{sequence.row_begin} + position - sequence.position_begin) * args.row_width;
  const float* from = (is_old ? args.ring : args.projections.data) + row + channel;
  Slot slot{load4(from + part.gate_column, left), load4(from + part.value_column, left)};
  if (is_old) return slot;
  for (int split = 1; split < args.projections.splits; ++split) {
    from += static_cast<int64_t>(args.tokens.m) * args.row_width;
    slot.gate = slot.gate + load4(from + part.gate_column, left);
    slot.value = slot.value + load4(from + part.value_column, left);
  }
  const int channels = args.ratio == 4 ? 2 * part.width : part.width;
  const float* const bias = part.ape + static_cast<int64_t>(position % args.ratio) * channels;
  slot.gate = slot.gate + load4(bias + channel, left);
  return slot;
}

// The block's entry; four shares of the slots meet in shared memory, then the first share's threads
// norm, rotate and store.
__device__ void form_entry(const DeviceCompressArgs& args,
                           const DeviceCompressor& part,
                           const Sequence& sequence,
                           int entry) {
  constexpr int kAtOnce = 4;
  __shared__ Pool pools[kShares - 1][kLanes];
  __shared__ float warps[kGroups];
  const int owner = threadIdx.x % kLanes, share = threadIdx.x / kLanes;
  const int channel = owner * 4;
  const int64_t left = part.width - channel;
  const bool overlaps = args.ratio == 4;
  const int begin = entry * args.ratio;
  // Slots in order: with overlap the previous block's first halves, then this block's second.
  const int slots = overlaps ? 2 * args.ratio : args.ratio;
  const int first_position = overlaps ? begin - args.ratio : begin;
  Pool pool = empty_pool();
  const int first_slot = share + (first_position < 0 ? args.ratio : 0);  // entry 0: no overlap
  for (int slot = first_slot; left > 0 && slot < slots; slot += kShares * kAtOnce) {
    Slot values[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int own = slot + i * kShares;
      const int half = overlaps && own >= args.ratio ? part.width : 0;
      if (own < slots) {
        values[i] = read_slot(args, part, sequence, first_position + own, half + channel, left);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (slot + i * kShares < slots) add(pool, values[i].gate, values[i].value);
    }
  }
  if (share > 0) pools[share - 1][owner] = pool;
  __syncthreads();
  if (share > 0) return;
#pragma unroll
  for (int i = 0; i < kShares - 1; ++i) merge(pool, pools[i][owner]);
  float4 v = {0, 0, 0, 0};
  if (left > 0) {
    v = {pool.sum.x / pool.denominator.x,
         pool.sum.y / pool.denominator.y,
         pool.sum.z / pool.denominator.z,
         pool.sum.w / pool.denominator.w};
    if (left < 4) v.w = 0;
    if (left < 3) v.z = 0;
    if (left < 2) v.y = 0;
  }
  const int group = owner / 32;
  const float squares = warp_sum(sum_of_squares(v));
  if (owner % 32 == 0) warps[group] = squares;
  named_barrier_sync(1, kLanes);
  float sum = 0;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) sum += warps[g];
  if (group * kGroup >= part.width) return;
  const float factor = rsqrtf(sum / static_cast<float>(part.width) + args.eps);
  const float4 gamma = load4(part.gamma + channel, left);
  v = {v.x * factor * gamma.x,
       v.y * factor * gamma.y,
       v.z * factor * gamma.z,
       v.w * factor * gamma.w};
  rotate4(v, channel, part.width, args.rotation, begin, false);
  const int per_page = args.page_tokens / args.ratio;
  const int page =
      __ldcg(args.sequences.pages +
             static_cast<int64_t>(sequence.index) * args.sequences.max_pages + entry / per_page);
  store_key_group(v,
                  group,
                  part.width,
                  part.entry_dtype,
                  part.is_index ? 0 : args.rotation.num_rotary,
                  part.entries,
                  static_cast<int64_t>(page) * per_page + entry % per_page);
}

// The position bias of a column of the ring: of the part whose gates it belongs to.
__device__ __forceinline__ float bias_of(const DeviceCompressArgs& args, int column, int phase) {
  float bias = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (i >= args.num_parts) break;
    const DeviceCompressor& part = args.parts[i];
    const int channels = args.ratio == 4 ? 2 * part.width : part.width;
    const int gate = column - part.gate_column;
    if (gate >= 0 && gate < channels)
      bias = part.ape[static_cast<int64_t>(phase) * channels + gate];
  }
  return bias;
}

__device__ void store_ring_row(const DeviceCompressArgs& args,
                               const Sequence& sequence,
                               int64_t t,
                               int position) {
  const int end = sequence.position_begin + __ldcg(args.sequences.num_tokens + sequence.index);
  if (position < end - args.ring_capacity) return;
  float* const row =
      args.ring + (sequence.ring_row + position % args.ring_capacity) * args.ring_width;
  const int64_t split_stride = static_cast<int64_t>(args.tokens.m) * args.row_width;
  for (int column = threadIdx.x; column < args.ring_width; column += kThreads) {
    row[column] = sum1(args.projections, split_stride, t * args.row_width + column) +
                  bias_of(args, column, position % args.ratio);
  }
}

// Blocks of a token (blockIdx.x): one per part for the entry it may close, one for its ring row.
// Bytes: per entry 8 width times its slots, per ring row 4 ring_width (splits + 1).
__global__ void __launch_bounds__(kThreads, 1)
    compress(const DeviceCompressArgs args, int num_entry_blocks) {
  launch_dependents();
  wait_for_predecessors();
  const int64_t t = blockIdx.x;
  const int part = blockIdx.y;
  const int s = __ldcg(args.tokens.sequences + t);
  if (s < 0) return;
  const int position = __ldcg(args.tokens.positions + t);
  if (part < num_entry_blocks && (position + 1) % args.ratio != 0) return;
  const Sequence sequence{
      s,
      static_cast<int64_t>(__ldcg(args.sequences.slots + s)) * args.ring_capacity,
      __ldcg(args.sequences.row_begin + s),
      __ldcg(args.sequences.position_begin + s)};
  if (part == num_entry_blocks) {
    store_ring_row(args, sequence, t, position);
  } else if (part == 0) {
    form_entry(args, args.parts[0], sequence, position / args.ratio);
  } else {
    form_entry(args, args.parts[1], sequence, position / args.ratio);
  }
}

}  // namespace

Result<void> launch_compress(const DeviceCompressArgs& args, device::Stream& stream) {
  for (int i = 0; i < args.num_parts; ++i) {
    DCHECK(args.parts[i].width <= kMaxWidth) << args.parts[i].width;
  }
  const int entry_blocks = args.forms_entries ? args.num_parts : 0;
  return launch_kernel(&compress,
                       {.grid = static_cast<uint32_t>(args.tokens.m),
                        .block = kThreads,
                        .is_dependent = args.is_dependent,
                        .grid_y = static_cast<uint32_t>(entry_blocks + (args.stores_rows ? 1 : 0))},
                       stream,
                       args,
                       entry_blocks);
}

}  // namespace nibble::kernels::cuda
