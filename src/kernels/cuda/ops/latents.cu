// What a layer makes of its first products: latents of queries, keys, and the compressors of model
// specification 3.5, which are entries of blocks that tokens close and ring rows for the steps to
// come. All of it is independent of each other, so that one launch has a block for each.
#include <cmath>

#include "base/checked_math.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/ops/rows.cuh"

namespace nibble::kernels::cuda {
namespace {

// --- compressors ---

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

// Four channels of gates and values of one token.
struct Slot {
  float4 gate;
  float4 value;
};

// Slots `slot`, slot + kShares, ... of an entry, of which `count` exist; their reads overlap.
//   first_position: of slot 0; channel: of the entry
template <bool kVectors, int kCount>
__device__ __forceinline__ void read_slots(const DeviceLatentsArgs& args,
                                           const DeviceCompressor& part,
                                           const Sequence& sequence,
                                           int first_position,
                                           int slot,
                                           int count,
                                           int channel,
                                           int64_t left,
                                           Slot (&slots)[kCount]) {
  const DeviceCompression& compression = args.compression;
  const bool overlaps = compression.ratio == 4;
  const int channels = overlaps ? 2 * part.width : part.width;
  // Ring rows are complete; rows of this step are sums, gates without their position bias.
  int64_t sums[kCount];  // index of a row of this step, or -1
  int ring_row = (first_position + slot) % compression.ring_capacity;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int own = slot + i * kShares, position = first_position + own;
    const bool is_old = position < sequence.position_begin;
    const int64_t own_left = i < count ? left : 0;
    const int own_channel = channel + (overlaps && own >= compression.ratio ? part.width : 0);
    const int64_t old_row = (sequence.ring_row + ring_row) * compression.ring_width;
    const int64_t new_row =
        (int64_t{sequence.row_begin} + position - sequence.position_begin) * compression.row_width;
    const int64_t row = is_old ? old_row : new_row;
    ring_row += kShares;
    ring_row -= ring_row >= compression.ring_capacity ? compression.ring_capacity : 0;
    const float* const from =
        (is_old ? compression.ring : compression.projections.data) + row + own_channel;
    const float* const bias = part.ape +
                              static_cast<int64_t>(position & (compression.ratio - 1)) * channels +
                              own_channel;
    slots[i] = {load4<kVectors>(from + part.gate_column, own_left) +
                    load4<kVectors>(bias, is_old ? 0 : own_left),
                load4<kVectors>(from + part.value_column, own_left)};
    sums[i] = is_old || i >= count ? -1 : row + own_channel;
  }
  for (int split = 1; split < compression.projections.splits; ++split) {
    const float* const data = compression.projections.data +
                              split * (static_cast<int64_t>(args.tokens.m) * compression.row_width);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int64_t own_left = sums[i] < 0 ? 0 : left;
      const float* const from = data + max(sums[i], int64_t{0});
      slots[i].gate = slots[i].gate + load4<kVectors>(from + part.gate_column, own_left);
      slots[i].value = slots[i].value + load4<kVectors>(from + part.value_column, own_left);
    }
  }
}

// How a kernel is compiled: for few tokens, of which each has blocks of its own and latency counts,
// or for so many that two blocks share a multiprocessor, with 64 registers per thread.
enum class Variant { kScalars, kVectors, kBulkVectors };

// Slots that a thread reads at once in kVectors, and blocks on a multiprocessor in kBulkVectors.
// With more, ptxas runs out of registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kVectorSlots = 1, kBulkBlocks = 1;
#else
constexpr int kVectorSlots = 4, kBulkBlocks = 2;
#endif

// The block's entry; four shares of the slots meet in shared memory, then the first share's threads
// norm, rotate and store. Waits for the kernels ahead.
template <Variant kVariant>
__device__ void form_entry(const DeviceLatentsArgs& args,
                           const DeviceCompressor& part,
                           const Sequence& sequence,
                           int entry) {
  const DeviceCompression& compression = args.compression;
  constexpr bool kVectors = kVariant != Variant::kScalars;
  constexpr int kAtOnce =
      kVariant == Variant::kVectors ? kVectorSlots : (kVariant == Variant::kBulkVectors ? 1 : 2);
  __shared__ Pool pools[kShares - 1][kLanes];
  __shared__ float warps[kGroups];
  const int owner = threadIdx.x % kLanes, share = threadIdx.x / kLanes;
  const int channel = owner * 4;
  const int64_t left = part.width - channel;
  const bool overlaps = compression.ratio == 4;
  const int begin = entry * compression.ratio;
  // Slots in order: with overlap the previous block's first halves, then this block's second.
  const int slots = overlaps ? 2 * compression.ratio : compression.ratio;
  const int first_position = overlaps ? begin - compression.ratio : begin;
  const int first_slot =
      share + (first_position < 0 ? compression.ratio : 0);  // entry 0: no overlap
  const int per_page = compression.page_tokens / compression.ratio;
  int page = 0;
  float4 gamma = {};
  Rotation4 angles{};
  // What the first share needs in the end: ahead of the wait where there are registers for it.
  const auto prepare = [&] {
    page = compression.sequences
               .pages[static_cast<int64_t>(sequence.index) * compression.sequences.max_pages +
                      entry / per_page];
    gamma = load4<kVectors>(part.gamma + channel, left);
    angles = rotation4(channel, part.width, args.rotation, begin, false);
  };
  if (kVariant != Variant::kBulkVectors && share == 0) prepare();
  wait_for_predecessors();

  Pool pool = empty_pool();
  for (int slot = first_slot; left > 0 && slot < slots; slot += kShares * kAtOnce) {
    const int count = min((slots - slot + kShares - 1) / kShares, kAtOnce);
    Slot values[kAtOnce];
    read_slots<kVectors>(args, part, sequence, first_position, slot, count, channel, left, values);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (i < count) add(pool, values[i].gate, values[i].value);
    }
  }
  if (share > 0) pools[share - 1][owner] = pool;
  __syncthreads();
  if (share > 0) return;
  if (kVariant == Variant::kBulkVectors) prepare();
#pragma unroll
  for (int i = 0; i < kShares - 1; ++i) merge(pool, pools[i][owner]);
  float4 v = {0, 0, 0, 0};
  if (left > 0) v.x = pool.sum.x / pool.denominator.x;
  if (left > 1) v.y = pool.sum.y / pool.denominator.y;
  if (left > 2) v.z = pool.sum.z / pool.denominator.z;
  if (left > 3) v.w = pool.sum.w / pool.denominator.w;
  const int group = owner / 32;
  const float squares = warp_sum(sum_of_squares(v));
  if (owner % 32 == 0) warps[group] = squares;
  named_barrier_sync(1, kLanes);
  float sum = 0;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) sum += warps[g];
  if (group * kGroup >= part.width) return;
  const float factor = rsqrtf(sum / static_cast<float>(part.width) + args.eps);
  v = {v.x * factor * gamma.x,
       v.y * factor * gamma.y,
       v.z * factor * gamma.z,
       v.w * factor * gamma.w};
  rotate(v, angles);
  store_key_group<kVectors>(v,
                            group,
                            part.width,
                            part.entry_dtype,
                            part.is_index ? 0 : args.rotation.num_rotary,
                            part.entries,
                            static_cast<int64_t>(page) * per_page + entry % per_page);
}

// The position bias of a column of the ring: of the part whose gates it belongs to, or null.
__device__ __forceinline__ const float* bias_of(const DeviceLatentsArgs& args,
                                                int column,
                                                int phase) {
  const DeviceCompression& compression = args.compression;
  const float* bias = nullptr;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const DeviceCompressor& part = compression.parts[i];
    const int channels = compression.ratio == 4 ? 2 * part.width : part.width;
    const int gate = column - part.gate_column;
    if (i < compression.num_parts && gate >= 0 && gate < channels) {
      bias = part.ape + static_cast<int64_t>(phase) * channels + gate;
    }
  }
  return bias;
}

// Waits for the kernels ahead.
template <bool kVectors>
__device__ void store_ring_row(const DeviceLatentsArgs& args,
                               const Sequence& sequence,
                               int64_t t,
                               int position) {
  const DeviceCompression& compression = args.compression;
  constexpr int kStep = kVectors ? 4 : 1;
  const int phase = position & (compression.ratio - 1);
  wait_for_predecessors();
  float* const row = compression.ring + (sequence.ring_row + position % compression.ring_capacity) *
                                            compression.ring_width;
  const int64_t split_stride = static_cast<int64_t>(args.tokens.m) * compression.row_width;
#pragma unroll 2
  for (int column = threadIdx.x * kStep; column < compression.ring_width;
       column += kThreads * kStep) {
    const float* const bias = bias_of(args, column, phase);
    const float4 v = load4<kVectors>(bias, bias == nullptr ? 0 : kStep);
    store4<kVectors>(
        row + column,
        sum4<kVectors>(
            compression.projections, split_stride, t * compression.row_width + column, kStep) +
            v,
        kStep);
  }
}

// --- latents and keys ---

__device__ __forceinline__ float4 scaled(const float4& v, float factor, const float4& g) {
  return {v.x * factor * g.x, v.y * factor * g.y, v.z * factor * g.z, v.w * factor * g.w};
}

// A group of 128 columns of the latent of the queries, or of the key, for each warp; those of one
// row follow each other from warp `first_warp` on. Waits for the kernels ahead. The whole block.
template <bool kVectors>
__device__ void store_latent(const DeviceLatentsArgs& args,
                             int64_t t,
                             bool is_key,
                             int first_warp) {
  __shared__ float warps[kThreads / 32];
  const int warp = threadIdx.x / 32, group = warp - first_warp;
  const int column = group * kGroup + static_cast<int>(threadIdx.x % 32) * 4;
  const int64_t row_width = int64_t{args.q_rank} + args.head_dim;
  const int width = is_key ? args.head_dim : args.q_rank;
  const int64_t first = t * row_width + (is_key ? args.q_rank : 0);
  const float4 gamma =
      load4<kVectors>((is_key ? args.kv_gamma : args.q_gamma) + column, width - column);
  Rotation4 angles{};
  if (is_key) angles = rotation4(column, width, args.rotation, args.tokens.positions[t], false);
  wait_for_predecessors();
  const int64_t key_row = is_key ? __ldcg(args.key_rows + t) : 0;
  const float4 x =
      sum4<kVectors>(args.qr_kv, args.tokens.m * row_width, first + column, width - column);
  const float squares = warp_sum(sum_of_squares(x));
  if (threadIdx.x % 32 == 0) warps[warp] = squares;
  __syncthreads();
  if (group * kGroup >= width || key_row < 0) return;
  float sum = 0;
  for (int w = 0; w * kGroup < width; ++w) sum += warps[first_warp + w];
  const float factor = rsqrtf(sum / static_cast<float>(width) + args.eps);
  float4 v = scaled(x, factor, gamma);
  if (!is_key) {
    write_group<kVectors>(args.q, args.tokens.m, width, t, group, v);
    return;
  }
  rotate(v, angles);
  store_key_group<kVectors>(
      v, group, width, args.key_dtype, args.rotation.num_rotary, args.window_pool, key_row);
}

// What the blocks of a launch do, in this order: `latents` for each token, then for each kind of
// entry one for each strip of tokens, then one for each strip for its ring rows.
struct Roles {
  int latents;  // 1 where a block has warps for both latents, 2 where it has not, 0 for neither
  int entries;  // one per compressor, for the entries that the tokens close
  int strip;    // tokens in a strip, at most 32
  int num_strips;
};

// Calls visit(token, sequence, position) for the tokens of a strip that close an entry, or whose
// ring rows are the last of their sequence. The whole block.
template <class Visit>
__device__ __forceinline__ void visit_strip(
    const DeviceLatentsArgs& args, const Roles& roles, int strip, bool is_row, const Visit& visit) {
  const DeviceCompression& compression = args.compression;
  const DeviceSequences& sequences = compression.sequences;
  const int lane = threadIdx.x % 32;
  const int begin = strip * roles.strip, own = begin + lane;
  const bool exists = lane < roles.strip && own < args.tokens.m;
  const int own_sequence = exists ? args.tokens.sequences[own] : -1;
  const int own_position = exists ? args.tokens.positions[own] : 0;
  bool has_work = own_sequence >= 0;
  if (has_work && is_row) {
    const int end = sequences.position_begin[own_sequence] + sequences.num_tokens[own_sequence];
    has_work = own_position >= end - compression.ring_capacity;
  } else if (has_work) {
    has_work = ((own_position + 1) & (compression.ratio - 1)) == 0;
  }
  uint32_t tokens = __ballot_sync(~0U, has_work);
  if (tokens == 0) wait_for_predecessors();
  for (; tokens != 0; tokens &= tokens - 1) {
    const int from = __ffs(static_cast<int>(tokens)) - 1;
    const int s = __shfl_sync(~0U, own_sequence, from);
    const int position = __shfl_sync(~0U, own_position, from);
    const Sequence sequence{s,
                            static_cast<int64_t>(sequences.slots[s]) * compression.ring_capacity,
                            sequences.row_begin[s],
                            sequences.position_begin[s]};
    visit(begin + from, sequence, position);
    __syncthreads();  // shared memory is free for the next token
  }
}

// What the plan says is read before the kernels ahead have ended.
// Bytes: 4 splits (q_rank + d) per token and what is written; per entry 8 width times its slots,
// per ring row 4 ring_width (splits + 1).
template <Variant kVariant>
__global__ void __launch_bounds__(kThreads, kVariant == Variant::kBulkVectors ? kBulkBlocks : 1)
    latents(const DeviceLatentsArgs args, const Roles roles) {
  constexpr bool kVectors = kVariant != Variant::kScalars;
  launch_dependents();
  auto block = static_cast<int>(blockIdx.x);
  const int m = args.tokens.m, num_latents = roles.latents * m;
  if (block < num_latents) {
    const int key_warp = roles.latents == 1 ? (args.q_rank + kGroup - 1) / kGroup : 0;
    const bool is_key =
        roles.latents == 1 ? static_cast<int>(threadIdx.x) / 32 >= key_warp : block >= m;
    store_latent<kVectors>(args, block % m, is_key, is_key ? key_warp : 0);
    return;
  }
  block -= num_latents;
  const int part = block / roles.num_strips;
  const bool is_row = part == roles.entries;
  const DeviceCompression& compression = args.compression;
  visit_strip(args,
              roles,
              block % roles.num_strips,
              is_row,
              [&](int64_t t, const Sequence& sequence, int position) {
                if (is_row) {
                  store_ring_row<kVectors>(args, sequence, t, position);
                } else {
                  form_entry<kVariant>(args,
                                       part == 0 ? compression.parts[0] : compression.parts[1],
                                       sequence,
                                       position / compression.ratio);
                }
              });
}

// Whether every row and column begins at a multiple of four.
bool are_vector_latents(const DeviceLatentsArgs& args) {
  return args.q_rank % 4 == 0 && has_vectors(args.qr_kv.data, args.head_dim) &&
         has_vectors(args.q_gamma, 4) && has_vectors(args.kv_gamma, 4) &&
         has_vectors(args.q, args.q_rank) &&
         has_vectors(reinterpret_cast<const float*>(args.window_pool), 4);
}
bool is_vector_part(const DeviceCompressor& part) {
  return part.value_column % 4 == 0 && part.gate_column % 4 == 0 &&
         has_vectors(part.ape, part.width) && has_vectors(part.gamma, part.width) &&
         has_vectors(reinterpret_cast<const float*>(part.entries), 4);
}
bool is_vector_compression(const DeviceCompression& compression) {
  bool is_vector = has_vectors(compression.projections.data, compression.row_width) &&
                   has_vectors(compression.ring, compression.ring_width);
  for (int i = 0; i < compression.num_parts; ++i) {
    DCHECK(compression.parts[i].width <= kMaxWidth) << compression.parts[i].width;
    is_vector = is_vector && is_vector_part(compression.parts[i]);
  }
  return is_vector;
}

}  // namespace

Result<void> launch_latents(const DeviceLatentsArgs& args, device::Stream& stream) {
  constexpr int kWarps = kThreads / 32;
  const DeviceCompression& compression = args.compression;
  const bool has_latents = args.qr_kv.data != nullptr, has_compressors = compression.num_parts > 0;
  DCHECK(args.q_rank <= kWarps * kGroup && args.head_dim <= kWarps * kGroup) << args.q_rank;
  DCHECK(!has_compressors || compression.ratio == 4 || compression.ratio == 128);
  const bool is_vector = (!has_latents || are_vector_latents(args)) &&
                         (!has_compressors || is_vector_compression(compression));
  const int m = args.tokens.m;
  const int64_t latent_warps = ceil_div(args.q_rank, kGroup) + ceil_div(args.head_dim, kGroup);
  // Prompts close an entry every 4 or 128 tokens; tokens of a decode step may all close one.
  constexpr int kMaxDecodeTokens = 128, kPromptStrip = 4;
  Roles roles{.latents = 0, .entries = 0, .strip = m > kMaxDecodeTokens ? kPromptStrip : 1};
  roles.num_strips = (m + roles.strip - 1) / roles.strip;
  if (has_latents) roles.latents = latent_warps <= kWarps ? 1 : 2;
  int blocks = roles.latents * m;
  if (has_compressors) {
    roles.entries = compression.forms_entries ? compression.num_parts : 0;
    blocks += roles.num_strips * (roles.entries + (compression.stores_rows ? 1 : 0));
  }
  // Of more tokens not all blocks would find a multiprocessor of their own.
  constexpr int kMaxSparseTokens = 32;
  auto* kernel = &latents<Variant::kScalars>;
  if (is_vector) {
    kernel = m > kMaxSparseTokens ? &latents<Variant::kBulkVectors> : &latents<Variant::kVectors>;
  }
  return launch_kernel(
      kernel,
      {.grid = static_cast<uint32_t>(blocks), .block = kThreads, .is_dependent = args.is_dependent},
      stream,
      args,
      roles);
}

}  // namespace nibble::kernels::cuda
