// The rows that sparse attention reads: lists of two pools as one sequence, and rows in FP8. Device
// code only.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/ops/rows.cuh"

namespace nibble::kernels::cuda {

inline constexpr int kKeyWidth = 512;
inline constexpr int kKeyBytes = 2 * kKeyWidth;  // in BF16
// quant::Fp8KeyLayout of 448 codes and 64 rotary elements.
inline constexpr int kFp8Codes = 448;
inline constexpr int kFp8RowBytes = 584;

// DeviceKeyRows as the kernels take it.
struct KeyList {
  const uint8_t* pool;
  const int* rows;
  const int* counts;
  int max_rows;
  const int* ready_counts;
};

// DeviceSparseAttentionArgs as the kernels take it.
struct SparseAttentionParams {
  const uint16_t* q;
  KeyList window;
  KeyList entries;
  const float* sink;
  float scale_log2;  // of logits to base 2
  DeviceSums q_sums;
  float eps;
  const int* positions;
  DeviceRotation rotation;
  ActivationForms out;
  int m;
  int heads;
  int num_items;  // groups of 64 heads of all tokens
};

// The keys of one token: window rows, then entries.
struct TokenKeys {
  const int* window_rows;
  const int* entry_rows;
  int num_window;
  int count;
  int ready_window;  // keys that may be read before the kernels ahead have ended
  int ready_entries;

  __device__ __forceinline__ TokenKeys(const SparseAttentionParams& params, int token)
      : window_rows(params.window.rows + static_cast<size_t>(token) * params.window.max_rows),
        entry_rows(params.entries.rows + static_cast<size_t>(token) * params.entries.max_rows),
        num_window(__ldg(params.window.counts + token)),
        count(num_window + __ldg(params.entries.counts + token)),
        ready_window(ready_count(params.window, token)),
        ready_entries(ready_count(params.entries, token)) {}

  __device__ __forceinline__ bool is_ready(int key) const {
    return key < num_window ? key < ready_window : key - num_window < ready_entries;
  }
  // Where key `key` of the sequence lies: its row of a pool, or -1.
  __device__ __forceinline__ int row(int key) const {
    return __ldcg(key < num_window ? window_rows + key : entry_rows + (key - num_window));
  }
  const __device__ __forceinline__ uint8_t* pool(const SparseAttentionParams& params,
                                                 int key) const {
    return key < num_window ? params.window.pool : params.entries.pool;
  }

 private:
  static __device__ __forceinline__ int ready_count(const KeyList& list, int token) {
    return list.ready_counts == nullptr ? 0 : __ldg(list.ready_counts + token);
  }
};

// Row `key` of the sequence, or null where the list has -1.
template <int kRowBytes>
const __device__ __forceinline__ uint8_t* key_row(const SparseAttentionParams& params,
                                                  const TokenKeys& keys,
                                                  int key) {
  const int row = keys.row(key);
  return row < 0 ? nullptr : keys.pool(params, key) + static_cast<size_t>(row) * kRowBytes;
}

// --- rotation of a head's last 64 columns ---

inline constexpr int kRotaryPairs = 32;

// Sine and cosine of a pair of these at the token's position.
__device__ __forceinline__ float2 pair_rotation(const SparseAttentionParams& params,
                                                int token,
                                                int pair) {
  const int rotary = pair - (kRotaryPairs - params.rotation.num_rotary / 2);
  if (rotary < 0) return {0, 1};
  return rotation_of(__ldg(params.positions + token), __ldg(params.rotation.freqs + rotary));
}
// Turns a pair back.
__device__ __forceinline__ void rotate_back(float& x, float& y, const float2& sin_cos) {
  rotate_pair(x, y, {-sin_cos.x, sin_cos.y});
}

// --- FP8 rows, 8 bytes at a time: 56 chunks of codes, 16 of rotary elements, one of scales ---

inline constexpr int kFp8CodeChunks = kFp8Codes / 8;
inline constexpr int kFp8Chunks = kFp8CodeChunks + 16;
inline constexpr int kFp8ScaleChunk = kFp8Chunks;

// An E8M0 scale as two BF16. Code 255 is NaN, code 0 the subnormal 2^-127.
__device__ __forceinline__ uint32_t e8m0_bf16x2(uint32_t code) {
  const uint32_t bits = code == 255 ? 0x7FC0U : (code == 0 ? 0x40U : code << 7);
  return bits | bits << 16;
}

// Four E4M3 codes times `scale`. Their bits in the fields of BF16 mean code * 2^-120; both
// products are exact where the result is normal.
__device__ __forceinline__ uint2 widen_e4m3(uint32_t codes, uint32_t scale) {
  constexpr uint32_t kTwoTo120 = 0x7B807B80U;
  const uint32_t low = __byte_perm(codes, 0, 0x1404), high = __byte_perm(codes, 0, 0x3424);
  const auto widen = [scale](uint32_t x) {
    const uint32_t bits = (x & 0x80008000U) | ((x >> 4) & 0x07F007F0U);
    return multiply_bf16x2(multiply_bf16x2(bits, kTwoTo120), scale);
  };
  return {widen(low), widen(high)};
}

// Chunk `chunk` of a row as eight BF16 (codes), or as four in x and y (rotary elements).
//   scales: the row's last eight bytes
__device__ __forceinline__ uint4 widen_fp8_chunk(uint2 bytes, int chunk, uint2 scales) {
  const uint32_t block = static_cast<uint32_t>(chunk) / 8;
  const uint32_t word = block < 4 ? scales.x : scales.y;
  const uint32_t scale = e8m0_bf16x2((word >> (8 * (block & 3))) & 0xFF);
  const uint2 first = widen_e4m3(bytes.x, scale), second = widen_e4m3(bytes.y, scale);
  return {first.x, first.y, second.x, second.y};
}

// What a lane holds of a row that a warp reads: chunks lane, lane + 32 and lane + 64.
struct Fp8RowPart {
  uint2 chunks[3];

  // Zeros where `row` is null. The choice comes before the loads, which nothing waits for here.
  __device__ __forceinline__ void read(const uint8_t* row, int lane) {
    const uint2* const source = reinterpret_cast<const uint2*>(row);
    for (uint2& chunk : chunks) chunk = {0, 0};
    if (row == nullptr) return;
    chunks[0] = __ldcg(source + lane);
    chunks[1] = __ldcg(source + lane + 32);
    if (lane <= kFp8ScaleChunk - 64) chunks[2] = __ldcg(source + lane + 64);
  }

  // Calls store(element, bytes) for this lane's parts as BF16: uint4 of eight or uint2 of four.
  template <class Store>
  __device__ __forceinline__ void widen(int lane, const Store& store) const {
    constexpr int kScaleLane = kFp8ScaleChunk - 64;
    const uint2 scales = {__shfl_sync(~0U, chunks[2].x, kScaleLane),
                          __shfl_sync(~0U, chunks[2].y, kScaleLane)};
    store(lane * 8, widen_fp8_chunk(chunks[0], lane, scales));
    if (lane + 32 < kFp8CodeChunks) {
      store((lane + 32) * 8, widen_fp8_chunk(chunks[1], lane + 32, scales));
    } else {
      store(kFp8Codes + (lane + 32 - kFp8CodeChunks) * 4, chunks[1]);
    }
    if (lane + 64 < kFp8Chunks) store(kFp8Codes + (lane + 64 - kFp8CodeChunks) * 4, chunks[2]);
  }
};

}  // namespace nibble::kernels::cuda
