// Rows of key pools as BF16 rows in shared memory. Device code only.
//
// A row is read in runs of eight elements, one thread each. F32 elements are rounded; FP8 codes
// become BF16 exactly.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/portable/matmul/weights.cuh"

namespace nibble::kernels::cuda {

enum class KeyStorage : uint8_t {
  kF32,
  kBf16,
  kFp8,       // quant::Fp8KeyLayout: scaled here
  kFp8Index,  // quant::fp8_index_key rows: codes, to be scaled by the reader
};

// Bytes between the rows of a tile of `width` elements: 16 more than the row, so that eight rows
// read at the same place lie in different banks.
__host__ __device__ constexpr int key_row_stride(int width) { return 2 * width + 16; }

struct KeyRowFormat {
  int width = 0;
  int num_codes = 0;  // kFp8
  int row_bytes = 0;
};

// Eight f32, as bits.
__device__ __forceinline__ uint4 round_to_bf16(const uint4& low, const uint4& high) {
  return {pack_bf16x2(__uint_as_float(low.x), __uint_as_float(low.y)),
          pack_bf16x2(__uint_as_float(low.z), __uint_as_float(low.w)),
          pack_bf16x2(__uint_as_float(high.x), __uint_as_float(high.y)),
          pack_bf16x2(__uint_as_float(high.z), __uint_as_float(high.w))};
}

// Two words of E4M3 codes.
__device__ __forceinline__ uint4 codes_to_bf16(uint32_t first, uint32_t second) {
  uint4 v;
  decode_e4m3x4(first, v.x, v.y);
  decode_e4m3x4(second, v.z, v.w);
  return v;
}

// The power of two of an E8M0 code, twice; NaN for 255.
__device__ __forceinline__ uint32_t e8m0_bf16x2(uint32_t code) {
  const uint32_t one = code == 0 ? 0x40U : code == 255 ? 0x7FC0U : code << 7;
  return one | one << 16;
}

// Eight elements of a row as they are stored.
struct KeyRun {
  uint4 low = {};
  uint4 high = {};     // kF32
  uint32_t scale = 0;  // kFp8: of codes; 0: BF16 elements
};

// Elements 8 run to 8 run + 7 of `row`; zeros when it is null.
template <KeyStorage kStorage>
__device__ __forceinline__ KeyRun load_key_run(const KeyRowFormat& format,
                                               const uint8_t* row,
                                               int run) {
  KeyRun loaded;
  if (row == nullptr) return loaded;
  if constexpr (kStorage == KeyStorage::kBf16) {
    loaded.low = __ldcg(reinterpret_cast<const uint4*>(row) + run);
  } else if constexpr (kStorage == KeyStorage::kF32) {
    loaded.low = __ldcg(reinterpret_cast<const uint4*>(row) + 2 * run);
    loaded.high = __ldcg(reinterpret_cast<const uint4*>(row) + 2 * run + 1);
  } else if constexpr (kStorage == KeyStorage::kFp8Index) {
    loaded.low.x = __ldcg(reinterpret_cast<const uint32_t*>(row) + 2 * run);
    loaded.low.y = __ldcg(reinterpret_cast<const uint32_t*>(row) + 2 * run + 1);
  } else if (8 * run >= format.num_codes) {
    const auto* const from =
        reinterpret_cast<const uint2*>(row + format.num_codes + 2 * (8 * run - format.num_codes));
    const uint2 low = __ldcg(from), high = __ldcg(from + 1);
    loaded.low = {low.x, low.y, high.x, high.y};
  } else {
    const uint2 codes = __ldcg(reinterpret_cast<const uint2*>(row) + run);
    loaded.low = {codes.x, codes.y, 0, 0};
    loaded.scale = e8m0_bf16x2(
        __ldcg(row + format.num_codes + 2 * (format.width - format.num_codes) + run / 8));
  }
  return loaded;
}

// The elements as BF16, to 16 bytes of shared memory.
template <KeyStorage kStorage>
__device__ __forceinline__ void store_key_run(const KeyRun& loaded, uint8_t* to) {
  uint4 v = loaded.low;
  if constexpr (kStorage == KeyStorage::kF32) {
    v = round_to_bf16(loaded.low, loaded.high);
  } else if constexpr (kStorage == KeyStorage::kFp8Index) {
    v = codes_to_bf16(v.x, v.y);
  } else if constexpr (kStorage == KeyStorage::kFp8) {
    if (loaded.scale != 0) {
      v = codes_to_bf16(v.x, v.y);
      v = {fma_bf16x2(v.x, loaded.scale, kBf16x2MinusZero),
           fma_bf16x2(v.y, loaded.scale, kBf16x2MinusZero),
           fma_bf16x2(v.z, loaded.scale, kBf16x2MinusZero),
           fma_bf16x2(v.w, loaded.scale, kBf16x2MinusZero)};
    }
  }
  *reinterpret_cast<uint4*>(to) = v;
}

// Rows first_row, first_row + row_step, .. below num_rows of `key_row` (null: zeros) into a tile of
// shared memory, by a warp. kRuns runs of each lane are on their way together.
template <KeyStorage kStorage, class KeyRow>
__device__ __forceinline__ void fetch_key_rows(const KeyRowFormat& format,
                                               int first_row,
                                               int num_rows,
                                               int row_step,
                                               const KeyRow& key_row,
                                               uint8_t* tile) {
  constexpr int kRuns = 8;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int runs = format.width / 8, stride = key_row_stride(format.width);
  // Short rows are read several at a time.
  const int lanes = min(runs, 32), rows = 32 / lanes;
  if (lane >= rows * lanes) return;
  const int step = row_step * rows;
  for (int run = lane % lanes; run < runs; run += 32) {
    for (int first = first_row + lane / lanes * row_step; first < num_rows; first += step * kRuns) {
      KeyRun loaded[kRuns];
#pragma unroll
      for (int j = 0; j < kRuns; ++j) {
        const int row = first + j * step;
        loaded[j] = load_key_run<kStorage>(format, row < num_rows ? key_row(row) : nullptr, run);
      }
#pragma unroll
      for (int j = 0; j < kRuns; ++j) {
        const int row = first + j * step;
        if (row < num_rows) store_key_run<kStorage>(loaded[j], tile + row * stride + run * 16);
      }
    }
  }
}

}  // namespace nibble::kernels::cuda
