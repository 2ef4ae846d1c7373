// Sparse latent attention for few tokens on sm_90a: latency is all that matters. Measurements: spec
// "h200-facts" 7.
//
// A cluster of kSplits blocks serves 16 heads of one token; block i takes the i-th equal part of
// its keys, so each key is read once per 16 heads. Warps split the width in the products with keys
// (8 parts, each for half of the keys of a tile), heads in the softmax, and the width again in the
// products with probabilities. Each block owns 16 / kSplits heads of the merge: partial sums go
// straight from registers to the owner's shared memory, in BF16. There each warp adds 128 columns
// of up to four splits in order, then what several warps have of a head is added in order, the sink
// once. Nothing depends on other tokens.
//
// Nearly all code runs once per launch, so that its length counts: loops that rarely turn are not
// unrolled.
//
// Bytes: a row per key and 16 heads, 2 KB per head of q and out. FLOPs: 4 * 512 per key and head.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/copy_async.cuh"
#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/sm90/sparse_attention/keys.cuh"

namespace nibble::kernels::cuda {

inline constexpr int kClusterHeads = 16;

// Shared memory and the division of work of a block.
template <int kSplits, int kTileKeys>
struct ClusterAttention {
  static constexpr int kWarps = 16, kThreads = kWarps * 32;
  static constexpr int kRowsPerWarp = kTileKeys / kWarps;
  static constexpr int kWidthParts = 8;                    // of the products with keys
  static constexpr int kKeyParts = kWarps / kWidthParts;   // and of a tile's keys
  static constexpr int kPartKeys = kTileKeys / kKeyParts;  // multiples of 8
  static constexpr int kOwnedHeads = kClusterHeads / kSplits;
  // Pitches keep rows on different banks.
  static constexpr int kKeyPitch = kKeyBytes + 16;
  static constexpr int kScorePitch = kTileKeys + 8;  // floats
  static constexpr int kProbabilityPitch = kTileKeys * 2 + 16;
  static constexpr int kScoresOffset = kTileKeys * kKeyPitch;
  static constexpr int kProbabilitiesOffset =
      kScoresOffset + kWidthParts * kClusterHeads * kScorePitch * 4;
  static constexpr int kReceivedOffset = kProbabilitiesOffset + kClusterHeads * kProbabilityPitch;
  static constexpr int kReceivedStatesOffset = kReceivedOffset + kSplits * kOwnedHeads * kKeyBytes;
  static constexpr int kBytes = kReceivedStatesOffset + kSplits * kOwnedHeads * 8;
  static constexpr int kReceivedBytes = kSplits * kOwnedHeads * (kKeyBytes + 8);
  // The merge: a warp has 128 columns of a head and a part of the splits.
  static constexpr int kMergeSplits = kSplits;
  static constexpr int kMergeGroups = kKeyWidth / kGroup;
  static constexpr int kMergeParts = kWarps / kMergeGroups / kOwnedHeads;
  static constexpr int kPartSplits = kSplits / kMergeParts;
  static_assert(kPartSplits * kMergeParts == kSplits);
  static_assert(kTileKeys % kWarps == 0 && kPartKeys % 8 == 0 && kTileKeys % 16 == 0);
  static_assert(kClusterHeads * kKeyPitch <= kProbabilitiesOffset - kScoresOffset);
  static_assert(kReceivedOffset % 16 == 0 && kReceivedStatesOffset % 16 == 0);
};

// Order-preserving map between floats and integers, its own inverse.
__device__ __forceinline__ int ordered(int bits) { return bits ^ ((bits >> 31) & 0x7FFFFFFF); }
__device__ __forceinline__ float ordered_warp_max(float x) {
  return __int_as_float(ordered(__reduce_max_sync(~0U, ordered(__float_as_int(x)))));
}

// A head's query as sums, four values of each group per lane.
using QuerySums = float4[kKeyWidth / kGroup];
__device__ __forceinline__ void read_query(const SparseAttentionParams& params,
                                           int token,
                                           int head,
                                           QuerySums& x) {
  const int64_t row = static_cast<int64_t>(params.heads) * kKeyWidth;
  const int64_t first = token * row + head * kKeyWidth + threadIdx.x % 32 * 4;
  const float* from = params.q_sums.data + first;
#pragma unroll
  for (int i = 0; i < kKeyWidth / kGroup; ++i) x[i] = load4<true>(from + i * kGroup, 4);
#pragma unroll 1
  for (int split = 1; split < params.q_sums.splits; ++split) {
    from += params.m * row;
#pragma unroll
    for (int i = 0; i < kKeyWidth / kGroup; ++i) x[i] = x[i] + load4<true>(from + i * kGroup, 4);
  }
}
// The query as launch_queries() makes it, to shared memory. The whole warp.
//   angles: of the head's last 64 columns
__device__ __forceinline__ void make_query(const QuerySums& x,
                                           float eps,
                                           const float2* angles,
                                           uint16_t* to) {
  constexpr int kGroups = kKeyWidth / kGroup;
  const int lane = threadIdx.x % 32;
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kGroups; ++i) squares += sum_of_squares(x[i]);
  const float factor = rsqrtf(warp_sum(squares) / static_cast<float>(kKeyWidth) + eps);
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    float4 v = {x[i].x * factor, x[i].y * factor, x[i].z * factor, x[i].w * factor};
    if (i == kGroups - 1 && lane >= 16) {
      rotate(v, {angles[2 * (lane - 16)], angles[2 * (lane - 16) + 1]});
    }
    store_vector(to + i * kGroup + lane * 4, v);
  }
}

// Touches what a warp reads and writes after the kernels ahead have ended: the translations of
// these addresses are then at hand, each of which is a trip to memory otherwise.
//   key: the warp's first
__device__ __forceinline__ void prepare_addresses(
    const SparseAttentionParams& params, const TokenKeys& keys, int token, int head, int key) {
  const int lane = threadIdx.x % 32;
  const int64_t row = static_cast<int64_t>(params.heads) * kKeyWidth;
  if (params.q == nullptr && lane < params.q_sums.splits) {
    prefetch_line(params.q_sums.data + (lane * params.m + token) * row + head * kKeyWidth);
  }
  if (lane == 0 && key >= keys.num_window && key < keys.count) {
    prefetch_line(keys.entry_rows + (key - keys.num_window));
  }
  if (threadIdx.x == 0 && params.out.fp8_blocks != nullptr) prefetch_line(params.out.fp8_blocks);
}

// Copies the queries of the block's heads to shared memory, rows kKeyPitch apart.
template <class Shape>
__device__ __forceinline__ void fetch_queries(const SparseAttentionParams& params,
                                              int token,
                                              int first_head,
                                              uint32_t queries,
                                              int warp,
                                              int lane) {
  const uint16_t* const rows =
      params.q + (static_cast<size_t>(token) * params.heads + first_head) * kKeyWidth;
#pragma unroll
  for (int i = 0; i < kClusterHeads * 64 / Shape::kThreads; ++i) {
    const int row = warp / 2 + i * (Shape::kWarps / 2), column = (warp % 2 * 32 + lane) * 8;
    copy_async_16(
        queries + row * Shape::kKeyPitch + column * 2, rows + row * kKeyWidth + column, true);
  }
}

// Copies the warp's i-th key of a tile, with zeros where it is not present: FP8 to registers.
template <class Shape, bool kIsFp8>
__device__ __forceinline__ void fetch_row(const uint8_t* row,
                                          bool is_present,
                                          int i,
                                          uint32_t base,
                                          int warp,
                                          int lane,
                                          Fp8RowPart* parts) {
  if constexpr (kIsFp8) {
    parts[i].read(is_present ? row : nullptr, lane);
  } else {
    const uint32_t destination = base + (warp + i * Shape::kWarps) * Shape::kKeyPitch + lane * 16;
    copy_async_16(destination, row + lane * 16, is_present);
    copy_async_16(destination + 512, row + lane * 16 + 512, is_present);
  }
}

// A warp's part of the queries' width as matrices of 16 columns.
template <class Shape, int kSteps>
__device__ __forceinline__ void load_queries(uint32_t queries,
                                             int width_part,
                                             int lane,
                                             uint32_t (&q)[kSteps][4]) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int column = width_part * (kKeyWidth / Shape::kWidthParts) + step * 16 + lane / 16 * 8;
    load_matrices(q[step], queries + lane % 16 * Shape::kKeyPitch + column * 2);
  }
}

// Waits for the warp's keys, and widens what has come of them in registers.
//   parts: of FP8 rows
template <class Shape, bool kIsFp8, int kCount>
__device__ __forceinline__ void finish_fetch(Fp8RowPart (&parts)[kCount],
                                             int warp,
                                             int lane,
                                             uint8_t* memory) {
  if constexpr (kIsFp8) {
    const auto row_of = [&](int i) {
      return memory + (warp + i * Shape::kWarps) * Shape::kKeyPitch;
    };
    uint2 scales[Shape::kRowsPerWarp];
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < Shape::kRowsPerWarp; ++i) {
      uint8_t* const row = row_of(i);
      scales[i] = parts[i].scales(lane);
      largest = max(largest, max(scales[i].x, scales[i].y));
      parts[i].widen(lane, scales[i], [row](int element, const auto& values) {
        *reinterpret_cast<std::remove_cvref_t<decltype(values)>*>(row + element * 2) = values;
      });
    }
    if (__any_sync(~0U, largest > kLargestScales)) {
#pragma unroll
      for (int i = 0; i < Shape::kRowsPerWarp; ++i) {
        auto* const chunks = reinterpret_cast<uint4*>(row_of(i)) + lane;
        chunks[0] = multiply_eight(chunks[0], scale_excess(scales[i].x));
        if (lane + 32 < kFp8CodeChunks) {
          chunks[32] = multiply_eight(chunks[32], scale_excess(scales[i].y));
        }
      }
    }
  }
  copy_async_wait_all();
}

// A warp's products with a tile's keys: its parts of the width and of the keys.
//   q: 16 columns per step; base: of the keys
template <class Shape, int kSteps, int kKeyTiles>
__device__ __forceinline__ void multiply_keys(const uint32_t (&q)[kSteps][4],
                                              uint32_t base,
                                              int width_part,
                                              int key_part,
                                              int lane,
                                              float (&part)[kKeyTiles][4]) {
#pragma unroll
  for (int pair = 0; pair < kSteps / 2; ++pair) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      uint32_t b[4];
      const int key = key_part * Shape::kPartKeys + n * 8 + lane % 8;
      const int column = width_part * (kKeyWidth / Shape::kWidthParts) + pair * 32 + lane / 8 * 8;
      load_matrices(b, base + key * Shape::kKeyPitch + column * 2);
      mma_bf16(part[n], q[2 * pair], b[0], b[1]);
      mma_bf16(part[n], q[2 * pair + 1], b[2], b[3]);
    }
  }
}

// Parts of scores, [kWidthParts][kClusterHeads][kScorePitch].
template <class Shape, int kKeyTiles>
__device__ __forceinline__ void store_scores(
    const float (&part)[kKeyTiles][4], int width_part, int key_part, int g, int t, float* scores) {
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) {
    float* const to = scores + (width_part * kClusterHeads + g) * Shape::kScorePitch +
                      key_part * Shape::kPartKeys + n * 8 + 2 * t;
    *reinterpret_cast<float2*>(to) = {part[n][0], part[n][1]};
    *reinterpret_cast<float2*>(to + 8 * Shape::kScorePitch) = {part[n][2], part[n][3]};
  }
}

// A head's logits to base 2 of keys lane, lane + 32, ..., summed over the parts of the width, and
// the largest one of the lane.   bias: 0, or -inf where there is no key
template <class Shape, int kTileKeys, int kPerLane>
__device__ __forceinline__ float read_logits(const float* scores,
                                             const float* bias,
                                             float scale_log2,
                                             int head,
                                             int lane,
                                             float (&logits)[kPerLane]) {
  float tile_max = -INFINITY;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int key = i * 32 + lane;
    logits[i] = -INFINITY;
    if (key < kTileKeys) {
      float dot = 0;
#pragma unroll
      for (int w = 0; w < Shape::kWidthParts; ++w) {
        dot += scores[(w * kClusterHeads + head) * Shape::kScorePitch + key];
      }
      logits[i] = dot * scale_log2 + bias[key];
    }
    tile_max = fmaxf(tile_max, logits[i]);
  }
  return tile_max;
}

// Writes the head's probabilities of a tile and adds them, as rounded, to the lane's `sum`.
template <class Shape, int kTileKeys, int kPerLane>
__device__ __forceinline__ void store_probabilities(const float (&logits)[kPerLane],
                                                    float origin,
                                                    int head,
                                                    int lane,
                                                    uint8_t* memory,
                                                    float& sum) {
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int key = i * 32 + lane;
    const uint32_t p = pack_bf16x2(exp2_approx(logits[i] - origin), 0);
    sum += low_bf16(p);
    if (key < kTileKeys) {
      *reinterpret_cast<uint16_t*>(memory + Shape::kProbabilitiesOffset +
                                   head * Shape::kProbabilityPitch + key * 2) =
          static_cast<uint16_t>(p);
    }
  }
}

// To another origin: rows g and g + 8 of sums.
__device__ __forceinline__ void rescale_sums(float top, float bottom, float (&out)[4][4]) {
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    out[n][0] *= top;
    out[n][1] *= top;
    out[n][2] *= bottom;
    out[n][3] *= bottom;
  }
}

// Adds a tile's probabilities times values: 16 heads, 32 columns of a warp.
template <class Shape, int kTileKeys>
__device__ __forceinline__ void add_values(uint32_t base, int warp, int lane, float (&out)[4][4]) {
#pragma unroll
  for (int step = 0; step < kTileKeys / 16; ++step) {
    uint32_t p[4];
    load_matrices(p,
                  base + Shape::kProbabilitiesOffset + lane % 16 * Shape::kProbabilityPitch +
                      step * 32 + lane / 16 * 16);
#pragma unroll
    for (int n = 0; n < 4; n += 2) {
      uint32_t v[4];
      load_matrices_transposed(v,
                               base + (step * 16 + lane % 16) * Shape::kKeyPitch +
                                   (warp * 32 + n * 8 + lane / 16 * 8) * 2);
      mma_bf16(out[n], p, v[0], v[1]);
      mma_bf16(out[n + 1], p, v[2], v[3]);
    }
  }
}

// Sends a warp's sums to the owners of the heads: 16 bytes of rows g and g + 8 each.
template <class Shape>
__device__ __forceinline__ void send_sums(uint32_t base,
                                          uint32_t barrier,
                                          int split,
                                          const float (&out)[4][4]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const auto send = [&](int head, const uint4& values) {
    const auto owner = static_cast<uint32_t>(head / Shape::kOwnedHeads);
    const int row = split * Shape::kOwnedHeads + head % Shape::kOwnedHeads;
    const uint32_t to = Shape::kReceivedOffset + row * kKeyBytes + (warp * 4 + t) * 16;
    store_async(
        shared_address_of_rank(base + to, owner), values, shared_address_of_rank(barrier, owner));
  };
  send(g,
       {pack_bf16x2(out[0][0], out[0][1]),
        pack_bf16x2(out[1][0], out[1][1]),
        pack_bf16x2(out[2][0], out[2][1]),
        pack_bf16x2(out[3][0], out[3][1])});
  send(g + 8,
       {pack_bf16x2(out[0][2], out[0][3]),
        pack_bf16x2(out[1][2], out[1][3]),
        pack_bf16x2(out[2][2], out[2][3]),
        pack_bf16x2(out[3][2], out[3][3])});
}
// And the state of head `warp`. One lane.
template <class Shape>
__device__ __forceinline__ void send_state(
    uint32_t base, uint32_t barrier, int split, float max, float sum) {
  const int warp = threadIdx.x / 32;
  const auto owner = static_cast<uint32_t>(warp / Shape::kOwnedHeads);
  const int row = split * Shape::kOwnedHeads + warp % Shape::kOwnedHeads;
  store_async(shared_address_of_rank(base + Shape::kReceivedStatesOffset + row * 8, owner),
              float2{max, sum},
              shared_address_of_rank(barrier, owner));
}

// Where a warp of the merge writes its 128 columns, found while the kernels ahead run.
struct alignas(16) MergePlace {
  uint8_t* codes;  // in fp8_blocks, with `scale` and `chunk_bytes`: see fp8_block_row()
  float* scale;
  int chunk_bytes;
  int head;
  float sink;         // of logits to base 2
  bool gives_blocks;  // and no other form

  MergePlace() = default;
  __device__ __forceinline__
  MergePlace(const SparseAttentionParams& params, int token, int own_head, int group)
      : head(own_head), sink(__ldg(params.sink + own_head) * 1.4426950408889634f) {
    const int64_t row_groups = static_cast<int64_t>(params.heads) * (kKeyWidth / kGroup);
    const Fp8BlockRow place = fp8_block_row(reinterpret_cast<uint8_t*>(params.out.fp8_blocks),
                                            params.m,
                                            row_groups * kGroup,
                                            token,
                                            own_head * (kKeyWidth / kGroup) + group);
    codes = place.codes;
    scale = place.scale;
    chunk_bytes = static_cast<int>(place.chunk_bytes);
    const ActivationForms& out = params.out;
    gives_blocks = out.fp8_blocks != nullptr && out.f32 == nullptr && out.bf16 == nullptr &&
                   out.bf16_blocks == nullptr && out.bf16_terms == nullptr && out.fp8 == nullptr;
  }
};

// Writes a warp's 128 columns of a head in every form asked for.
//   group: of the head's width
template <class Shape>
__device__ __forceinline__ void write_merged(const SparseAttentionParams& params,
                                             int token,
                                             const MergePlace& place,
                                             int group,
                                             const float4& merged) {
  const int lane = threadIdx.x % 32;
  if (place.gives_blocks) {
    // Of magnitudes, which are ordered as their bits are; NaN counts as nothing.
    const int largest = __reduce_max_sync(~0U, __float_as_int(fmaxf(largest_of(merged), 0.0f)));
    const uint32_t exponent = e4m3_scale_exponent(__int_as_float(largest));
    *reinterpret_cast<uint32_t*>(place.codes + lane / 4 * place.chunk_bytes + lane % 4 * 4) =
        e4m3_codes(merged, exponent);
    if (lane == 0) *place.scale = power_of_two(exponent);
    return;
  }
  write_group<true>(params.out,
                    params.m,
                    static_cast<int64_t>(params.heads) * kKeyWidth,
                    token,
                    static_cast<int64_t>(place.head) * Shape::kMergeGroups + group,
                    merged);
}

// A warp's 128 columns: four of each lane, over the part of the splits that it has, in order.
//   weight: of split `lane`
template <class Shape>
__device__ __forceinline__ float4 weighted_sum(const uint2 (&values)[Shape::kPartSplits],
                                               float weight,
                                               int first_split) {
  float4 merged = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < Shape::kPartSplits; ++i) {
    const float w = __shfl_sync(~0U, weight, first_split + i);
    merged = {fmaf(w, low_bf16(values[i].x), merged.x),
              fmaf(w, high_bf16(values[i].x), merged.y),
              fmaf(w, low_bf16(values[i].y), merged.z),
              fmaf(w, high_bf16(values[i].y), merged.w)};
  }
  return merged;
}

// The sum over the splits, of which each lane has one.
template <class Shape>
__device__ __forceinline__ float sum_splits(float value) {
#pragma unroll
  for (int step = Shape::kMergeSplits / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(~0U, value, step);
  }
  return value;
}

// Merges what all splits have sent of the block's heads. The warps of a head's first part of the
// splits add the others' sums and write.
template <class Shape>
__device__ __forceinline__ void merge_heads(const SparseAttentionParams& params,
                                            int token,
                                            const MergePlace& place,
                                            const float2* angles,
                                            uint8_t* memory) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int group = warp % Shape::kMergeGroups;
  const int part = warp / Shape::kMergeGroups % Shape::kMergeParts;
  const int owned = warp / Shape::kMergeGroups / Shape::kMergeParts;
  const int first_split = part * Shape::kPartSplits;
  const int pair = group * (kGroup / 2) + lane * 2;
  // Sums of a warp lie by lane: pair p's 4 bytes are word p % 16 / 4 of the 16 bytes of its lane.
  const uint8_t* const received = memory + Shape::kReceivedOffset +
                                  (first_split * Shape::kOwnedHeads + owned) * kKeyBytes +
                                  (pair / 16 * 4 + pair % 4) * 16 + pair % 16 / 4 * 4;
  uint2 values[Shape::kPartSplits];
#pragma unroll
  for (int i = 0; i < Shape::kPartSplits; ++i) {
    const uint8_t* const from = received + i * Shape::kOwnedHeads * kKeyBytes;
    values[i] = {*reinterpret_cast<const uint32_t*>(from),
                 *reinterpret_cast<const uint32_t*>(from + 16)};
  }
  // Lane i weighs split i; further lanes repeat it.
  const float2 state = reinterpret_cast<const float2*>(
      memory +
      Shape::kReceivedStatesOffset)[lane % Shape::kMergeSplits * Shape::kOwnedHeads + owned];
  const float sink = place.sink, max = fmaxf(sink, ordered_warp_max(state.x));
  const float origin = max == -INFINITY ? 0.0f : max;
  const float weight = exp2_approx(state.x - origin);
  float4 merged = weighted_sum<Shape>(values, weight, first_split);
  // Where keys were: every warp of the block has sent its sums.
  float4* const partial = reinterpret_cast<float4*>(memory) + owned * kKeyWidth + group * 32 + lane;
  const int barrier = 1 + owned * Shape::kMergeGroups + group;
  if (part > 0) {
    partial[(part - 1) * (kKeyWidth / 4)] = merged;
    named_barrier_arrive(barrier, Shape::kMergeParts * 32);
    return;
  }
  const float denominator = sum_splits<Shape>(weight * state.y) + exp2_approx(sink - origin);
  const float inverse = max == -INFINITY ? 0.0f : __fdividef(1.0f, denominator);
  if constexpr (Shape::kMergeParts > 1) named_barrier_sync(barrier, Shape::kMergeParts * 32);
#pragma unroll
  for (int i = 0; i < Shape::kMergeParts - 1; ++i) {
    merged = merged + partial[i * (kKeyWidth / 4)];
  }
  merged = {merged.x * inverse, merged.y * inverse, merged.z * inverse, merged.w * inverse};
  const int rotary = pair - (kKeyWidth / 2 - kRotaryPairs);
  if (rotary >= 0) {
    rotate_back(merged.x, merged.y, angles[rotary]);
    rotate_back(merged.z, merged.w, angles[rotary + 1]);
  }
  write_merged<Shape>(params, token, place, group, merged);
}

// Grid: (token, head group, split), split fastest.
template <int kSplits, int kTileKeys, bool kIsFp8>
__global__ void __launch_bounds__(ClusterAttention<kSplits, kTileKeys>::kThreads, 2)
    sparse_attention_cluster(const SparseAttentionParams params) {
  using Shape = ClusterAttention<kSplits, kTileKeys>;
  constexpr int kRowBytes = kIsFp8 ? kFp8RowBytes : kKeyBytes;
  constexpr int kSteps = kKeyWidth / Shape::kWidthParts / 16;
  constexpr int kKeyTiles = Shape::kPartKeys / 8;
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ __align__(8) uint64_t received_barrier;
  __shared__ float bias[kTileKeys];  // 0, or -inf where there is no key
  __shared__ float rescale[kClusterHeads];
  __shared__ float2 angles[kRotaryPairs];
  __shared__ MergePlace places[Shape::kWarps];
  float* const scores = reinterpret_cast<float*>(memory + Shape::kScoresOffset);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const uint32_t base = shared_address(memory), barrier = shared_address(&received_barrier);
  const auto split = static_cast<int>(blockIdx.x % kSplits);
  const int groups = params.heads / kClusterHeads;
  const auto token = static_cast<int>(blockIdx.x / kSplits) / groups;
  const auto first_head = static_cast<int>(blockIdx.x / kSplits) % groups * kClusterHeads;
  if (threadIdx.x == 0) {
    barrier_init(barrier, 1);
    fence_barrier_init();
    barrier_arrive_expect(barrier, Shape::kReceivedBytes);
  }
  cluster_arrive_relaxed();

  const TokenKeys keys(params, token);
  const int share = (keys.count + kSplits - 1) / kSplits;
  const int begin = min(split * share, keys.count), end = min(begin + share, keys.count);

  // Where the key of a tile lies that lane i finds for the warp, its i-th: a row of a pool, or -1.
  const auto find_key = [&](int tile_begin, bool is_wanted) {
    const int key = tile_begin + warp + lane * Shape::kWarps;
    return is_wanted && lane < Shape::kRowsPerWarp && key < end ? keys.row(key) : -1;
  };
  // Copies the warp's keys of a tile that `mask` has a bit for.
  Fp8RowPart parts[kIsFp8 ? Shape::kRowsPerWarp : 1];
  const auto copy_keys = [&](int tile_begin, int found, uint32_t mask) {
    const int own_slot = warp + lane * Shape::kWarps;
    const uint8_t* const own_row =
        keys.pool(params, tile_begin + own_slot) + static_cast<size_t>(max(found, 0)) * kRowBytes;
    if (lane < Shape::kRowsPerWarp && (mask >> lane & 1) != 0) {
      bias[own_slot] = found < 0 ? -INFINITY : 0.0f;
    }
    const uint32_t present = __ballot_sync(~0U, found >= 0);
#pragma unroll
    for (int i = 0; i < Shape::kRowsPerWarp; ++i) {
      if ((mask >> i & 1) == 0) continue;
      const auto* const row = reinterpret_cast<const uint8_t*>(
          __shfl_sync(~0U, reinterpret_cast<uint64_t>(own_row), i));
      const bool is_present = (present >> i & 1) != 0;
      fetch_row<Shape, kIsFp8>(row, is_present, i, base, warp, lane, parts);
    }
  };

  // q lies where scores will be, until each warp has taken its part: 64 of the width.
  const int width_part = warp % Shape::kWidthParts, key_part = warp / Shape::kWidthParts;
  const uint32_t queries = base + Shape::kScoresOffset;

  const int own_key = begin + warp + lane * Shape::kWarps;
  const bool is_ready = lane < Shape::kRowsPerWarp && own_key < end && keys.is_ready(own_key);
  const uint32_t ready = __ballot_sync(~0U, is_ready);
  copy_keys(begin, find_key(begin, is_ready), ready);
  prepare_addresses(params, keys, token, first_head + warp, begin + warp);
  if (threadIdx.x < kRotaryPairs) {
    angles[threadIdx.x] = pair_rotation(params, token, static_cast<int>(threadIdx.x));
  }
  if (lane == 0) {
    const int owned = warp / (Shape::kWarps / Shape::kOwnedHeads);
    places[warp] = MergePlace(
        params, token, first_head + split * Shape::kOwnedHeads + owned, warp % Shape::kMergeGroups);
  }
  __syncthreads();
  wait_for_predecessors();
  // Not before: with no more than two launches at a time no two clusters of one share
  // multiprocessors, which takes 1.7 us.
  launch_dependents();
  // Three trips to memory: the list, beside it the queries, and the rows when the list has come.
  const int found = find_key(begin, !is_ready);
  QuerySums query = {};
  if (params.q != nullptr) {
    fetch_queries<Shape>(params, token, first_head, queries, warp, lane);
  } else {
    read_query(params, token, first_head + warp, query);
  }
  copy_async_commit();
  copy_keys(begin, found, ~ready);
  copy_async_commit();
  if (params.q == nullptr) {
    make_query(
        query,
        params.eps,
        angles,
        reinterpret_cast<uint16_t*>(memory + Shape::kScoresOffset + warp * Shape::kKeyPitch));
  }
  copy_async_wait<1>();
  __syncthreads();
  uint32_t q[kSteps][4];
  load_queries<Shape>(queries, width_part, lane, q);
  float out[4][4] = {};
  float max = -INFINITY, sum = 0;  // of head `warp`; sum of this lane's keys
  for (int tile = begin; tile < end; tile += kTileKeys) {
    if (tile != begin) {
      __syncthreads();
      copy_keys(tile, find_key(tile, true), ~0U);
    }
    finish_fetch<Shape, kIsFp8>(parts, warp, lane, memory);
    __syncthreads();
    float part[kKeyTiles][4] = {};
    multiply_keys<Shape>(q, base, width_part, key_part, lane, part);
    store_scores<Shape>(part, width_part, key_part, g, t, scores);
    __syncthreads();

    constexpr int kPerLane = (kTileKeys + 31) / 32;
    float logits[kPerLane];
    const float tile_max =
        read_logits<Shape, kTileKeys>(scores, bias, params.scale_log2, warp, lane, logits);
    const float new_max = fmaxf(max, ordered_warp_max(tile_max));
    const float origin = new_max == -INFINITY ? 0.0f : new_max;
    const float factor = exp2_approx(max - origin);
    sum *= factor;
    max = new_max;
    if (lane == 0) rescale[warp] = factor;
    store_probabilities<Shape, kTileKeys>(logits, origin, warp, lane, memory, sum);
    __syncthreads();

    if (tile != begin) rescale_sums(rescale[g], rescale[g + 8], out);
    add_values<Shape, kTileKeys>(base, warp, lane, out);
  }

  // A block without keys has written zeros in place of them: no copy may be under way in the merge.
  copy_async_wait_all();
  cluster_wait();
  send_sums<Shape>(base, barrier, split, out);
  sum = warp_sum(sum);
  if (lane == 0) send_state<Shape>(base, barrier, split, max, sum);
  barrier_wait(barrier, 0);
  // In builds for racecheck, which does not see that who has sent has read the keys.
  if constexpr (kWarpArrivals == 32) __syncthreads();
  merge_heads<Shape>(params, token, places[warp], angles, memory);
}

}  // namespace nibble::kernels::cuda
