// Warp matrix products of 8-bit and 4-bit floats: D[16, 8] += A[16, 32] B[32, 8]. Device code only,
// for GPUs whose tensor cores have them (sm_120). Source: PTX ISA 9.0, "mma.m16n8k32" with
// kind::f8f6f4 and kind::mxf8f6f4.block_scale.
//
// Lane 4 g + t holds of A: a[0] row g k 4t .. 4t + 3; a[1] row g + 8; a[2] row g k 16 + 4t, ..;
// a[3] row g + 8. Of B: b.x column g k 4t .. 4t + 3; b.y k 16 + 4t, ... Of D: d[0, 1] row g columns
// 2t, 2t + 1; d[2, 3] row g + 8.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

namespace nibble::kernels::cuda {

// A and B in E4M3.
__device__ __forceinline__ void mma_e4m3(float (&d)[4], const uint32_t (&a)[4], uint2 b) {
  asm volatile(
      "mma.sync.aligned.kind::f8f6f4.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, "
      "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}

// A in E2M1, a code in bits 5 .. 2 of each byte; B in E4M3. Each row of A and each column of B has
// one scale 2^(byte - 127), 255 is NaN: the low byte of scale_a is that of row g + 8 (t % 2), of
// scale_b that of column g.
__device__ __forceinline__ void mma_e2m1_e4m3(
    float (&d)[4], const uint32_t (&a)[4], uint2 b, uint32_t scale_a, uint32_t scale_b) {
  asm volatile(
      "mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.e2m1.e4m3."
      "f32.ue8m0 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}, {%10}, {0, 0}, {%11}, "
      "{0, 0};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y), "r"(scale_a), "r"(scale_b));
}

// Two E4M3 codes, the first in the low byte.
__device__ __forceinline__ float2 e4m3x2_to_f32(uint32_t codes) {
  const __half2_raw pair =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), __NV_E4M3);
  return {__half2float(__half(__half_raw{pair.x})), __half2float(__half(__half_raw{pair.y}))};
}

}  // namespace nibble::kernels::cuda
