// Rows of key pools as BF16 rows in shared memory. Device code only.
//
// A row is copied in runs of eight elements, one thread each. F32 elements are rounded; FP8 codes
// become BF16 exactly.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/copy_async.cuh"
#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/common/ptx.cuh"
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

__device__ __forceinline__ uint4 round_to_bf16(const float4& low, const float4& high) {
  return {pack_bf16x2(low.x, low.y),
          pack_bf16x2(low.z, low.w),
          pack_bf16x2(high.x, high.y),
          pack_bf16x2(high.z, high.w)};
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

// Elements 8 run to 8 run + 7 of `row` to `to` in shared memory; zeros when `row` is null.
// kBf16: as an asynchronous copy, `pool` being any valid address.
template <KeyStorage kStorage>
__device__ __forceinline__ void fetch_key_run(
    const KeyRowFormat& format, const uint8_t* pool, const uint8_t* row, int run, uint8_t* to) {
  if constexpr (kStorage == KeyStorage::kBf16) {
    copy_async_16(shared_address(to), row == nullptr ? pool : row + 16 * run, row != nullptr);
  } else {
    uint4 v = {};
    if (row == nullptr) {
    } else if constexpr (kStorage == KeyStorage::kF32) {
      const auto* const from = reinterpret_cast<const float4*>(row) + 2 * run;
      v = round_to_bf16(__ldcg(from), __ldcg(from + 1));
    } else if constexpr (kStorage == KeyStorage::kFp8Index) {
      const auto* const from = reinterpret_cast<const uint32_t*>(row) + 2 * run;
      v = codes_to_bf16(__ldcg(from), __ldcg(from + 1));
    } else if (8 * run >= format.num_codes) {
      const auto* const from =
          reinterpret_cast<const uint2*>(row + format.num_codes + 2 * (8 * run - format.num_codes));
      const uint2 low = __ldcg(from), high = __ldcg(from + 1);
      v = {low.x, low.y, high.x, high.y};
    } else {
      const uint2 codes = __ldcg(reinterpret_cast<const uint2*>(row) + run);
      const uint8_t* const scales = row + format.num_codes + 2 * (format.width - format.num_codes);
      const uint32_t scale = e8m0_bf16x2(__ldcg(scales + run / 8));
      v = codes_to_bf16(codes.x, codes.y);
      v = {fma_bf16x2(v.x, scale, kBf16x2MinusZero),
           fma_bf16x2(v.y, scale, kBf16x2MinusZero),
           fma_bf16x2(v.z, scale, kBf16x2MinusZero),
           fma_bf16x2(v.w, scale, kBf16x2MinusZero)};
    }
    *reinterpret_cast<uint4*>(to) = v;
  }
}

}  // namespace nibble::kernels::cuda
