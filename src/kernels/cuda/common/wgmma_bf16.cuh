// Warpgroup matrix products of sm_90a in BF16 with both operands in shared memory: D[64, N] +=
// A[64, 16] B[16, N]. Device code only. Source: PTX ISA 9.0, "wgmma.mma_async". D and the rules:
// see common/wgmma.cuh.
//
// Tiles are in blocks of 64 columns: a row is 128 bytes, eight rows follow each other, and the
// 16-byte chunks of row r are exchanged: chunk c lies at c ^ (r % 8) (the 128-byte swizzle). Blocks
// start at multiples of 1024.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/wgmma.cuh"

namespace nibble::kernels::cuda {

inline constexpr uint32_t kSwizzledRowBytes = 128;

// Where chunk `chunk` (16 bytes) of row `row` of a block lies.
__host__ __device__ constexpr uint32_t swizzled_chunk(uint32_t row, uint32_t chunk) {
  return row * kSwizzledRowBytes + ((chunk ^ (row & 7U)) << 4);
}

// Descriptor of a tile in that order. A matrix whose k runs along rows (64 k a block): k steps are
// 32 bytes apart, block_bytes is not used. A transposed one (B whose columns run along rows, 64 a
// block): k steps are 16 rows apart, blocks of columns block_bytes.
__device__ __forceinline__ uint64_t swizzled_descriptor(uint32_t address, uint32_t block_bytes) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = 8 * kSwizzledRowBytes;
  return kSwizzle128 | (kEightRows >> 4) << 32 | static_cast<uint64_t>(block_bytes >> 4) << 16 |
         static_cast<uint64_t>((address & 0x3FFFF) >> 4);
}

// D = A B, or D += A B when `accumulate`. a, b: descriptors of tiles whose rows run along k
__device__ __forceinline__ void wgmma_bf16_n64(float (&d)[32],
                                               uint64_t a,
                                               uint64_t b,
                                               bool accumulate) {
  asm volatile(
      "{\n\t.reg .pred accumulate;\n\tsetp.ne.b32 accumulate, %34, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,"
      "%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,"
      "%31}, %32, %33, accumulate, 1, 1, 0, 0;\n\t}"
      : "+f"(d[0]),
        "+f"(d[1]),
        "+f"(d[2]),
        "+f"(d[3]),
        "+f"(d[4]),
        "+f"(d[5]),
        "+f"(d[6]),
        "+f"(d[7]),
        "+f"(d[8]),
        "+f"(d[9]),
        "+f"(d[10]),
        "+f"(d[11]),
        "+f"(d[12]),
        "+f"(d[13]),
        "+f"(d[14]),
        "+f"(d[15]),
        "+f"(d[16]),
        "+f"(d[17]),
        "+f"(d[18]),
        "+f"(d[19]),
        "+f"(d[20]),
        "+f"(d[21]),
        "+f"(d[22]),
        "+f"(d[23]),
        "+f"(d[24]),
        "+f"(d[25]),
        "+f"(d[26]),
        "+f"(d[27]),
        "+f"(d[28]),
        "+f"(d[29]),
        "+f"(d[30]),
        "+f"(d[31])
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}
// D += A B.   b: a transposed tile
__device__ __forceinline__ void wgmma_bf16_n128_transposed(float (&d)[64], uint64_t a, uint64_t b) {
  asm volatile(
      "{\n\t.reg .pred accumulate;\n\tsetp.ne.b32 accumulate, 1, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,"
      "%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"
      "%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,"
      "%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, %64, %65, accumulate, 1, 1, 0,"
      " 1;\n\t}"
      : "+f"(d[0]),
        "+f"(d[1]),
        "+f"(d[2]),
        "+f"(d[3]),
        "+f"(d[4]),
        "+f"(d[5]),
        "+f"(d[6]),
        "+f"(d[7]),
        "+f"(d[8]),
        "+f"(d[9]),
        "+f"(d[10]),
        "+f"(d[11]),
        "+f"(d[12]),
        "+f"(d[13]),
        "+f"(d[14]),
        "+f"(d[15]),
        "+f"(d[16]),
        "+f"(d[17]),
        "+f"(d[18]),
        "+f"(d[19]),
        "+f"(d[20]),
        "+f"(d[21]),
        "+f"(d[22]),
        "+f"(d[23]),
        "+f"(d[24]),
        "+f"(d[25]),
        "+f"(d[26]),
        "+f"(d[27]),
        "+f"(d[28]),
        "+f"(d[29]),
        "+f"(d[30]),
        "+f"(d[31]),
        "+f"(d[32]),
        "+f"(d[33]),
        "+f"(d[34]),
        "+f"(d[35]),
        "+f"(d[36]),
        "+f"(d[37]),
        "+f"(d[38]),
        "+f"(d[39]),
        "+f"(d[40]),
        "+f"(d[41]),
        "+f"(d[42]),
        "+f"(d[43]),
        "+f"(d[44]),
        "+f"(d[45]),
        "+f"(d[46]),
        "+f"(d[47]),
        "+f"(d[48]),
        "+f"(d[49]),
        "+f"(d[50]),
        "+f"(d[51]),
        "+f"(d[52]),
        "+f"(d[53]),
        "+f"(d[54]),
        "+f"(d[55]),
        "+f"(d[56]),
        "+f"(d[57]),
        "+f"(d[58]),
        "+f"(d[59]),
        "+f"(d[60]),
        "+f"(d[61]),
        "+f"(d[62]),
        "+f"(d[63])
      : "l"(a), "l"(b));
}

// Moves registers between warpgroups: all threads of a warpgroup give up, or take, to have kCount.
template <int kCount>
__device__ __forceinline__ void give_registers_until() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void take_registers_until() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

}  // namespace nibble::kernels::cuda
