// Sparse latent attention for many tokens on sm_90a: a block takes 64 heads of a token, so that
// each key is read once and the tensor cores are the limit.
//
// Warpgroup 0 multiplies q with tiles of 64 keys, keeps the softmax and writes probabilities;
// warpgroups 1 and 2 multiply these with the same tile, 256 of the 512 columns each; the warps of
// the last warpgroup fetch tiles, two warps the even ones, two the odd ones; FP8 keys are widened
// in their registers on the way. So the product with the next keys runs beside the one with the
// last probabilities. The maximum is raised only when it grows by more than 2^8, which keeps most
// tiles free of rescaling; the result is exact all the same. Blocks work on one token after the
// other, and fetching runs ahead over the boundary. With kSplits > 1 a cluster shares a token's
// keys in contiguous parts; each block then owns 64 / kSplits heads of the merge: partial sums are
// pushed to it in BF16 and added in the order of the splits, the sink once.
//
// Bytes: a row per key, 2 KB per head of q and out. FLOPs: 4 * 512 per key and head.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/copy_async.cuh"
#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/wgmma_bf16.cuh"
#include "kernels/cuda/sm90/sparse_attention/keys.cuh"

namespace nibble::kernels::cuda {

inline constexpr int kBlockHeads = 64;

// Shared memory of a block: q and two tiles of keys as 8 swizzled blocks of 64 columns, two tiles
// of probabilities. Partial sums and what other blocks send take the place of the tiles and of q.
struct WarpgroupAttention {
  static constexpr int kThreads = 4 * 128;
  static constexpr int kTileKeys = 64;
  static constexpr int kColumnBlockBytes = kTileKeys * kSwizzledRowBytes;
  static constexpr int kTileBytes = kTileKeys * kKeyBytes;
  static constexpr int kKeysOffset = kBlockHeads * kKeyBytes;
  static constexpr int kProbabilitiesOffset = kKeysOffset + 2 * kTileBytes;
  static constexpr int kProbabilityBytes = kBlockHeads * kSwizzledRowBytes;
  static constexpr int kBytes = kProbabilitiesOffset + 2 * kProbabilityBytes;
  static constexpr int kAlignment = 1024;
  static constexpr int kPartialPitch = kKeyBytes + 16;
  // Registers per thread of warpgroup 0, of 1 and 2, of 3: 512 in all.
  static constexpr int kWeighRegisters = 88, kSumRegisters = 168, kFetchRegisters = 88;
};

// Barriers, and what the warpgroups tell each other.
struct WarpgroupAttentionState {
  uint64_t full[2];      // a tile of keys has come
  uint64_t empty[2][2];  // and each half of it has been used
  uint64_t weighted[2];  // probabilities and factors have been written
  uint64_t probabilities_free[2];
  uint64_t inverse_ready;  // of one item after the other
  uint64_t inverse_free;
  uint64_t received;              // what other blocks push
  uint32_t present[2][2];         // bits: keys of a tile that exist
  float factors[2][kBlockHeads];  // by which sums of earlier tiles shrink
  float inverse[kBlockHeads];
  float2 angles[kRotaryPairs];          // with `inverse`, or with `states`
  float2 states[kBlockHeads];           // maximum, sum
  float2 received_states[kBlockHeads];  // [split][owned head]
};

// Named barriers.
inline constexpr int kProductsDone = 1;  // of warpgroups 0, 1 and 2
inline constexpr int kSumsStaged = 2;    // of warpgroups 1 and 2
inline constexpr int kQueries = 3;       // of warpgroup 0

// 64 heads of a token, and the block's part of the token's keys in tiles.
struct AttentionItem {
  int index;
  int token;
  int first_head;
  int split;
  TokenKeys keys;
  int tiles_begin;
  int tiles_end;

  __device__ __forceinline__
  AttentionItem(const SparseAttentionParams& params, int item, int split_of, int splits)
      : index(item),
        token(item / (params.heads / kBlockHeads)),
        first_head(item % (params.heads / kBlockHeads) * kBlockHeads),
        split(split_of),
        keys(params, token) {
    const int tiles =
        (keys.count + WarpgroupAttention::kTileKeys - 1) / WarpgroupAttention::kTileKeys;
    tiles_begin = tiles * split / splits;
    tiles_end = tiles * (split + 1) / splits;
  }
};

// Calls visit(item, number of tiles before it) for the items of this block. All roles see the same.
template <int kSplits, class Visit>
__device__ __forceinline__ void for_each_item(const SparseAttentionParams& params,
                                              const Visit& visit) {
  int tiles_before = 0;
  const auto split = static_cast<int>(blockIdx.x) % kSplits;
  for (auto index = static_cast<int>(blockIdx.x) / kSplits; index < params.num_items;
       index += static_cast<int>(gridDim.x) / kSplits) {
    const AttentionItem item(params, index, split, kSplits);
    visit(item, tiles_before);
    tiles_before += item.tiles_end - item.tiles_begin;
  }
}

// A warp's rows of FP8 keys of a tile. Lane i knows where row i is stored and its scales.
//
// Each lane widens chunks `lane` and `lane + 32` of every row on their way from memory. Rows of
// absent keys get any finite values in their codes: probabilities are zero there.
struct Fp8Rows {
  static constexpr int kRows = 32, kBatch = 2;
  uint64_t address;
  uint2 scales;      // up to 2^7
  uint2 stored;      // scales as they are
  uint32_t present;  // bit i: row i exists

  // Where rows wait between memory and the tile.
  using Batch = uint2[kBatch][2];

  // own: this lane's row, null where the key is absent; bits: of those that are there;
  // fallback: what may be read instead
  __device__ __forceinline__ Fp8Rows(const uint8_t* own, uint32_t bits, const uint8_t* fallback)
      : address(reinterpret_cast<uint64_t>(own == nullptr ? fallback : own)),
        scales{0, 0},
        stored{0, 0},
        present(bits) {
    if (own == nullptr) return;
    stored = __ldcg(reinterpret_cast<const uint2*>(own) + kFp8ScaleChunk);
    scales = {__vminu4(stored.x, kLargestScales * 0x101U),
              __vminu4(stored.y, kLargestScales * 0x101U)};
    // Few rows are read at a time: all are asked for here.
#pragma unroll
    for (int i = 0; i < kFp8RowBytes; i += 128) prefetch_line(own + i);
  }
  const __device__ __forceinline__ uint2* row(int i) const {
    return reinterpret_cast<const uint2*>(__shfl_sync(~0U, address, i));
  }
  __device__ __forceinline__ void read(Batch& batch, int begin, int lane) const {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const uint2* const from = row(begin + i) + lane;
      batch[i][0] = __ldcg(from);
      batch[i][1] = __ldcg(from + 32);
    }
  }
  // Widens rows `begin` to `begin` + kBatch, `j` of them after a multiple of 8.
  //   to: of chunk `lane` of row begin - j
  __device__ __forceinline__ void widen(
      const Batch& batch, int begin, int j, uint32_t to, int lane) const {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const uint2 codes = row_scales(scales, begin + i, lane);
      const uint32_t row = (to ^ static_cast<uint32_t>((j + i) * 16)) + (j + i) * kSwizzledRowBytes;
      write_shared_16(row, widen_eight(batch[i][0], scale_factor(codes.x)));
      const uint4 values = widen_eight(batch[i][1], scale_factor(codes.y));
      if (lane + 32 < kFp8CodeChunks) {
        write_shared_16(row + 4 * WarpgroupAttention::kColumnBlockBytes, values);
      }
    }
  }
  // Starts copying the rotary elements, two rows at a time. to: of the first row of the last block.
  __device__ __forceinline__ void copy_rotary(uint32_t to, int lane) const {
    const int chunk = lane % 16;
#pragma unroll 4
    for (int i = 0; i < kRows; i += 2) {
      const int at = i + lane / 16;
      copy_async_8(to + swizzled_chunk(static_cast<uint32_t>(at), chunk / 2) + chunk % 2 * 8,
                   row(at) + kFp8CodeChunks + chunk,
                   (present >> at & 1) != 0);
    }
  }
  // What widen() leaves undone of scales above 2^7. to: of chunk `lane` of the first row.
  __device__ __forceinline__ void multiply_excess(uint32_t to, int lane) const {
    if (!__any_sync(~0U, stored.x != scales.x || stored.y != scales.y)) return;
#pragma unroll 1
    for (int i = 0; i < kRows; ++i) {
      const uint2 codes = row_scales(stored, i, lane);
      const uint32_t row = (to ^ static_cast<uint32_t>(i % 8 * 16)) + i * kSwizzledRowBytes;
      const auto multiply = [](uint32_t at, uint32_t scale) {
        write_shared_16(at, multiply_eight(read_shared_16(at), scale_excess(scale)));
      };
      multiply(row, codes.x);
      if (lane + 32 < kFp8CodeChunks) {
        multiply(row + 4 * WarpgroupAttention::kColumnBlockBytes, codes.y);
      }
    }
  }

 private:
  // The scales of this lane's chunks of row i, out of what each lane has of its own row.
  static __device__ __forceinline__ uint2 row_scales(const uint2& own, int i, int lane) {
    return {scale_of_block(__shfl_sync(~0U, own.x, i), lane / 8),
            scale_of_block(__shfl_sync(~0U, own.y, i), lane / 8)};
  }
};

// Fetches a warp's rows of FP8 keys, widened, to `to`, the first row's place in the tile.
//   wait(): until the tile may be written; the first rows are on their way by then
template <class Wait>
__device__ __forceinline__ void fetch_fp8_rows(const Fp8Rows& rows,
                                               uint32_t to,
                                               int lane,
                                               const Wait& wait) {
  using Shape = WarpgroupAttention;
  constexpr int kBatch = Fp8Rows::kBatch;
  Fp8Rows::Batch batches[2];
  rows.read(batches[0], 0, lane);
  wait();
  rows.copy_rotary(to + 7 * Shape::kColumnBlockBytes, lane);
  const uint32_t own = to + static_cast<uint32_t>(lane) / 8 * Shape::kColumnBlockBytes +
                       static_cast<uint32_t>(lane) % 8 * 16;
#pragma unroll 1
  for (int begin = 0; begin < Fp8Rows::kRows; begin += 8) {
    const uint32_t rows_of_8 = own + begin * kSwizzledRowBytes;
#pragma unroll
    for (int j = 0; j < 8; j += 2 * kBatch) {
      rows.read(batches[1], begin + j + kBatch, lane);
      rows.widen(batches[0], begin + j, j, rows_of_8, lane);
      if (begin + j + 2 * kBatch < Fp8Rows::kRows) {
        rows.read(batches[0], begin + j + 2 * kBatch, lane);
      }
      rows.widen(batches[1], begin + j + kBatch, j + kBatch, rows_of_8, lane);
    }
  }
  rows.multiply_excess(own, lane);
  copy_async_wait_all();
}

// Fetches the tiles of one item. Two warps serve every second tile, 32 keys each. Waits for the
// kernels ahead when the first keys come that were not ready before; `has_waited` says so.
template <bool kIsFp8>
__device__ __forceinline__ void fetch_tiles(const SparseAttentionParams& params,
                                            const AttentionItem& item,
                                            int tiles_before,
                                            uint32_t keys_address,
                                            bool& has_waited,
                                            WarpgroupAttentionState& state) {
  using Shape = WarpgroupAttention;
  constexpr int kRowBytes = kIsFp8 ? kFp8RowBytes : kKeyBytes;
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int slot = warp / 2, half = warp % 2;
  const uint32_t full = shared_address(&state.full[slot]);
  const uint32_t empty = shared_address(&state.empty[slot][half]);
  // BF16 chunks lane and lane + 32 of a row are four column blocks apart.
  const uint32_t tile_address =
      keys_address + slot * Shape::kTileBytes + lane / 8 * Shape::kColumnBlockBytes;
  const int skipped = (tiles_before ^ slot) & 1;
  for (int tile = item.tiles_begin + skipped; tile < item.tiles_end; tile += 2) {
    const int turn = (tiles_before + tile - item.tiles_begin) / 2;
    const int key = tile * Shape::kTileKeys + half * 32 + lane;
    if (!has_waited && __any_sync(~0U, key < item.keys.count && !item.keys.is_ready(key))) {
      wait_for_predecessors();
      has_waited = true;
    }
    const uint8_t* const own =
        key < item.keys.count ? key_row<kRowBytes>(params, item.keys, key) : nullptr;
    const uint32_t present = __ballot_sync(~0U, own != nullptr);
    const auto wait = [&] {
      barrier_wait(empty, turn % 2 ^ 1);
      if (lane == 0) state.present[slot][half] = present;
    };
    if constexpr (kIsFp8) {
      fetch_fp8_rows(Fp8Rows(own, present, params.window.pool),
                     keys_address + slot * Shape::kTileBytes + half * 32 * kSwizzledRowBytes,
                     lane,
                     wait);
    } else {
      wait();
      const auto address = reinterpret_cast<uint64_t>(own == nullptr ? params.window.pool : own);
      const auto row_of = [&](int i) {
        return reinterpret_cast<const uint8_t*>(__shfl_sync(~0U, address, i));
      };
#pragma unroll 8
      for (int i = 0; i < 32; ++i) {
        const bool is_present = (present >> i & 1) != 0;
        const uint8_t* const source = row_of(i) + lane * 16;
        const uint32_t destination =
            tile_address + swizzled_chunk(static_cast<uint32_t>(half * 32 + i), lane % 8);
        copy_async_16(destination, source, is_present);
        copy_async_16(destination + 4 * Shape::kColumnBlockBytes, source + 512, is_present);
      }
      copy_async_wait_all();
    }
    fence_async_proxy();
    barrier_arrive(full);
  }
}

// Maximum and sum of a thread's two rows; sums are of its own columns until the end.
struct RowStates {
  float max[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};
};

// The probabilities of a tile from its products, to shared memory; `columns`: keys that exist.
__device__ __forceinline__ void weigh_tile(float (&s)[32],
                                           const uint32_t (&present)[2],
                                           float scale_log2,
                                           RowStates& rows,
                                           uint8_t* probabilities,
                                           float* factors,
                                           int warp,
                                           int g,
                                           int t) {
  constexpr float kSlack = 8.0f;
  if ((present[0] & present[1]) != ~0U) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const bool is_present = (present[i / 16] >> (i / 4 % 4 * 8 + 2 * t + i % 2) & 1) != 0;
      s[i] = is_present ? s[i] : -INFINITY;
    }
  }
  float tile_max[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int i = 0; i < 32; ++i) tile_max[i / 2 % 2] = fmaxf(tile_max[i / 2 % 2], s[i]);
  float origin[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    tile_max[r] = fmaxf(tile_max[r], __shfl_xor_sync(~0U, tile_max[r], 1));
    tile_max[r] = fmaxf(tile_max[r], __shfl_xor_sync(~0U, tile_max[r], 2)) * scale_log2;
    const float new_max =
        tile_max[r] > rows.max[r] + kSlack || rows.max[r] == -INFINITY ? tile_max[r] : rows.max[r];
    origin[r] = new_max == -INFINITY ? 0.0f : new_max;
    const float factor = exp2_approx(rows.max[r] - origin[r]);
    const bool is_same = new_max == rows.max[r];
    rows.sum[r] *= is_same ? 1.0f : factor;
    rows.max[r] = new_max;
    if (t == 0) factors[warp * 16 + g + 8 * r] = is_same ? 1.0f : factor;
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t p =
          pack_bf16x2(exp2_approx(fmaf(s[4 * j + 2 * r], scale_log2, -origin[r])),
                      exp2_approx(fmaf(s[4 * j + 2 * r + 1], scale_log2, -origin[r])));
      rows.sum[r] += low_bf16(p) + high_bf16(p);
      const auto row = static_cast<uint32_t>(warp * 16 + g + 8 * r);
      *reinterpret_cast<uint32_t*>(probabilities + swizzled_chunk(row, j) + 4 * t) = p;
    }
  }
}

// Starts copying the item's q, when all warps are done with the one before.
__device__ __forceinline__ void fetch_queries(const SparseAttentionParams& params,
                                              const AttentionItem& item,
                                              uint32_t base) {
  const uint16_t* const q =
      params.q + (static_cast<size_t>(item.token) * params.heads + item.first_head) * kKeyWidth;
  named_barrier_sync(kQueries, 128);
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kBlockHeads * 64; i += 128) {
    const auto row = static_cast<uint32_t>(i / 64), chunk = static_cast<uint32_t>(i % 64);
    copy_async_16(
        base + chunk / 8 * WarpgroupAttention::kColumnBlockBytes + swizzled_chunk(row, chunk % 8),
        q + i * 8,
        true);
  }
  // The next item's, 64 KB, will then be in the cache.
  const int next = item.index + static_cast<int>(gridDim.x);
  if (threadIdx.x == 0 && next < params.num_items) {
    prefetch_bulk(params.q + static_cast<size_t>(next) * (kBlockHeads * kKeyWidth),
                  kBlockHeads * kKeyBytes);
  }
  copy_async_wait_all();
  fence_async_proxy();
  named_barrier_sync(kQueries, 128);
}

// Warpgroup 0, one item. Leaves 1 / denominator of each head, or with splits maximum and sum, and
// the rotation of the token.
template <int kSplits>
__device__ __forceinline__ void weigh_tiles(const SparseAttentionParams& params,
                                            const AttentionItem& item,
                                            int tiles_before,
                                            uint32_t inverse_free_parity,
                                            uint32_t base,
                                            uint8_t* memory,
                                            WarpgroupAttentionState& state) {
  using Shape = WarpgroupAttention;
  const int warp_in_group = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, g = lane / 4,
            t = lane % 4;
  float2 angles = {0, 1};
  if (threadIdx.x < kRotaryPairs) {
    angles = pair_rotation(params, item.token, static_cast<int>(threadIdx.x));
  }
  fetch_queries(params, item, base);
  RowStates rows;
  for (int tile = item.tiles_begin; tile < item.tiles_end; ++tile) {
    const int step = tiles_before + tile - item.tiles_begin, slot = step % 2;
    const uint32_t parity = step / 2 % 2;
    uint64_t q_descriptor = swizzled_descriptor(base, 16);
    uint64_t key_descriptor =
        swizzled_descriptor(base + Shape::kKeysOffset + slot * Shape::kTileBytes, 16);
    float s[32];
    barrier_wait(shared_address(&state.full[slot]), parity);
    const uint32_t present[2] = {state.present[slot][0], state.present[slot][1]};
    wgmma_fence();
    // Else all steps' descriptors would be kept in registers.
    keep_in_register(q_descriptor);
    keep_in_register(key_descriptor);
#pragma unroll
    for (int k = 0; k < kKeyWidth / 16; ++k) {
      const uint64_t offset = (k / 4 * Shape::kColumnBlockBytes + k % 4 * 32) / 16;
      wgmma_bf16_n64(s, q_descriptor + offset, key_descriptor + offset, k > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    hold(s);
    barrier_wait(shared_address(&state.probabilities_free[slot]), parity ^ 1);
    weigh_tile(s,
               present,
               params.scale_log2,
               rows,
               memory + Shape::kProbabilitiesOffset + slot * Shape::kProbabilityBytes,
               state.factors[slot],
               warp_in_group,
               g,
               t);
    fence_async_proxy();
    barrier_arrive(shared_address(&state.weighted[slot]));
  }
  if constexpr (kSplits == 1) {
    barrier_wait(shared_address(&state.inverse_free), inverse_free_parity);
  }
  if (threadIdx.x < kRotaryPairs) state.angles[threadIdx.x] = angles;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    rows.sum[r] += __shfl_xor_sync(~0U, rows.sum[r], 1);
    rows.sum[r] += __shfl_xor_sync(~0U, rows.sum[r], 2);
    const int head = warp_in_group * 16 + g + 8 * r;
    if (t != 0) continue;
    if constexpr (kSplits == 1) {
      const float sink = __ldg(params.sink + item.first_head + head) * 1.4426950408889634f;
      const float max = fmaxf(rows.max[r], sink);
      const float origin = max == -INFINITY ? 0.0f : max;
      const float weight = exp2_approx(rows.max[r] - origin);
      const float denominator = fmaf(weight, rows.sum[r], exp2_approx(sink - origin));
      state.inverse[head] = max == -INFINITY ? 0.0f : weight / denominator;
    } else {
      state.states[head] = {rows.max[r], rows.sum[r]};
    }
  }
  if constexpr (kSplits == 1) {
    barrier_arrive(shared_address(&state.inverse_ready));
  } else {
    named_barrier_arrive(kProductsDone, 384);
  }
}

// Sums of probabilities times keys over an item's tiles: 256 columns of this warpgroup.
//   out: of 128 columns each
__device__ __forceinline__ void sum_tiles(const AttentionItem& item,
                                          int tiles_before,
                                          uint32_t base,
                                          WarpgroupAttentionState& state,
                                          float (&out)[2][64]) {
  using Shape = WarpgroupAttention;
  constexpr uint64_t kSixteenRows = 16 * kSwizzledRowBytes / 16;  // in descriptors
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int half = warp / 4 - 1, row = warp % 4 * 16 + lane / 4;
  for (int tile = item.tiles_begin; tile < item.tiles_end; ++tile) {
    const int step = tiles_before + tile - item.tiles_begin, slot = step % 2;
    const uint32_t parity = step / 2 % 2;
    const uint64_t p_descriptor = swizzled_descriptor(
        base + Shape::kProbabilitiesOffset + slot * Shape::kProbabilityBytes, 16);
    const uint64_t v_descriptor = swizzled_descriptor(
        base + Shape::kKeysOffset + slot * Shape::kTileBytes + half * 4 * Shape::kColumnBlockBytes,
        Shape::kColumnBlockBytes);
    barrier_wait(shared_address(&state.weighted[slot]), parity);
    const float top = state.factors[slot][row];
    const float bottom = state.factors[slot][row + 8];
    if (__any_sync(~0U, top != 1.0f || bottom != 1.0f)) {
#pragma unroll
      for (int i = 0; i < 128; ++i) out[i / 64][i % 64] *= i % 4 < 2 ? top : bottom;
    }
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < Shape::kTileKeys / 16; ++k) {
      const uint64_t p = p_descriptor + k * 2, v = v_descriptor + k * kSixteenRows;
      wgmma_bf16_n128_transposed(out[0], p, v);
      wgmma_bf16_n128_transposed(out[1], p, v + 2 * Shape::kColumnBlockBytes / 16);
      if (k == Shape::kTileKeys / 32 - 1) wgmma_commit();
    }
    wgmma_commit();
    // Keys of the first half make room before those of the second have been used.
    wgmma_wait<1>();
    warp_arrive(shared_address(&state.empty[slot][0]), lane);
    wgmma_wait<0>();
    hold(out[0]);
    hold(out[1]);
    warp_arrive(shared_address(&state.empty[slot][1]), lane);
    warp_arrive(shared_address(&state.probabilities_free[slot]), lane);
  }
}

// Exchanges a pair's second word of the lower lane with the first of the upper, `step` lanes apart.
__device__ __forceinline__ void exchange(uint32_t& first,
                                         uint32_t& second,
                                         bool is_upper,
                                         int step) {
  const uint32_t other = __shfl_xor_sync(~0U, is_upper ? first : second, step);
  first = is_upper ? other : first;
  second = is_upper ? second : other;
}
// Transposes 4 x 4 words between the four lanes of a quad: lane t gets lane w's p[t] as p[w].
__device__ __forceinline__ void transpose_quad(uint32_t (&p)[4], int t) {
  const bool is_odd = (t & 1) != 0, is_high = (t & 2) != 0;
  exchange(p[0], p[1], is_odd, 1);
  exchange(p[2], p[3], is_odd, 1);
  exchange(p[0], p[2], is_high, 2);
  exchange(p[1], p[3], is_high, 2);
}

// Turns this warpgroup's rotary columns back, the last 64 of a head.
__device__ __forceinline__ void rotate_sums(float (&out)[2][64], const float2* angles) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float2 sin_cos = angles[i * 4 + t];
    float* const four = &out[1][(8 + i) * 4];
    rotate_back(four[0], four[1], sin_cos);
    rotate_back(four[2], four[3], sin_cos);
  }
}

// Columns of rows g and g + 8 in BF16, 64 bytes of a row at a time.
__device__ __forceinline__ void store_bf16_sums(uint16_t* to,
                                                const float (&out)[2][64],
                                                const float (&scales)[2]) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int group = 0; group < 8; ++group) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint32_t p[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* const two = &out[group / 4][(group % 4 * 4 + i) * 4 + 2 * r];
        p[i] = pack_bf16x2(two[0] * scales[r], two[1] * scales[r]);
      }
      transpose_quad(p, t);
      *reinterpret_cast<uint4*>(to + r * 8 * kKeyWidth + group * 32 + t * 8) = {
          p[0], p[1], p[2], p[3]};
    }
  }
}

// 128 columns of rows g and g + 8 as E4M3 codes, 32 bytes of a row at a time.
//   store(r, group, codes): eight codes of row g + 8 r from column 32 group + 8 t on
//   store_scale(r, scale)
template <class Store, class StoreScale>
__device__ __forceinline__ void store_fp8_sums(const float (&out)[64],
                                               const float (&scales)[2],
                                               const Store& store,
                                               const StoreScale& store_scale) {
  const int t = threadIdx.x % 4;
  float factors[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      if (i / 2 % 2 == r) largest = fmaxf(largest, fabsf(out[i]));
    }
    largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, 2));
    const uint32_t exponent = e4m3_scale_exponent(largest * scales[r]);
    factors[r] = scales[r] * inverse_power_of_two(exponent);
    if (t == 0) store_scale(r, power_of_two(exponent));
  }
#pragma unroll
  for (int group = 0; group < 4; ++group) {
    uint32_t p[4];  // row g's two codes in the lower half, row g + 8's in the upper
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* const four = &out[(group * 4 + i) * 4];
      p[i] = to_e4m3x2(four[0] * factors[0], four[1] * factors[0]) |
             to_e4m3x2(four[2] * factors[1], four[3] * factors[1]) << 16;
    }
    transpose_quad(p, t);
    store(0, group, uint2{__byte_perm(p[0], p[1], 0x5410), __byte_perm(p[2], p[3], 0x5410)});
    store(1, group, uint2{__byte_perm(p[0], p[1], 0x7632), __byte_perm(p[2], p[3], 0x7632)});
  }
}

// Writes the quotient of this warpgroup's columns, rotated back, in every form asked for.
//   scales: of rows g and g + 8
__device__ __forceinline__ void store_sums(const SparseAttentionParams& params,
                                           const AttentionItem& item,
                                           const float (&out)[2][64],
                                           const float (&scales)[2]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = lane % 4;
  const int half = warp / 4 - 1, row = warp % 4 * 16 + lane / 4;
  const int64_t k = static_cast<int64_t>(params.heads) * kKeyWidth;
  const int64_t column = static_cast<int64_t>(item.first_head + row) * kKeyWidth + half * 256;
  const int64_t first = item.token * k + column;
  const ActivationForms& forms = params.out;
  if (forms.bf16 != nullptr) {
    store_bf16_sums(static_cast<uint16_t*>(forms.bf16) + first, out, scales);
  }
  if (forms.f32 != nullptr) {
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      const float* const two = &out[i / 32][i % 32 * 2];
      float* const to = forms.f32 + first + i % 2 * 8 * kKeyWidth + i / 2 * 8 + 2 * t;
      *reinterpret_cast<float2*>(to) = {two[0] * scales[i % 2], two[1] * scales[i % 2]};
    }
  }
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    if (forms.fp8 != nullptr) {
      std::byte* const codes = forms.fp8 + first + block * kGroup + t * 8;
      float* const to = forms.fp8_scales + (first / kGroup + block);
      store_fp8_sums(
          out[block],
          scales,
          [&](int r, int group, const uint2& eight) {
            *reinterpret_cast<uint2*>(codes + r * 8 * kKeyWidth + group * 32) = eight;
          },
          [&](int r, float scale) { to[r * 8 * (kKeyWidth / kGroup)] = scale; });
    }
    if (forms.fp8_blocks != nullptr) {
      const Fp8BlockRow place = fp8_block_row(reinterpret_cast<uint8_t*>(forms.fp8_blocks),
                                              params.m,
                                              k,
                                              item.token,
                                              column / kGroup + block);
      // Row g + 8's block is so many bytes on.
      const int64_t rows = place.chunk_bytes / 16;
      const int64_t next = 8 * (kKeyWidth / kGroup) * (rows * 128 + (rows * 4 + 15) / 16 * 16);
      uint8_t* const codes = place.codes + t / 2 * place.chunk_bytes + t % 2 * 8;
      store_fp8_sums(
          out[block],
          scales,
          [&](int r, int group, const uint2& eight) {
            *reinterpret_cast<uint2*>(codes + r * next + group * 2 * place.chunk_bytes) = eight;
          },
          [&](int r, float scale) {
            *reinterpret_cast<float*>(reinterpret_cast<uint8_t*>(place.scale) + r * next) = scale;
          });
    }
  }
}

// Exchanges partial sums with the other blocks of the cluster and writes the heads owned here.
template <int kSplits>
__device__ __forceinline__ void merge_sums(const SparseAttentionParams& params,
                                           const AttentionItem& item,
                                           uint32_t base,
                                           uint8_t* memory,
                                           WarpgroupAttentionState& state,
                                           const float (&out)[2][64]) {
  using Shape = WarpgroupAttention;
  constexpr int kOwnedHeads = kBlockHeads / kSplits;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int half = warp / 4 - 1, warp_in_group = warp % 4;
  uint8_t* const keys_memory = memory + Shape::kKeysOffset;
  // Every block is done with q and its tiles; only then may the others write here.
  cluster_arrive();
  const uint32_t partials = base + Shape::kKeysOffset, received = base;
#pragma unroll
  for (int j = 0; j < 32; ++j) {
    const int row = warp_in_group * 16 + g;
    uint8_t* const to = keys_memory + row * Shape::kPartialPitch + (half * 256 + 8 * j + 2 * t) * 2;
    *reinterpret_cast<uint32_t*>(to) =
        pack_bf16x2(out[j / 16][j % 16 * 4], out[j / 16][j % 16 * 4 + 1]);
    *reinterpret_cast<uint32_t*>(to + 8 * Shape::kPartialPitch) =
        pack_bf16x2(out[j / 16][j % 16 * 4 + 2], out[j / 16][j % 16 * 4 + 3]);
  }
  fence_async_proxy();
  named_barrier_sync(kSumsStaged, 256);
  cluster_wait();
  const auto thread = static_cast<int>(threadIdx.x) - 128;
  const uint32_t received_barrier = shared_address(&state.received);
  const int own_row = item.split * kOwnedHeads;
  if (thread < kBlockHeads && thread / kOwnedHeads != item.split) {
    const auto owner = static_cast<uint32_t>(thread / kOwnedHeads);
    const int row = own_row + thread % kOwnedHeads;
    const uint32_t barrier = shared_address_of_rank(received_barrier, owner);
    bulk_copy_to_rank(shared_address_of_rank(received + row * kKeyBytes, owner),
                      partials + thread * Shape::kPartialPitch,
                      kKeyBytes,
                      barrier);
    store_async(shared_address_of_rank(shared_address(&state.received_states[row]), owner),
                state.states[thread],
                barrier);
  }
  barrier_wait(received_barrier, 0);
  // What this block summed itself stays where it is.
  const auto state_of = [&](int part, int owned) {
    return part == item.split ? state.states[own_row + owned]
                              : state.received_states[part * kOwnedHeads + owned];
  };
  const auto sums_of = [&](int part, int owned) {
    return part == item.split ? keys_memory + (own_row + owned) * Shape::kPartialPitch
                              : memory + (part * kOwnedHeads + owned) * kKeyBytes;
  };
  const int owned_begin = item.first_head + own_row;
  for (int unit = thread; unit < kOwnedHeads * 64; unit += 256) {
    const int owned = unit / 64, chunk = unit % 64;
    const float sink = __ldg(params.sink + owned_begin + owned) * 1.4426950408889634f;
    float max = sink;
#pragma unroll
    for (int i = 0; i < kSplits; ++i) {
      max = fmaxf(max, state_of(i, owned).x);
    }
    const float origin = max == -INFINITY ? 0.0f : max;
    float denominator = exp2_approx(sink - origin);
    float merged[8] = {};
#pragma unroll
    for (int i = 0; i < kSplits; ++i) {
      const float2 part = state_of(i, owned);
      const float weight = exp2_approx(part.x - origin);
      denominator = fmaf(weight, part.y, denominator);
      const uint4 values = *reinterpret_cast<const uint4*>(sums_of(i, owned) + chunk * 16);
      const uint32_t words[4] = {values.x, values.y, values.z, values.w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        merged[2 * k] = fmaf(weight, low_bf16(words[k]), merged[2 * k]);
        merged[2 * k + 1] = fmaf(weight, high_bf16(words[k]), merged[2 * k + 1]);
      }
    }
    const float inverse = max == -INFINITY ? 0.0f : 1.0f / denominator;
    const int rotary = chunk * 4 - (kKeyWidth / 2 - kRotaryPairs);
    float largest = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float& x = merged[2 * k];
      float& y = merged[2 * k + 1];
      x *= inverse;
      y *= inverse;
      if (rotary >= 0) rotate_back(x, y, state.angles[rotary + k]);
      largest = fmaxf(largest, fmaxf(fabsf(x), fabsf(y)));
    }
    // Sixteen lanes have a group of 128 columns.
#pragma unroll
    for (int step = 8; step > 0; step /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, step));
    }
    write_eight(params.out,
                params.m,
                static_cast<int64_t>(params.heads) * kKeyWidth,
                item.token,
                static_cast<int64_t>(owned_begin + owned) * kKeyWidth + chunk * 8,
                {merged[0], merged[1], merged[2], merged[3]},
                {merged[4], merged[5], merged[6], merged[7]},
                largest);
  }
  // A block may end only when what it sent has been read out of its memory: all have received.
  cluster_arrive();
  cluster_wait();
}

// Grid: kSplits == 1: as many blocks as have room, items in turn; else (item, split), split
// fastest.
template <int kSplits, bool kIsFp8>
__global__ void __launch_bounds__(WarpgroupAttention::kThreads, 1)
    sparse_attention_warpgroups(const SparseAttentionParams params) {
  using Shape = WarpgroupAttention;
  extern __shared__ uint8_t unaligned[];
  __shared__ WarpgroupAttentionState state;
  uint8_t* const memory =
      unaligned + (Shape::kAlignment - 1 - (shared_address(unaligned) - 1) % Shape::kAlignment);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int group = warp / 4;
  uint32_t base = shared_address(memory);
  keep_in_register(base);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      barrier_init(shared_address(&state.full[i]), 64);
      barrier_init(shared_address(&state.empty[i][0]), 8 * kWarpArrivals);
      barrier_init(shared_address(&state.empty[i][1]), 8 * kWarpArrivals);
      barrier_init(shared_address(&state.weighted[i]), 128);
      barrier_init(shared_address(&state.probabilities_free[i]), 8 * kWarpArrivals);
    }
    barrier_init(shared_address(&state.inverse_ready), 128);
    barrier_init(shared_address(&state.inverse_free), 8 * kWarpArrivals);
    barrier_init(shared_address(&state.received), 1);
    fence_barrier_init();
    if constexpr (kSplits > 1) {
      barrier_arrive_expect(shared_address(&state.received),
                            (kSplits - 1) * (kBlockHeads / kSplits) * (kKeyBytes + 8));
    }
  }
  launch_dependents();
  __syncthreads();

  if (group == 3) {
    give_registers_until<Shape::kFetchRegisters>();
    bool has_waited = false;
    for_each_item<kSplits>(params, [&](const AttentionItem& item, int tiles_before) {
      fetch_tiles<kIsFp8>(params, item, tiles_before, base + Shape::kKeysOffset, has_waited, state);
    });
    if constexpr (kSplits > 1) {
      cluster_arrive();
      cluster_wait();
    }
  } else if (group == 0) {
    give_registers_until<Shape::kWeighRegisters>();
    wait_for_predecessors();
    uint32_t parity = 1;
    for_each_item<kSplits>(params, [&](const AttentionItem& item, int tiles_before) {
      weigh_tiles<kSplits>(params, item, tiles_before, parity, base, memory, state);
      parity ^= 1;
    });
    if constexpr (kSplits > 1) {
      cluster_arrive();
      cluster_wait();
    }
  } else {
    take_registers_until<Shape::kSumRegisters>();
    wait_for_predecessors();  // before `out` is written
    uint32_t parity = 0;
    for_each_item<kSplits>(params, [&](const AttentionItem& item, int tiles_before) {
      float out[2][64] = {};
      sum_tiles(item, tiles_before, base, state, out);
      if constexpr (kSplits == 1) {
        const int row = warp % 4 * 16 + lane / 4;
        barrier_wait(shared_address(&state.inverse_ready), parity);
        const float inverse[2] = {state.inverse[row], state.inverse[row + 8]};
        if (group == 2) rotate_sums(out, state.angles);
        warp_arrive(shared_address(&state.inverse_free), lane);
        parity ^= 1;
        store_sums(params, item, out, inverse);
      } else {
        named_barrier_sync(kProductsDone, 384);
        merge_sums<kSplits>(params, item, base, memory, state, out);
      }
    });
  }
}

}  // namespace nibble::kernels::cuda
