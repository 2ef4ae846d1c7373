// A block takes 16 heads of one token and walks over its keys, 64 at a time, with an online
// softmax: scores by m16n8k16, one tile of eight keys per warp; then every warp adds the keys,
// weighted, to its columns of the output. Keys are summed in list order, so that a token's result
// depends on nothing else.
//
// Bytes: the keys of a token once per 16 heads, from the L2 cache. FLOPs: 4 keys heads width.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/copy_async.cuh"
#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/portable/keys.cuh"

namespace nibble::kernels::cuda {

inline constexpr int kPortableAttentionHeads = 16, kPortableAttentionKeys = 64;
inline constexpr int kPortableAttentionWidth = 512;  // at most

struct PortableKeyList {
  const uint8_t* pool;
  const int* rows;
  const int* counts;
  int max_rows;
};

// DeviceSparseAttentionArgs as the kernel takes them.
struct PortableAttentionParams {
  const uint8_t* q;
  PortableKeyList window;
  PortableKeyList entries;
  KeyRowFormat format;
  const float* sink;
  float scale;  // times log2(e)
  uint16_t* out;
  int heads;
  int head_tiles;
};

// Shared memory of a block, for rows of `width` elements.
struct PortableAttentionLayout {
  static constexpr int kScoreStride = kPortableAttentionKeys;            // f32
  static constexpr int kWeightStride = 2 * kPortableAttentionKeys + 16;  // bytes of BF16

  __host__ __device__ explicit constexpr PortableAttentionLayout(int width)
      : keys(kPortableAttentionHeads * key_row_stride(width)),
        scores(keys + kPortableAttentionKeys * key_row_stride(width)),
        weights(scores + kPortableAttentionHeads * kScoreStride * 4),
        rows(weights + kPortableAttentionHeads * kWeightStride),
        pointers(rows + 3 * kPortableAttentionHeads * 4),
        bytes(pointers + kPortableAttentionKeys * 8) {}

  int keys;      // q comes first
  int scores;    // [head][key] f32
  int weights;   // [head][key] BF16
  int rows;      // per head: maximum, sum, factor for what was summed before
  int pointers;  // to the pool rows of the tile's keys; null: no key
  int bytes;
};

// Grid: (token, tile of heads), tile fastest.
template <KeyStorage kStorage>
__global__ void __launch_bounds__(256)
    portable_sparse_attention(const PortableAttentionParams params) {
  constexpr int kHeads = kPortableAttentionHeads, kKeys = kPortableAttentionKeys;
  constexpr int kMaxPairs = kPortableAttentionWidth / 16 / 8;  // of column tiles per warp
  using Layout = PortableAttentionLayout;
  extern __shared__ __align__(16) uint8_t memory[];
  const int width = params.format.width, stride = key_row_stride(width), runs = width / 8;
  const Layout layout(width);
  const auto thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
  const auto token = static_cast<int>(blockIdx.x) / params.head_tiles;
  const int first_head = static_cast<int>(blockIdx.x) % params.head_tiles * kHeads;
  auto* const scores = reinterpret_cast<float*>(memory + layout.scores);
  auto* const maximum = reinterpret_cast<float*>(memory + layout.rows);
  auto* const key_rows = reinterpret_cast<const uint8_t**>(memory + layout.pointers);
  float* const sum = maximum + kHeads;
  float* const factor = sum + kHeads;

  launch_dependents();
  wait_for_predecessors();
  const int num_window = __ldg(params.window.counts + token);
  const int num_keys = num_window + __ldg(params.entries.counts + token);
  for (int i = thread; i < kHeads * runs; i += 256) {
    const int head = i / runs, run = i % runs;
    const bool is_present = first_head + head < params.heads;
    const int64_t row = static_cast<int64_t>(token) * params.heads + first_head + head;
    copy_async_16(shared_address(memory + head * stride + 16 * run),
                  is_present ? params.q + row * (2 * width) + 16 * run : params.q,
                  is_present);
  }
  if (thread < kHeads) {
    maximum[thread] = -INFINITY;
    sum[thread] = 0;
  }

  const int* const window_rows =
      params.window.rows + static_cast<int64_t>(token) * params.window.max_rows;
  const int* const entry_rows =
      params.entries.rows + static_cast<int64_t>(token) * params.entries.max_rows;
  // The pool row of key `i` of the token; null: none.
  const auto find_key = [&](int i) -> const uint8_t* {
    if (i >= num_keys) return nullptr;
    const bool is_window = i < num_window;
    const int* const rows = is_window ? window_rows + i : entry_rows + (i - num_window);
    const uint8_t* const pool = is_window ? params.window.pool : params.entries.pool;
    const int row = __ldg(rows);
    return row < 0 ? nullptr : pool + static_cast<int64_t>(row) * params.format.row_bytes;
  };

  float out[kMaxPairs][2][4] = {};
  for (int first = 0; first < num_keys; first += kKeys) {
    __syncthreads();  // the last tile has been read
    if (thread < kKeys) key_rows[thread] = find_key(first + thread);
    __syncthreads();
    fetch_key_rows<kStorage>(
        params.format,
        warp,
        kKeys,
        8,
        [&](int key) { return key_rows[key]; },
        memory + layout.keys);
    copy_async_wait_all();
    __syncthreads();

    // Scores of this warp's eight keys.
    float dots[4] = {};
    const uint32_t q_address =
        shared_address(memory + (lane / 8 % 2 * 8 + lane % 8) * stride + lane / 16 * 16);
    const uint32_t key_address =
        shared_address(memory + layout.keys + (warp * 8 + lane % 8) * stride);
    for (int k = 0; k < width; k += 32) {
      const bool has_second = k + 16 < width;
      uint32_t a[4], b[4];
      load_matrices(b, key_address + 2 * k + (has_second ? lane / 8 : lane / 8 % 2) * 16);
      load_matrices(a, q_address + 2 * k);
      mma_bf16(dots, a, b[0], b[1]);
      if (has_second) {
        load_matrices(a, q_address + 2 * k + 32);
        mma_bf16(dots, a, b[2], b[3]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = warp * 8 + 2 * t + i % 2;
      const bool is_present = key_rows[key] != nullptr;
      scores[(g + i / 2 * 8) * Layout::kScoreStride + key] =
          is_present ? dots[i] * params.scale : -INFINITY;
    }
    __syncthreads();

    // Two heads per warp, two keys per lane.
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int head = 2 * warp + i;
      const float2 two =
          reinterpret_cast<const float2*>(scores + head * Layout::kScoreStride)[lane];
      float largest = fmaxf(two.x, two.y);
#pragma unroll
      for (int step = 16; step > 0; step /= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, step));
      }
      const float before = maximum[head];
      const float now = fmaxf(before, largest);
      const float base = now == -INFINITY ? 0.0f : now;
      const uint32_t rounded = pack_bf16x2(exp2_approx(two.x - base), exp2_approx(two.y - base));
      reinterpret_cast<uint32_t*>(memory + layout.weights + head * Layout::kWeightStride)[lane] =
          rounded;
      float added = low_bf16(rounded) + high_bf16(rounded);
#pragma unroll
      for (int step = 16; step > 0; step /= 2) added += __shfl_xor_sync(~0U, added, step);
      __syncwarp();
      if (lane == 0) {
        const float scale = exp2_approx(before - base);
        factor[head] = scale;
        sum[head] = fmaf(sum[head], scale, added);
        maximum[head] = now;
      }
    }
    __syncthreads();

    const float low_factor = factor[g], high_factor = factor[g + 8];
    uint32_t weights[kKeys / 16][4];
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) {
      load_matrices(weights[i],
                    shared_address(memory + layout.weights +
                                   (lane / 8 % 2 * 8 + lane % 8) * Layout::kWeightStride +
                                   lane / 16 * 16 + 32 * i));
    }
#pragma unroll
    for (int p = 0; p < kMaxPairs; ++p) {
      const int column = (warp + 8 * p) * 16;
      if (column >= width) break;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        out[p][j][0] *= low_factor;
        out[p][j][1] *= low_factor;
        out[p][j][2] *= high_factor;
        out[p][j][3] *= high_factor;
      }
#pragma unroll
      for (int i = 0; i < kKeys / 16; ++i) {
        uint32_t b[4];
        load_matrices_transposed(
            b,
            shared_address(memory + layout.keys + (16 * i + lane / 8 % 2 * 8 + lane % 8) * stride +
                           2 * column + lane / 16 * 16));
        mma_bf16(out[p][0], weights[i], b[0], b[1]);
        mma_bf16(out[p][1], weights[i], b[2], b[3]);
      }
    }
  }
  copy_async_wait_all();
  __syncthreads();

  // The sink takes part in the denominator only.
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int head = g + 8 * half;
    if (first_head + head >= params.heads) continue;
    constexpr float kLog2E = 1.4426950408889634f;
    const float base = maximum[head] == -INFINITY ? 0.0f : maximum[head];
    const float total =
        sum[head] + exp2_approx(__ldg(params.sink + first_head + head) * kLog2E - base);
    const float inverse = maximum[head] == -INFINITY ? 0.0f : 1.0f / total;
    auto* const row = reinterpret_cast<uint32_t*>(
        params.out + (static_cast<int64_t>(token) * params.heads + first_head + head) * width);
#pragma unroll
    for (int p = 0; p < kMaxPairs; ++p) {
      const int column = (warp + 8 * p) * 16;
      if (column >= width) break;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        row[(column + 8 * j) / 2 + t] =
            pack_bf16x2(out[p][j][2 * half] * inverse, out[p][j][2 * half + 1] * inverse);
      }
    }
  }
}

}  // namespace nibble::kernels::cuda
