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

// Scales are E8M0 codes in both halves of a word. Values are products with one factor, 2^120 times
// the scale, which BF16 holds up to a scale of 2^7; those of larger ones need another product.
inline constexpr uint32_t kLargestScale = 127 + 7, kLargestScales = kLargestScale * 0x10001U;

// scale: up to 2^7
__device__ __forceinline__ uint32_t scale_factor(uint32_t scale) {
  return scale * 0x80U + 0x3C003C00U;
}
// What is left of the scale, NaN for its code.
__device__ __forceinline__ uint32_t scale_excess(uint32_t scale) {
  const uint32_t code = scale & 0xFF;
  const uint32_t bits = code == 255 ? 0x7FC0U : (max(code, kLargestScale) - 7) << 7;
  return bits | bits << 16;
}
// The code of block `block` of four in both halves; 4: zeros.
__device__ __forceinline__ uint32_t scale_of_block(uint32_t codes, int block) {
  return __byte_perm(codes, 0, 0x4040U | static_cast<uint32_t>(block) * 0x101U);
}

// Four E4M3 codes times a scale. Their bits in the fields of BF16 mean code * 2^-120; the product
// is exact where it is normal.
__device__ __forceinline__ uint2 widen_four(uint32_t codes, uint32_t factor) {
  const uint32_t low = __byte_perm(codes, 0, 0x1404), high = __byte_perm(codes, 0, 0x3424);
  const auto widen = [factor](uint32_t x) {
    return multiply_bf16x2((x & 0x80008000U) | ((x >> 4) & 0x07F007F0U), factor);
  };
  return {widen(low), widen(high)};
}
__device__ __forceinline__ uint4 widen_eight(uint2 codes, uint32_t factor) {
  const uint2 first = widen_four(codes.x, factor), second = widen_four(codes.y, factor);
  return {first.x, first.y, second.x, second.y};
}
__device__ __forceinline__ uint4 multiply_eight(const uint4& x, uint32_t factor) {
  return {multiply_bf16x2(x.x, factor),
          multiply_bf16x2(x.y, factor),
          multiply_bf16x2(x.z, factor),
          multiply_bf16x2(x.w, factor)};
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

  // The scales of this lane's first two chunks.
  __device__ __forceinline__ uint2 scales(int lane) const {
    constexpr int kScaleLane = kFp8ScaleChunk - 64;
    const uint2 codes = {__shfl_sync(~0U, chunks[2].x, kScaleLane),
                         __shfl_sync(~0U, chunks[2].y, kScaleLane)};
    return {scale_of_block(codes.x, lane / 8),
            scale_of_block(codes.y, lane + 32 < kFp8CodeChunks ? lane / 8 : 4)};
  }
  // Calls store(element, bytes) for this lane's parts as BF16: uint4 of eight or uint2 of four.
  template <class Store>
  __device__ __forceinline__ void widen(int lane, uint2 scales, const Store& store) const {
    store(lane * 8, widen_eight(chunks[0], scale_factor(min(scales.x, kLargestScales))));
    if (lane + 32 < kFp8CodeChunks) {
      store((lane + 32) * 8, widen_eight(chunks[1], scale_factor(min(scales.y, kLargestScales))));
    } else {
      store(kFp8Codes + (lane + 32 - kFp8CodeChunks) * 4, chunks[1]);
    }
    if (lane + 64 < kFp8Chunks) store(kFp8Codes + (lane + 64 - kFp8CodeChunks) * 4, chunks[2]);
  }
};

}  // namespace nibble::kernels::cuda
