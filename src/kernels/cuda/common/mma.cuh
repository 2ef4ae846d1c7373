// Warp matrix products in BF16 and FP16, D[16, 8] += A[16, 16] B[16, 8], and in TF32, and the loads
// that make their fragments from rows in shared memory. Device code only. Source: PTX ISA 9.0,
// "mma.m16n8k16", "mma.m16n8k8", "ldmatrix".
//
// Lane 4 g + t holds of A: a[0] row g k 2t, 2t + 1; a[1] row g + 8; a[2] row g k 8 + 2t, ..; a[3]
// row g + 8. Of B: b0 column g k 2t, 2t + 1; b1 k 8 + 2t, ... Of D: d[0, 1] row g columns 2t, 2t +
// 1; d[2, 3] row g + 8.
#pragma once

#include <cstdint>

namespace nibble::kernels::cuda {

__device__ __forceinline__ void mma_bf16(float (&d)[4],
                                         const uint32_t (&a)[4],
                                         uint32_t b0,
                                         uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_f16(float (&d)[4],
                                        const uint32_t (&a)[4],
                                        uint32_t b0,
                                        uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// D[16, 8] += A[16, 8] B[8, 8] in TF32. Lane 4 g + t holds of A: a[0] row g k t; a[1] row g + 8 k
// t; a[2] row g k t + 4; a[3] row g + 8 k t + 4. Of B: b0 column g k t; b1 k t + 4. Of D as above.
__device__ __forceinline__ void mma_tf32(float (&d)[4],
                                         const uint32_t (&a)[4],
                                         uint32_t b0,
                                         uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Nearest TF32 number, halves away from zero, and the nearest of the rest: together 22 bits or
// more.
struct Tf32Terms {
  uint32_t first, second;
};
__device__ __forceinline__ uint32_t tf32_bits(float x) {
  return (__float_as_uint(x) + 0x1000U) & 0xFFFFE000U;
}
__device__ __forceinline__ Tf32Terms tf32_terms(float x) {
  const uint32_t first = tf32_bits(x);
  return {first, __float_as_uint(x - __uint_as_float(first)) & 0xFFFFE000U};
}

// Loads four 8 x 8 matrices of 16-bit elements. Lane 8 i + r gives the address of row r of matrix
// i; lane 4 g + t gets elements 2t, 2t + 1 of row g of each (transposed: of column g).
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}
// a * b + c of two BF16 values each, rounded once.
__device__ __forceinline__ uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t result;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
}
// Two values rounded to BF16; `low` in the lower half.
__device__ __forceinline__ uint32_t pack_bf16x2(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ __forceinline__ float low_bf16(uint32_t packed) { return __uint_as_float(packed << 16); }
__device__ __forceinline__ float high_bf16(uint32_t packed) {
  return __uint_as_float(packed & 0xFFFF0000U);
}

// max(x, 0) that keeps NaN.
__device__ __forceinline__ float relu(float x) {
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
}
// 2^x; 2^-inf is 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace nibble::kernels::cuda
