// Quantising activations to E4M3 with power-of-two scales. Device code only.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

namespace nibble::kernels::cuda {

// The scale of a group with largest magnitude `amax`: max(amax, 1e-4) / 448 rounded up to a power
// of two, as an exponent with bias 127. 448 is 1.75 times 2^8: a mantissa above 1.75 rounds up once
// more. An infinite amax keeps its exponent. Source: spec "kernels" 8.2.
__device__ __forceinline__ uint32_t e4m3_scale_exponent(float amax) {
  constexpr float kMinAmax = 1e-4f;
  constexpr uint32_t kQuarter = 1U << 21, kInfinity = 255U << 23;
  const uint32_t bits = __float_as_uint(fmaxf(amax, kMinAmax));
  return bits == kInfinity ? 255 : ((bits + kQuarter - 1) >> 23) - 8;
}
__device__ __forceinline__ float power_of_two(uint32_t exponent) {
  return __uint_as_float(exponent << 23);
}
// The reciprocal of power_of_two(), for exponents 1 .. 253.
__device__ __forceinline__ float inverse_power_of_two(uint32_t exponent) {
  return __uint_as_float((254 - exponent) << 23);
}

// Two E4M3 codes, the first in the low byte; nearest even, saturating.
__device__ __forceinline__ uint32_t to_e4m3x2(float first, float second) {
  return __nv_cvt_float2_to_fp8x2({first, second}, __NV_SATFINITE, __NV_E4M3);
}
__device__ __forceinline__ uint32_t to_e4m3x4(const float (&v)[4], float factor) {
  return to_e4m3x2(v[0] * factor, v[1] * factor) | to_e4m3x2(v[2] * factor, v[3] * factor) << 16;
}
// The largest magnitude of four values, and their codes at the scale with this exponent.
__device__ __forceinline__ float largest_of(const float4& v) {
  return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}
__device__ __forceinline__ uint32_t e4m3_codes(const float4& v, uint32_t exponent) {
  const float values[4] = {v.x, v.y, v.z, v.w};
  return to_e4m3x4(values, inverse_power_of_two(exponent));
}

// fp8_block_place() of kernels/device_args.h for a group of 128 columns: where it writes codes and
// scales of one row.   k: of all columns of the matrix
struct Fp8BlockRow {
  uint8_t* codes;  // of columns 0 .. 15; the next 16 are chunk_bytes on
  float* scale;
  int64_t chunk_bytes;
};
__device__ __forceinline__ Fp8BlockRow
fp8_block_row(uint8_t* blocks, int64_t m, int64_t k, int64_t row, int64_t group) {
  constexpr int64_t kSliceRows = 128, kFullBlock = kSliceRows * (128 + 4);
  const int64_t slice = row / kSliceRows, in_slice = row % kSliceRows;
  const int64_t rows = min(m - slice * kSliceRows, kSliceRows);
  const int64_t block_bytes = rows * 128 + (rows * 4 + 15) / 16 * 16;
  uint8_t* const block = blocks + slice * (k / 128) * kFullBlock + group * block_bytes;
  return {
      block + in_slice * 16, reinterpret_cast<float*>(block + rows * 128) + in_slice, rows * 16};
}

// The two E4M3 codes in the lower half as FP16, exactly.
__device__ __forceinline__ uint32_t e4m3x2_to_f16x2(uint32_t codes) {
  const __half2_raw v =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), __NV_E4M3);
  return v.x | static_cast<uint32_t>(v.y) << 16;
}

// Four codes as two pairs of FP16, the low bytes' first. Halves of a word are operands of the
// instruction, which C++ would not use.
__device__ __forceinline__ void e4m3x4_to_f16x4(uint32_t codes, uint32_t& first, uint32_t& second) {
  asm("{\n\t.reg .b16 low, high;\n\tmov.b32 {low, high}, %2;\n\t"
      "cvt.rn.f16x2.e4m3x2 %0, low;\n\tcvt.rn.f16x2.e4m3x2 %1, high;\n\t}"
      : "=r"(first), "=r"(second)
      : "r"(codes));
}

// The values of four codes, the low byte's first.
__device__ __forceinline__ void from_e4m3x4(uint32_t codes, float* values) {
  asm("{\n\t.reg .b16 first, second, low, high;\n\t.reg .b32 both;\n\t"
      "mov.b32 {first, second}, %4;\n\t"
      "cvt.rn.f16x2.e4m3x2 both, first;\n\tmov.b32 {low, high}, both;\n\t"
      "cvt.f32.f16 %0, low;\n\tcvt.f32.f16 %1, high;\n\t"
      "cvt.rn.f16x2.e4m3x2 both, second;\n\tmov.b32 {low, high}, both;\n\t"
      "cvt.f32.f16 %2, low;\n\tcvt.f32.f16 %3, high;\n\t}"
      : "=f"(values[0]), "=f"(values[1]), "=f"(values[2]), "=f"(values[3])
      : "r"(codes));
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    value = fmaxf(value, __shfl_xor_sync(~0U, value, step));
  }
  return value;
}

}  // namespace nibble::kernels::cuda
