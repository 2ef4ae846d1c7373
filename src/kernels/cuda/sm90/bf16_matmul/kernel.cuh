// The dense product of sm_90a with BF16 weights for any number of tokens: the head, compressor
// projections, the router. Layout of weights: kernels/bf16_panel64.h.
//
// Weights are the M operand, tokens the N operand. A block owns a tile of 128 rows by kColumns
// tokens; each of two warpgroups multiplies one panel of 64 rows straight from shared memory.
// Stages of 64 k flow through a ring: one thread fetches the weights by bulk copies, four warps
// bring the tokens into core-matrix order. BF16 activations are copied. Activations in f32 become
// kTerms = 3 BF16 numbers whose sum they are, each multiplied with the same weights: products are
// exact, sums in f32.
//
// Weights depend on nothing, so the ring fills with them before the predecessors end. The order of
// every sum depends on the shape only.
//
// Bytes: 2 n k + m k (2 or 4) + 4 splits m n. FLOPs: 2 m n k, kTerms times.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/copy_async.cuh"
#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/common/product_tile.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/wgmma_shared.cuh"

namespace nibble::kernels::cuda {

inline constexpr int kBf16TileBytes = 64 * 128;  // of weights: a panel by 64 k
inline constexpr int kBf16TileK = 64;
inline constexpr int kBf16Warpgroups = 2;
inline constexpr int kBf16Consumers = kBf16Warpgroups * 128;
inline constexpr int kBf16Converters = 128;
inline constexpr int kBf16Threads = kBf16Consumers + kBf16Converters + 32;
inline constexpr int kBf16MaxStages = 16;
inline constexpr int kBf16Barriers = 2 * kBf16MaxStages;

// DeviceMatMulArgs as the kernel takes them.
struct Bf16MatMulParams {
  const void* x;  // [m, groups * k], f32 for three terms, BF16 for one
  int m;
  int64_t row_stride;  // of x
  const uint8_t* weights;
  int panels;
  int panels_per_group;
  int tiles;  // of 64 k in a row
  int splits;
  float* y;
  int ring_stages;
};

// A stage: tiles of weights, then for each term the tokens' chunks of 8 k, [8][kColumns][16 bytes].
template <int kColumns, int kTerms>
struct Bf16Stage {
  static constexpr int kTokens = kBf16Warpgroups * kBf16TileBytes;  // offset
  static constexpr int kChunkBytes = kColumns * 16;
  static constexpr int kTermBytes = 8 * kChunkBytes;
  static constexpr int kBytes = kTokens + kTerms * kTermBytes;
};

// What the converting threads have on its way: kAhead stages of tokens as x holds them, in places
// that belong to threads.
template <int kColumns, int kTerms>
struct Bf16Fetch {
  static constexpr int kPieces = kColumns < 16 ? 1 : kColumns / 16;  // of a thread and a stage
  static constexpr int kWords = kTerms == 1 ? 1 : 2;                 // of 16 bytes in a piece
  static constexpr int kBufferBytes = kPieces * kWords * kBf16Converters * 16;
  static constexpr int kAhead = kBufferBytes <= 4096 ? 6 : kBufferBytes <= 16384 ? 4 : 2;
  static constexpr int kBytes = kAhead * kBufferBytes;
};

// The tiles of a block, taken in turns by all blocks.
template <int kColumns>
struct Bf16Work {
  PanelRanges ranges;
  int row_tiles, token_tiles, item_tiles, num_items;

  __device__ __forceinline__ explicit Bf16Work(const Bf16MatMulParams& params)
      : ranges(params.panels_per_group, kBf16Warpgroups),
        row_tiles(params.panels / params.panels_per_group * ranges.per_group),
        token_tiles((params.m + kColumns - 1) / kColumns),
        item_tiles(params.tiles / params.splits),
        num_items(row_tiles * token_tiles * params.splits) {}

  __device__ __forceinline__ int own_items() const {
    const int first = static_cast<int>(blockIdx.x), step = static_cast<int>(gridDim.x);
    return first < num_items ? (num_items - first + step - 1) / step : 0;
  }
  __device__ __forceinline__ ProductTile item(int index) const {
    return product_tile(
        static_cast<int>(blockIdx.x) + index * static_cast<int>(gridDim.x), row_tiles, token_tiles);
  }
};

// The tiles along k of an item, from one on that differs between ranges of rows: blocks that work
// at the same time read other tokens' values, which keeps them from queueing at the same parts of
// the cache.
class Bf16TileOrder {
 public:
  Bf16TileOrder() = default;
  __device__ __forceinline__ Bf16TileOrder(const ProductTile& item, int item_tiles)
      : begin_(item.split * item_tiles),
        end_(begin_ + item_tiles),
        tile_(begin_ + item.rows * 7 % item_tiles) {}

  __device__ __forceinline__ int tile() const { return tile_; }
  __device__ __forceinline__ void next() {
    if (++tile_ == end_) tile_ = begin_;
  }

 private:
  int begin_ = 0, end_ = 0, tile_ = 0;
};

// A place in the ring and the parity of its current round.
struct Bf16RingPlace {
  int slot = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance(int stages) {
    if (++slot < stages) return;
    slot = 0;
    parity ^= 1;
  }
};

// Fetches weights into the ring. One thread.
template <int kColumns, int kTerms>
__device__ __forceinline__ void produce_bf16_weights(const Bf16MatMulParams& params,
                                                     uint32_t ring,
                                                     uint32_t full,
                                                     uint32_t empty) {
  using Stage = Bf16Stage<kColumns, kTerms>;
  const Bf16Work<kColumns> work(params);
  const uint64_t policy = work.token_tiles > 1 ? evict_normal_policy() : evict_first_policy();
  const int own_items = work.own_items();
  Bf16RingPlace place;
  int stage = 0;
  for (int index = 0; index < own_items; ++index) {
    const ProductTile item = work.item(index);
    const uint8_t* sources[kBf16Warpgroups];
#pragma unroll
    for (int i = 0; i < kBf16Warpgroups; ++i) {
      const int panel = work.ranges.panel(item.rows, i);
      sources[i] = params.weights + static_cast<size_t>(panel) * params.tiles * kBf16TileBytes;
    }
    Bf16TileOrder order(item, work.item_tiles);
    for (int tile = 0; tile < work.item_tiles; ++tile, ++stage) {
      if (stage >= params.ring_stages) barrier_wait(empty + 8 * place.slot, place.parity ^ 1);
      const uint32_t barrier = full + 8 * place.slot;
      barrier_arrive_expect(barrier, kBf16Warpgroups * kBf16TileBytes);
#pragma unroll
      for (int i = 0; i < kBf16Warpgroups; ++i) {
        bulk_copy_to_shared(ring + place.slot * Stage::kBytes + i * kBf16TileBytes,
                            sources[i] + static_cast<size_t>(order.tile()) * kBf16TileBytes,
                            kBf16TileBytes,
                            barrier,
                            policy);
      }
      order.next();
      place.advance(params.ring_stages);
    }
  }
}

// Writes the terms of eight values along k, term_bytes apart.   values: BF16 or f32 as x
template <int kTerms>
__device__ __forceinline__ void store_bf16_terms(const uint4* values,
                                                 uint8_t* target,
                                                 int term_bytes) {
  if constexpr (kTerms == 1) {
    *reinterpret_cast<uint4*>(target) = values[0];
  } else {
    float v[8];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 words = values[i * kBf16Converters];
      v[4 * i] = __uint_as_float(words.x);
      v[4 * i + 1] = __uint_as_float(words.y);
      v[4 * i + 2] = __uint_as_float(words.z);
      v[4 * i + 3] = __uint_as_float(words.w);
    }
#pragma unroll
    for (int term = 0; term < kTerms; ++term) {
      uint32_t packed[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        packed[i] = pack_bf16x2(v[2 * i], v[2 * i + 1]);
        v[2 * i] -= low_bf16(packed[i]);
        v[2 * i + 1] -= high_bf16(packed[i]);
      }
      *reinterpret_cast<uint4*>(target + term * term_bytes) = {
          packed[0], packed[1], packed[2], packed[3]};
    }
  }
}

// The tokens of the stages to come, as one of the converting threads takes them: pieces of 8 k of a
// token, which it fetches into places of its own until their stage is free.
template <int kColumns, int kTerms>
class Bf16TokenSource {
 public:
  using Fetch = Bf16Fetch<kColumns, kTerms>;

  __device__ __forceinline__ Bf16TokenSource(const Bf16MatMulParams& params, int thread)
      : params_(params),
        work_(params),
        own_items_(work_.own_items()),
        chunk_(thread / 32 % 2 * 4 + thread % 32 / 8),
        token_(thread / 64 * 8 + thread % 8) {
    if (own_items_ > 0) start_item();
  }

  // Of this thread's piece `i` in the part of a stage that one term takes.
  __device__ __forceinline__ int offset(int i) const {
    return chunk_ * Bf16Stage<kColumns, kTerms>::kChunkBytes + (token_ + 16 * i) * 16;
  }
  __device__ __forceinline__ bool is_inside(int i) const { return token_ + 16 * i < kColumns; }
  __device__ __forceinline__ int num_stages() const { return own_items_ * work_.item_tiles; }

  // Begins to fetch the next stage's pieces; a group of copies even when there is none.
  //   fetched: shared memory, this thread's place in the buffer
  __device__ __forceinline__ void fetch_next(uint32_t fetched) {
    if (index_ < own_items_) {
      constexpr int kElementBytes = kTerms == 1 ? 2 : 4;
#pragma unroll
      for (int i = 0; i < Fetch::kPieces; ++i) {
        if (!is_inside(i)) continue;
        const int token = first_token_ + token_ + 16 * i;
        const bool is_present = token < params_.m;
        const uint8_t* const source =
            static_cast<const uint8_t*>(params_.x) +
            ((is_present ? token : 0) * params_.row_stride + column_ + order_.tile() * kBf16TileK) *
                kElementBytes;
#pragma unroll
        for (int word = 0; word < Fetch::kWords; ++word) {
          copy_async_16(fetched + (i * Fetch::kWords + word) * kBf16Converters * 16,
                        source + word * 16,
                        is_present);
        }
      }
      order_.next();
      if (++tile_ == work_.item_tiles && ++index_ < own_items_) start_item();
    }
    copy_async_commit();
  }

 private:
  __device__ __forceinline__ void start_item() {
    const ProductTile item = work_.item(index_);
    const int group = work_.ranges.group(item.rows);
    tile_ = 0;
    first_token_ = item.tokens * kColumns;
    column_ = static_cast<int64_t>(group) * params_.tiles * kBf16TileK + chunk_ * 8;
    order_ = Bf16TileOrder(item, work_.item_tiles);
  }

  const Bf16MatMulParams& params_;
  const Bf16Work<kColumns> work_;
  const int own_items_;
  const int chunk_;
  const int token_;
  int index_ = 0;
  int tile_ = 0;
  int first_token_ = 0;
  int64_t column_ = 0;  // of this thread's chunk in the group
  Bf16TileOrder order_;
};

// Brings tokens into the ring. Four warps.   fetched: the buffers, behind the ring
template <int kColumns, int kTerms>
__device__ __forceinline__ void convert_bf16_tokens(const Bf16MatMulParams& params,
                                                    uint8_t* memory,
                                                    uint8_t* fetched,
                                                    uint32_t full,
                                                    uint32_t empty) {
  using Stage = Bf16Stage<kColumns, kTerms>;
  using Source = Bf16TokenSource<kColumns, kTerms>;
  using Fetch = typename Source::Fetch;
  const int thread = static_cast<int>(threadIdx.x) - kBf16Consumers, lane = thread % 32;
  Source source(params, thread);
  const int num_stages = source.num_stages();
  uint8_t* const own = fetched + thread * 16;
  wait_for_predecessors();
#pragma unroll 1
  for (int i = 0; i < Fetch::kAhead; ++i) {
    source.fetch_next(shared_address(own + i * Fetch::kBufferBytes));
  }
  Bf16RingPlace place, buffer;
  for (int stage = 0; stage < num_stages; ++stage) {
    copy_async_wait<Fetch::kAhead - 1>();
    if (stage >= params.ring_stages) barrier_wait(empty + 8 * place.slot, place.parity ^ 1);
    uint8_t* const tokens = memory + place.slot * Stage::kBytes + Stage::kTokens;
    const uint8_t* const pieces = own + buffer.slot * Fetch::kBufferBytes;
#pragma unroll
    for (int i = 0; i < Fetch::kPieces; ++i) {
      if (!source.is_inside(i)) continue;
      store_bf16_terms<kTerms>(
          reinterpret_cast<const uint4*>(pieces) + i * Fetch::kWords * kBf16Converters,
          tokens + source.offset(i),
          Stage::kTermBytes);
    }
    fence_async_proxy();
    __syncwarp();
    if (lane == 0) barrier_arrive(full + 8 * place.slot);
    source.fetch_next(shared_address(pieces));
    buffer.advance(Fetch::kAhead);
    place.advance(params.ring_stages);
  }
  copy_async_wait_all();
}

// Writes the f32 sums of a panel.   row: this thread's first, the other is 8 on
template <int kColumns>
__device__ __forceinline__ void store_bf16_sums(const Bf16MatMulParams& params,
                                                const float (&sum)[kColumns / 2],
                                                const ProductTile& item,
                                                int row) {
  const int t = static_cast<int>(threadIdx.x % 4);
  const int64_t n = static_cast<int64_t>(params.panels) * 64;
  const int token = item.tokens * kColumns + 2 * t;
  float* y = params.y + (static_cast<int64_t>(item.split) * params.m + token) * n + row;
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j, y += 8 * n) {
    if (token + 8 * j < params.m) {
      y[0] = sum[4 * j];
      y[8] = sum[4 * j + 2];
    }
    if (token + 8 * j + 1 < params.m) {
      y[n] = sum[4 * j + 1];
      y[n + 8] = sum[4 * j + 3];
    }
  }
}

// Block: 256 consumers, 128 converters, one producer warp. kBlocks: that fit on a multiprocessor.
template <int kColumns, int kTerms, int kBlocks>
__global__ void __launch_bounds__(kBf16Threads, kBlocks)
    bf16_matmul(const Bf16MatMulParams params) {
  using Stage = Bf16Stage<kColumns, kTerms>;
  constexpr uint64_t kWeightStep = 2 * 1024 / 16;               // descriptor distance of 16 k
  constexpr uint64_t kTokenStep = 2 * Stage::kChunkBytes / 16;  // likewise
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ __align__(8) uint64_t barriers[kBf16Barriers];
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  uint32_t full = shared_address(barriers), empty = full + 8 * kBf16MaxStages;
  uint32_t ring = shared_address(memory);
  keep_in_register(full);
  keep_in_register(empty);
  keep_in_register(ring);
  if (threadIdx.x == 0) {
    for (int i = 0; i < params.ring_stages; ++i) {
      barrier_init(full + 8 * i, 1 + kBf16Converters / 32);
      barrier_init(empty + 8 * i, kBf16Consumers / 32);
    }
    fence_barrier_init();
  }
  launch_dependents();
  __syncthreads();
  if (warp == kBf16Threads / 32 - 1) {
    if (lane == 0) produce_bf16_weights<kColumns, kTerms>(params, ring, full, empty);
    return;
  }
  if (warp >= kBf16Consumers / 32) {
    convert_bf16_tokens<kColumns, kTerms>(
        params, memory, memory + params.ring_stages * Stage::kBytes, full, empty);
    return;
  }

  const Bf16Work<kColumns> work(params);
  const int group = warp / 4;
  const uint64_t weights = core_matrix_descriptor(ring + group * kBf16TileBytes, 1024, 128);
  const uint64_t tokens = core_matrix_descriptor(ring + Stage::kTokens, Stage::kChunkBytes, 128);
  const int own_items = work.own_items();
  Bf16RingPlace place;
  for (int index = 0; index < own_items; ++index) {
    const ProductTile item = work.item(index);
    float acc[kColumns / 2] = {};
    int previous = -1;
    for (int tile = 0; tile < work.item_tiles; ++tile) {
      barrier_wait(full + 8 * place.slot, place.parity);
      const auto stage = static_cast<uint32_t>(place.slot * (Stage::kBytes / 16));
      const uint64_t a = weights + stage, b = tokens + stage;
      wgmma_fence();
#pragma unroll
      for (int term = 0; term < kTerms; ++term) {
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          wgmma_bf16_add(
              acc, a + step * kWeightStep, b + term * (Stage::kTermBytes / 16) + step * kTokenStep);
        }
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (lane == 0 && previous >= 0) barrier_arrive(empty + 8 * previous);
      previous = place.slot;
      place.advance(params.ring_stages);
    }
    wgmma_wait<0>();
    hold(acc);
    if (lane == 0) barrier_arrive(empty + 8 * previous);
    if (work.ranges.has(item.rows, group)) {
      const int panel = work.ranges.panel(item.rows, group);
      store_bf16_sums<kColumns>(params, acc, item, panel * 64 + warp % 4 * 16 + lane / 4);
    }
  }
}

}  // namespace nibble::kernels::cuda
