// Rows of values as the small ops read and write them. A warp takes 128 neighbouring columns, each
// lane four. Device code only.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/common/fp8.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/device_args.h"

namespace nibble::kernels::cuda {

constexpr int kGroup = 128;  // columns of a warp

// How rows lie: kVectors where every width is a multiple of four and every row aligned, so that
// four values are one access; else they move one by one. Loads bypass the first cache, which other
// launches do not update.
__device__ __forceinline__ float bf16_value(uint32_t bits) { return __uint_as_float(bits << 16); }
__device__ __forceinline__ float value_of(float stored) { return stored; }
__device__ __forceinline__ float value_of(uint16_t stored) { return bf16_value(stored); }
__device__ __forceinline__ float4 load_vector(const float* from) {
  return __ldcg(reinterpret_cast<const float4*>(from));
}
__device__ __forceinline__ float4 load_vector(const uint16_t* from) {
  const uint2 q = __ldcg(reinterpret_cast<const uint2*>(from));
  return {bf16_value(q.x),
          __uint_as_float(q.x & 0xFFFF0000U),
          bf16_value(q.y),
          __uint_as_float(q.y & 0xFFFF0000U)};
}
// Up to four values; what is beyond `count` is 0.
template <bool kVectors, class T>
__device__ __forceinline__ float4 load4(const T* from, int64_t count) {
  float4 v{0, 0, 0, 0};
  if constexpr (kVectors) {
    if (count > 0) v = load_vector(from);
  } else {
    if (count > 0) v.x = value_of(__ldcg(from));
    if (count > 1) v.y = value_of(__ldcg(from + 1));
    if (count > 2) v.z = value_of(__ldcg(from + 2));
    if (count > 3) v.w = value_of(__ldcg(from + 3));
  }
  return v;
}
__device__ __forceinline__ float4 operator+(const float4& a, const float4& b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}
__device__ __forceinline__ float sum_of_squares(const float4& v) {
  return fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, v.w * v.w)));
}

// Four values of a product, its partial sums added in order.
//   sums: [splits, m, width]; `index` counts elements of one split
template <bool kVectors>
__device__ __forceinline__ float4
sum4(const DeviceSums& sums, int64_t split_stride, int64_t index, int64_t count) {
  float4 total = load4<kVectors>(sums.data + index, count);
#pragma unroll 4
  for (int split = 1; split < sums.splits; ++split) {
    total = total + load4<kVectors>(sums.data + split * split_stride + index, count);
  }
  return total;
}
__device__ __forceinline__ float sum1(const DeviceSums& sums, int64_t split_stride, int64_t index) {
  float total = __ldcg(sums.data + index);
#pragma unroll 4
  for (int split = 1; split < sums.splits; ++split) {
    total += __ldcg(sums.data + split * split_stride + index);
  }
  return total;
}

// The weight of one of the indexer's heads.
__device__ __forceinline__ float head_weight(const DeviceHeadWeights& weights,
                                             int64_t m,
                                             int64_t token,
                                             int head) {
  const int64_t width = weights.row_width;
  return sum1(weights.projections, m * width, token * width + weights.column + head) *
         weights.scale;
}

__device__ __forceinline__ uint32_t bf16_bits(float value) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}
// In global memory; the intrinsic, as the compiler takes assignments apart where they are far from
// the address.
__device__ __forceinline__ void store_vector(float* to, const float4& v) {
  __stwb(reinterpret_cast<float4*>(to), v);
}
__device__ __forceinline__ void store_vector(uint16_t* to, const float4& v) {
  *reinterpret_cast<uint2*>(to) = {bf16_bits(v.x) | bf16_bits(v.y) << 16,
                                   bf16_bits(v.z) | bf16_bits(v.w) << 16};
}
__device__ __forceinline__ void store1(float* to, float value) { *to = value; }
__device__ __forceinline__ void store1(uint16_t* to, float value) {
  *to = static_cast<uint16_t>(bf16_bits(value));
}
template <bool kVectors, class T>
__device__ __forceinline__ void store4(T* to, const float4& v, int64_t count) {
  if constexpr (kVectors) {
    if (count > 0) store_vector(to, v);
  } else {
    if (count > 0) store1(to, v.x);
    if (count > 1) store1(to + 1, v.y);
    if (count > 2) store1(to + 2, v.z);
    if (count > 3) store1(to + 3, v.w);
  }
}

// Where columns [column, column + 4) of a row lie in a matrix of kTerms BF16 terms, see
// kernels::bf16_block_offset(), and the distance from term to term.
struct Bf16BlockPlace {
  uint8_t* first;
  int64_t step;
};
template <int kTerms>
__device__ __forceinline__ Bf16BlockPlace
bf16_block_place(void* blocks, int64_t m, int64_t k, int64_t row, int64_t column) {
  constexpr int64_t kRows = 128;  // of a slice
  const int64_t slice = row / kRows, in_slice = row % kRows;
  const int64_t rows = min(m - slice * kRows, kRows);
  return {static_cast<uint8_t*>(blocks) +
              (slice * kRows * k + column / 64 * 64 * rows) * kTerms * 2 +
              (column % 64 / 8 * rows + in_slice) * 16 + column % 8 * 2,
          rows * 128};
}
template <int kTerms>
__device__ __forceinline__ void store_bf16_terms(const Bf16BlockPlace& place, float4 v) {
  uint8_t* to = place.first;
#pragma unroll
  for (int term = 0; term < kTerms; ++term, to += place.step) {
    const uint2 codes = {bf16_bits(v.x) | bf16_bits(v.y) << 16,
                         bf16_bits(v.z) | bf16_bits(v.w) << 16};
    __stwb(reinterpret_cast<uint2*>(to), codes);
    v.x -= bf16_value(codes.x);
    v.y -= __uint_as_float(codes.x & 0xFFFF0000U);
    v.z -= bf16_value(codes.y);
    v.w -= __uint_as_float(codes.y & 0xFFFF0000U);
  }
}

// Where columns [128 group, 128 group + 128) of row `row` of an [m, k] matrix lie in its forms: of
// lane l columns 4 l .. 4 l + 3 of them. Null where there is no such form, or column.
template <bool kVectors>
struct GroupPlaces {
  float* f32 = nullptr;
  uint16_t* bf16 = nullptr;
  Bf16BlockPlace bf16_blocks{}, bf16_terms{};
  uint8_t *fp8 = nullptr, *block_codes = nullptr;
  float *fp8_scale = nullptr, *block_scale = nullptr;  // written by lane 0
  int64_t count;                                       // of columns, up to four of this lane

  __device__ __forceinline__
  GroupPlaces(const ActivationForms& y, int64_t m, int64_t k, int64_t row, int64_t group) {
    const int lane = threadIdx.x % 32;
    const int64_t column = group * kGroup + lane * 4;
    count = k - column;
    if (y.f32 != nullptr) f32 = y.f32 + row * k + column;
    if (y.bf16 != nullptr) bf16 = static_cast<uint16_t*>(y.bf16) + row * k + column;
    if (y.bf16_blocks != nullptr && column < k) {
      bf16_blocks = bf16_block_place<1>(y.bf16_blocks, m, k, row, column);
    }
    if (y.bf16_terms != nullptr && column < k) {
      bf16_terms = bf16_block_place<kBf16Terms>(y.bf16_terms, m, k, row, column);
    }
    if (y.fp8 != nullptr) {
      fp8 = reinterpret_cast<uint8_t*>(y.fp8) + row * k + column;
      fp8_scale = y.fp8_scales + row * (k / kGroup) + group;
    }
    if (y.fp8_blocks != nullptr) {
      const Fp8BlockRow place =
          fp8_block_row(reinterpret_cast<uint8_t*>(y.fp8_blocks), m, k, row, group);
      block_codes = place.codes + lane / 4 * place.chunk_bytes + lane % 4 * 4;
      block_scale = place.scale;
    }
  }
  // Has them made now, while there is nothing else to do.
  __device__ __forceinline__ void keep() {
    keep_in_register(f32);
    keep_in_register(bf16);
    keep_in_register(bf16_blocks.first);
    keep_in_register(bf16_terms.first);
    keep_in_register(fp8);
    keep_in_register(block_codes);
    keep_in_register(fp8_scale);
    keep_in_register(block_scale);
  }
  // The whole warp.
  __device__ __forceinline__ void write(const float4& v) const {
    if (f32 != nullptr) store4<kVectors>(f32, v, count);
    if (bf16 != nullptr) store4<kVectors>(bf16, v, count);
    if (bf16_blocks.first != nullptr) store_bf16_terms<1>(bf16_blocks, v);
    if (bf16_terms.first != nullptr) store_bf16_terms<kBf16Terms>(bf16_terms, v);
    if (fp8 == nullptr && block_codes == nullptr) return;
    const bool is_first = threadIdx.x % 32 == 0;
    const uint32_t exponent = e4m3_scale_exponent(warp_max(largest_of(v)));
    const uint32_t codes = e4m3_codes(v, exponent);
    if (fp8 != nullptr) {
      __stwb(reinterpret_cast<uint32_t*>(fp8), codes);
      if (is_first) __stwb(fp8_scale, power_of_two(exponent));
    }
    if (block_codes != nullptr) {
      __stwb(reinterpret_cast<uint32_t*>(block_codes), codes);
      if (is_first) __stwb(block_scale, power_of_two(exponent));
    }
  }
};

// Writes columns [128 group, 128 group + 128) of row `row` of an [m, k] matrix in every form that
// is not null. The whole warp calls it, lane l with columns 4 l .. 4 l + 3 of the group.
template <bool kVectors>
__device__ __forceinline__ void write_group(
    const ActivationForms& y, int64_t m, int64_t k, int64_t row, int64_t group, const float4& v) {
  GroupPlaces<kVectors>(y, m, k, row, group).write(v);
}

// The same for columns [column, column + 8), of which `largest` is the largest magnitude of their
// group; rows are vectors.
__device__ __forceinline__ void write_eight(const ActivationForms& y,
                                            int64_t m,
                                            int64_t k,
                                            int64_t row,
                                            int64_t column,
                                            const float4& first,
                                            const float4& second,
                                            float largest) {
  const int64_t index = row * k + column;
  if (y.f32 != nullptr) {
    store_vector(y.f32 + index, first);
    store_vector(y.f32 + index + 4, second);
  }
  if (y.bf16 != nullptr) {
    auto* const to = static_cast<uint16_t*>(y.bf16) + index;
    store_vector(to, first);
    store_vector(to + 4, second);
  }
  if (y.fp8 == nullptr && y.fp8_blocks == nullptr) return;
  const uint32_t exponent = e4m3_scale_exponent(largest);
  const uint2 codes = {e4m3_codes(first, exponent), e4m3_codes(second, exponent)};
  const int64_t group = column / kGroup, in_group = column % kGroup;
  if (y.fp8 != nullptr) {
    *reinterpret_cast<uint2*>(y.fp8 + index) = codes;
    if (in_group == 0) y.fp8_scales[row * (k / kGroup) + group] = power_of_two(exponent);
  }
  if (y.fp8_blocks != nullptr) {
    const Fp8BlockRow place =
        fp8_block_row(reinterpret_cast<uint8_t*>(y.fp8_blocks), m, k, row, group);
    *reinterpret_cast<uint2*>(place.codes + in_group / 16 * place.chunk_bytes + in_group % 16) =
        codes;
    if (in_group == 0) *place.scale = power_of_two(exponent);
  }
}

// --- rotation ---

// Sine and cosine of f32(position) * freq rounded to f32, which may be millions of turns.
__device__ __forceinline__ float2 rotation_of(int position, float freq) {
  constexpr double kInversePi = 0.31830988618379067154;
  const double half_turns =
      static_cast<double>(__fmul_rn(static_cast<float>(position), freq)) * kInversePi;
  const double rest = half_turns - 2.0 * rint(half_turns * 0.5);
  float sin, cos;
  sincospif(static_cast<float>(rest), &sin, &cos);
  return {sin, cos};
}
__device__ __forceinline__ void rotate_pair(float& x, float& y, const float2& sin_cos) {
  const float first = x;
  x = first * sin_cos.y - y * sin_cos.x;
  y = first * sin_cos.x + y * sin_cos.y;
}
// The angles of columns [column, column + 4) of a head; columns before its rotary end stay.
struct Rotation4 {
  float2 first;
  float2 second;
};
__device__ __forceinline__ Rotation4
rotation4(int column, int head_dim, const DeviceRotation& rotation, int position, bool inverse) {
  Rotation4 angles{{0, 1}, {0, 1}};
  const int pair = column - (head_dim - rotation.num_rotary);
  if (pair >= 0 && column < head_dim) {
    angles.first = rotation_of(position, rotation.freqs[pair / 2]);
  }
  if (pair + 2 >= 0 && column + 2 < head_dim) {
    angles.second = rotation_of(position, rotation.freqs[(pair + 2) / 2]);
  }
  if (inverse) {
    angles.first.x = -angles.first.x;
    angles.second.x = -angles.second.x;
  }
  return angles;
}
__device__ __forceinline__ void rotate(float4& v, const Rotation4& angles) {
  rotate_pair(v.x, v.y, angles.first);
  rotate_pair(v.z, v.w, angles.second);
}

// --- stored keys ---

constexpr int kKeyBlock = 64;  // of quant/fp8_key.h

// Where a key vector's parts lie, as quant::Fp8KeyLayout; without rotary columns the key is an
// indexer's, quant::fp8_index_key_bytes().
struct Fp8Key {
  int num_codes;
  int scales_offset;
  int row_bytes;

  __device__ __forceinline__ Fp8Key(int width, int num_rotary)
      : num_codes(width - num_rotary),
        scales_offset(num_codes + 2 * num_rotary),
        row_bytes(num_rotary == 0 ? width + 4
                                  : (scales_offset + num_codes / kKeyBlock + 7) / 8 * 8) {}
};

// Columns [128 group, 128 group + 128) of a key vector in FP8; the whole warp calls it.
template <bool kVectors>
__device__ __forceinline__ void store_fp8_group(
    const float4& v, int group, int width, int num_rotary, uint8_t* pool, int64_t row) {
  constexpr float kLargest = 0x1p126F;  // quant::kLargestFp8Key
  const Fp8Key layout(width, num_rotary);
  const int lane = threadIdx.x % 32, column = group * kGroup + lane * 4;
  uint8_t* const out = pool + row * layout.row_bytes;
  const int lanes = num_rotary == 0 ? 32 : 16;  // that share a scale
  float amax = largest_of(v);
  const bool is_bad = !(fabsf(v.x) <= kLargest && fabsf(v.y) <= kLargest &&
                        fabsf(v.z) <= kLargest && fabsf(v.w) <= kLargest);
  const uint32_t bad = __ballot_sync(~0U, is_bad);
  const bool is_nan = (lanes == 32 ? bad : bad >> (lane & 16) & 0xFFFFU) != 0;
  for (int step = lanes / 2; step > 0; step /= 2) {
    amax = fmaxf(amax, __shfl_xor_sync(~0U, amax, step));
  }
  const uint32_t exponent = e4m3_scale_exponent(amax);
  if (column < layout.num_codes) {
    *reinterpret_cast<uint32_t*>(out + column) = is_nan ? 0 : e4m3_codes(v, exponent);
  } else if (column < width) {
    store4<kVectors>(
        reinterpret_cast<uint16_t*>(out + layout.num_codes) + column - layout.num_codes,
        v,
        width - column);
  }
  if (num_rotary == 0) {
    if (lane == 0) {
      *reinterpret_cast<float*>(out + width) =
          is_nan ? __uint_as_float(0x7FC00000U) : power_of_two(exponent);
    }
    return;
  }
  if (lane % 16 == 0 && column < layout.num_codes) {
    out[layout.scales_offset + column / kKeyBlock] = static_cast<uint8_t>(is_nan ? 255 : exponent);
  }
  const int end = layout.scales_offset + layout.num_codes / kKeyBlock;
  if (group == 0 && end + lane < layout.row_bytes) out[end + lane] = 0;
}

// The same in the dtype of a pool: kF32, kBf16 or kF8E4m3.
template <bool kVectors>
__device__ __forceinline__ void store_key_group(const float4& v,
                                                int group,
                                                int width,
                                                DType dtype,
                                                int num_rotary,
                                                std::byte* pool,
                                                int64_t row) {
  const int column = group * kGroup + static_cast<int>(threadIdx.x % 32) * 4;
  if (dtype == DType::kF32) {
    store4<kVectors>(reinterpret_cast<float*>(pool) + row * width + column, v, width - column);
  } else if (dtype == DType::kBf16) {
    store4<kVectors>(reinterpret_cast<uint16_t*>(pool) + row * width + column, v, width - column);
  } else {
    store_fp8_group<kVectors>(v, group, width, num_rotary, reinterpret_cast<uint8_t*>(pool), row);
  }
}

// --- on the host: whether rows are vectors ---

// A matrix of rows of `width` f32 or bf16 values, or none at all.
template <class T>
bool has_vectors(const T* data, int64_t width) {
  return width % 4 == 0 && reinterpret_cast<uintptr_t>(data) % (4 * sizeof(T)) == 0;
}
inline bool has_vectors(const ActivationForms& forms, int64_t k) {
  return has_vectors(forms.f32, k) && has_vectors(static_cast<const uint16_t*>(forms.bf16), k);
}

}  // namespace nibble::kernels::cuda
