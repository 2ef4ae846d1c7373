// Scores of the indexer on sm_90a: score(entry) = sum over heads of relu(q_h . key) * weight_h.
//
// Entries are the M operand of the tensor cores, the 64 heads the N operand. Each warpgroup of a
// block takes every n-th tile of 64 entries and keeps three of them on their way through shared
// memory of its own; nothing is exchanged between warpgroups. Where the launch selects, too, the
// last of a token's blocks to finish does that (top_k/select.cuh) from scores in the L2 cache. The
// warps of a token's blocks share its heads where the launch makes attention's queries.
//
// Bytes: 256 per entry, 4 per score. FLOPs: 16,384 per entry.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/copy_async.cuh"
#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/wgmma_bf16.cuh"
#include "kernels/cuda/ops/queries.cuh"
#include "kernels/cuda/sm90/top_k/select.cuh"

namespace nibble::kernels::cuda {

inline constexpr int kIndexHeads = 64, kIndexWidth = 128;
inline constexpr int kIndexKeyBytes = 2 * kIndexWidth;

// Shared memory of a block: q, then each warpgroup's tiles; all as two swizzled blocks of 64
// columns.
struct IndexerScoreShape {
  static constexpr int kWarpgroups = 4, kThreads = kWarpgroups * 128;
  static constexpr int kTileEntries = 64, kStages = 3;
  static constexpr int kColumnBlockBytes = 64 * kSwizzledRowBytes;
  static constexpr int kTileBytes = 2 * kColumnBlockBytes;
  static constexpr int kAlignment = 1024;
  static constexpr int kBytes = (1 + kWarpgroups * kStages) * kTileBytes + kAlignment;
};

using IndexerSelectState = SelectState<IndexerScoreShape::kThreads>;
// The most scores of a token that a launch selects from.
inline constexpr int kIndexerSelectColumns = 8 * IndexerSelectState::kChunk;
static_assert(sizeof(IndexerSelectState) <= IndexerScoreShape::kBytes);

// DeviceIndexerScoreArgs as the kernel takes them.
struct IndexerScoreParams {
  const uint8_t* q;
  const float* head_weights;
  DeviceSums q_sums;
  DeviceHeadWeights weights;
  const int* positions;
  DeviceRotation rotation;
  DeviceHeadQueries beside;
  int m;
  const uint8_t* keys;
  const int* pages;
  const int* counts;
  int max_pages;
  int page_shift;  // log2 of entries per page
  int unscored_count;
  int blocks_per_token;
  float* scores;
  int64_t columns;
  DeviceSelection selection;
};

// The token's queries from sums, rotated as launch_queries() does, to shared memory. A warp has
// four heads; their loads overlap.
//   to: the two column blocks; angles: of this lane's columns
__device__ __forceinline__ void make_index_queries(const IndexerScoreParams& params,
                                                   int token,
                                                   const Rotation4& angles,
                                                   uint8_t* to) {
  constexpr int kWarps = IndexerScoreShape::kThreads / 32, kHeads = kIndexHeads / kWarps;
  constexpr int64_t kRow = kIndexHeads * kIndexWidth;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float4 x[kHeads];
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    const int64_t index = token * kRow + (warp * kHeads + i) * kIndexWidth + lane * 4;
    x[i] = sum4<true>(params.q_sums, params.m * kRow, index, 4);
  }
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    const auto head = static_cast<uint32_t>(warp * kHeads + i);
    const auto chunk = static_cast<uint32_t>(lane / 2);  // of eight columns
    rotate(x[i], angles);
    store_vector(reinterpret_cast<uint16_t*>(to + chunk / 8 * IndexerScoreShape::kColumnBlockBytes +
                                             swizzled_chunk(head, chunk % 8) + lane % 2 * 8),
                 x[i]);
  }
}

__device__ __forceinline__ float index_weight(const IndexerScoreParams& params,
                                              int token,
                                              int head) {
  if (params.q != nullptr) return __ldcg(params.head_weights + token * kIndexHeads + head);
  return head_weight(params.weights, params.m, token, head);
}

// This warp's heads of the token to make attention's queries of, one at a time.
struct HeadQueries {
  const DeviceHeadQueries& args;
  const DeviceRotation& rotation;
  int64_t m;
  int token;
  int position;
  int head;
  int step;  // to the warp's next head
  HeadSums sums;

  __device__ __forceinline__ HeadQueries(const IndexerScoreParams& params, int own_token, int block)
      : args(params.beside),
        rotation(params.rotation),
        m(params.m),
        token(own_token),
        head(block + static_cast<int>(threadIdx.x / 32) * params.blocks_per_token),
        step(params.blocks_per_token * (IndexerScoreShape::kThreads / 32)) {
    if (head < args.heads) position = __ldg(params.positions + token);
  }
  // The next head, if there is one.
  __device__ __forceinline__ void read() {
    if (head < args.heads) read_head<true>(args.sums, m * row(), first(), args.head_dim, sums);
  }
  // Writes what was read, and all others.
  __device__ __forceinline__ void write_all() {
    if (head >= args.heads) return;
    const Rotation4 angles = head_rotation(args.head_dim, rotation, position);
    while (head < args.heads) {
      write_head<true>(sums,
                       head_norm(sums, args.head_dim, args.eps),
                       args.head_dim,
                       rotation,
                       position,
                       angles,
                       static_cast<uint16_t*>(args.q) + first());
      head += step;
      read();
    }
  }

 private:
  __device__ __forceinline__ int64_t row() const { return int64_t{args.heads} * args.head_dim; }
  __device__ __forceinline__ int64_t first() const {
    return token * row() + int64_t{head} * args.head_dim;
  }
};

// Pool row of an entry of the token.
__device__ __forceinline__ int index_row(const IndexerScoreParams& params,
                                         const int* pages,
                                         int entry) {
  const int in_page = entry & ((1 << params.page_shift) - 1);
  return (__ldg(pages + (entry >> params.page_shift)) << params.page_shift) + in_page;
}

// Whether this block is the last of a token's to come here; it then sees what all of them wrote.
__device__ __forceinline__ bool is_last_to_finish(int* counter, int blocks) {
  __shared__ bool is_last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(counter, 1) == blocks - 1;
    if (is_last) *counter = 0;
  }
  __syncthreads();
  if (is_last) __threadfence();
  return is_last;
}

// Writes the pool rows of the best of a token's scores.
template <int kChunks>
__device__ __forceinline__ void select_entries(const IndexerScoreParams& params,
                                               int token,
                                               const int* pages,
                                               int count,
                                               IndexerSelectState& state) {
  const DeviceSelection& selection = params.selection;
  uint32_t keys[kChunks * 4];
  read_scores<kChunks>(params.scores + token * params.columns, 0, count, keys);
  clear(state);
  __syncthreads();
  int* const indices = selection.indices + static_cast<int64_t>(token) * selection.k;
  select_best<kChunks>(
      keys,
      selection.k,
      state,
      [](int i) { return position_of<kChunks>(i); },
      [&](uint32_t slot, uint32_t, int index) { indices[slot] = index_row(params, pages, index); });
}
__device__ __forceinline__ void select_entries(const IndexerScoreParams& params,
                                               int token,
                                               const int* pages,
                                               int count,
                                               IndexerSelectState& state) {
  constexpr int kChunk = IndexerSelectState::kChunk;
  if (count <= kChunk) {
    select_entries<1>(params, token, pages, count, state);
  } else if (count <= 2 * kChunk) {
    select_entries<2>(params, token, pages, count, state);
  } else if (count <= 4 * kChunk) {
    select_entries<4>(params, token, pages, count, state);
  } else {
    select_entries<8>(params, token, pages, count, state);
  }
}

// Grid: (token, block), block fastest.
template <bool kSelects>
__global__ void __launch_bounds__(IndexerScoreShape::kThreads, 1)
    indexer_score(const IndexerScoreParams params) {
  using Shape = IndexerScoreShape;
  extern __shared__ __align__(16) uint8_t unaligned[];
  __shared__ float head_weights[kIndexHeads];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int group = warp / 4, warp_in_group = warp % 4;
  const auto thread = static_cast<int>(threadIdx.x) % 128;
  const uint32_t queries =
      (shared_address(unaligned) + Shape::kAlignment - 1) / Shape::kAlignment * Shape::kAlignment;
  uint32_t ring = queries + (1 + group * Shape::kStages) * Shape::kTileBytes;
  keep_in_register(ring);
  const auto token = static_cast<int>(blockIdx.x) / params.blocks_per_token;
  const auto block = static_cast<int>(blockIdx.x) % params.blocks_per_token;
  const int count = __ldg(params.counts + token);
  const int num_tiles = (count + Shape::kTileEntries - 1) / Shape::kTileEntries;
  const int* const pages = params.pages + static_cast<int64_t>(token) * params.max_pages;
  const int step = params.blocks_per_token * Shape::kWarpgroups;
  const int first_tile = block + group * params.blocks_per_token;

  // Eight lanes read 128 bytes of a row; a thread has the same chunk of rows thread / 16 + 8 i.
  const auto chunk = static_cast<uint32_t>(thread % 16);
  const auto first_row = static_cast<uint32_t>(thread / 16);
  const uint32_t chunk_block = chunk / 8 * Shape::kColumnBlockBytes;
  launch_dependents();
  HeadQueries beside(params, token, block);
  if (params.beside.sums.data != nullptr) {
    wait_for_predecessors();
    beside.read();
  }
  if (count <= params.unscored_count || block >= num_tiles) {
    wait_for_predecessors();
    beside.write_all();
    return;
  }
  const auto fetch = [&](int tile, int stage) {
    if (tile < num_tiles) {
      const uint8_t* rows[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int entry =
            min(tile * Shape::kTileEntries + static_cast<int>(first_row) + 8 * i, count - 1);
        rows[i] =
            params.keys + static_cast<int64_t>(index_row(params, pages, entry)) * kIndexKeyBytes;
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        copy_async_16(ring + stage * Shape::kTileBytes + chunk_block +
                          swizzled_chunk(first_row + 8 * i, chunk % 8),
                      rows[i] + chunk * 16,
                      true);
      }
    }
    copy_async_commit();
  };

  Rotation4 angles{};
  if (params.q == nullptr) {
    angles =
        rotation4(lane * 4, kIndexWidth, params.rotation, __ldg(params.positions + token), false);
  }
  wait_for_predecessors();
  for (int i = 0; params.q != nullptr && i < kIndexHeads / 32; ++i) {
    const uint32_t head = threadIdx.x / 16 + 32 * i;
    copy_async_16(
        queries + chunk_block + swizzled_chunk(head, chunk % 8),
        params.q + (static_cast<int64_t>(token) * kIndexHeads + head) * kIndexKeyBytes + chunk * 16,
        true);
  }
  copy_async_commit();
#pragma unroll
  for (int i = 0; i < Shape::kStages - 1; ++i) fetch(first_tile + i * step, i);
  if (params.q == nullptr) {
    make_index_queries(params, token, angles, unaligned + (queries - shared_address(unaligned)));
  }
  if (threadIdx.x < kIndexHeads) {
    head_weights[threadIdx.x] = index_weight(params, token, static_cast<int>(threadIdx.x));
  }
  beside.write_all();
  copy_async_wait<Shape::kStages - 1>();
  fence_async_proxy();
  __syncthreads();
  float weights[16];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    weights[2 * j] = head_weights[8 * j + 2 * t];
    weights[2 * j + 1] = head_weights[8 * j + 2 * t + 1];
  }

  const uint64_t q_descriptor = swizzled_descriptor(queries, 16);
  int stage = 0;
  for (int tile = first_tile; tile < num_tiles; tile += step) {
    copy_async_wait<Shape::kStages - 2>();
    fence_async_proxy();
    // Also: all warps are done with the stage that is filled next.
    named_barrier_sync(1 + group, 128);
    fetch(tile + (Shape::kStages - 1) * step, stage == 0 ? Shape::kStages - 1 : stage - 1);
    const uint64_t key_descriptor = swizzled_descriptor(ring + stage * Shape::kTileBytes, 16);
    stage = stage == Shape::kStages - 1 ? 0 : stage + 1;
    float dots[32];
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kIndexWidth / 16; ++k) {
      const uint64_t offset = (k / 4 * Shape::kColumnBlockBytes + k % 4 * 32) / 16;
      wgmma_bf16_n64(dots, key_descriptor + offset, q_descriptor + offset, k > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    hold(dots);
    float top = 0, bottom = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      top = fmaf(relu(dots[4 * j]), weights[2 * j], top);
      top = fmaf(relu(dots[4 * j + 1]), weights[2 * j + 1], top);
      bottom = fmaf(relu(dots[4 * j + 2]), weights[2 * j], bottom);
      bottom = fmaf(relu(dots[4 * j + 3]), weights[2 * j + 1], bottom);
    }
    top += __shfl_xor_sync(~0U, top, 1);
    bottom += __shfl_xor_sync(~0U, bottom, 1);
    top += __shfl_xor_sync(~0U, top, 2);
    bottom += __shfl_xor_sync(~0U, bottom, 2);
    const int entry = tile * Shape::kTileEntries + warp_in_group * 16 + g + (t == 0 ? 0 : 8);
    if (t < 2 && entry < count) {
      // -0 + 0 is +0.
      params.scores[token * params.columns + entry] = (t == 0 ? top : bottom) + 0.0f;
    }
  }
  if constexpr (kSelects) {
    if constexpr (kWarpArrivals == 32) {
      // In builds for racecheck, which sees no order between warps that have passed unequal numbers
      // of barriers.
      const int most = (num_tiles - block + step - 1) / step;
      if ((num_tiles - first_tile + step - 1) / step < most) named_barrier_sync(1 + group, 128);
    }
    copy_async_wait<0>();  // of no bytes by now
    const int blocks = min(num_tiles, params.blocks_per_token);
    if (!is_last_to_finish(params.selection.counters + token, blocks)) return;
    // The tiles have been used; theirs is the memory.
    select_entries(params, token, pages, count, *reinterpret_cast<IndexerSelectState*>(unaligned));
  }
}

}  // namespace nibble::kernels::cuda
