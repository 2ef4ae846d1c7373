// What a launch of one token's experts does beside them (DeviceGroupedMatMulArgs::choice, beside):
// the second product of the shared expert, FP8 weights times one row. The router decides nothing of
// it, so its weights fill the rings while experts are still being chosen. Device code only.
//
// It has the bits of panel_matmul/kernel.cuh: of each half of k, one of two warpgroups adds the
// even tiles of 128 k, the other the odd ones, in order. A unit is half of k of a panel of 64 rows.
//
// Bytes: n k, and sums of k / 2 values per unit from the cache. FLOPs: 2 n k.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/swiglu.cuh"
#include "kernels/cuda/common/wgmma_products.cuh"
#include "kernels/cuda/ops/rows.cuh"
#include "kernels/cuda/sm90/expert_matmul/formats.cuh"

namespace nibble::kernels::cuda {

inline constexpr int kBesideHalves = 2;
inline constexpr int kBesideGroups = 2;  // warpgroups that share a unit
inline constexpr int kBesideThreads = kBesideGroups * 128;
inline constexpr int kBesideTileK = 128;
inline constexpr int kBesideTileBytes = 64 * kBesideTileK;

struct BesideParams {
  DeviceSums gate_up;  // [splits, 1, 2 * 128 tiles], gate over up
  float limit;         // infinity: no clamp
  const uint8_t* weights;
  const float* weight_scales;  // [panels, tiles]
  float* y;                    // [kBesideHalves, 64 panels]
  int panels;                  // 0: no such product
  int tiles;                   // of k
};

struct BesideUnit {
  int panel;
  int half;

  __device__ __forceinline__ explicit BesideUnit(int index)
      : panel(index / kBesideHalves), half(index % kBesideHalves) {}
  // Of k; the next one of warpgroup `group` is kBesideGroups on.
  __device__ __forceinline__ int first_tile(const BesideParams& params, int group) const {
    return half * (params.tiles / kBesideHalves) + group;
  }
};
__device__ __forceinline__ int beside_tiles_of_group(const BesideParams& params) {
  return params.tiles / (kBesideHalves * kBesideGroups);
}

// Activates a half of the row and quantises it into shared memory, with the bits of the op
// select_experts. The warpgroups of a unit together.
//   codes: [128 tiles]; scales: [tiles]
__device__ __forceinline__ void activate_beside_row(const BesideParams& params,
                                                    int half,
                                                    uint8_t* codes,
                                                    float* scales) {
  constexpr int kBesideBarrier = 2;
  const int lane = threadIdx.x % 32, half_tiles = params.tiles / kBesideHalves;
  const int64_t n = params.tiles * kBesideTileK;
  for (int i = threadIdx.x / 32; i < half_tiles; i += kBesideThreads / 32) {
    const int tile = half * half_tiles + i;
    const int64_t column = tile * kBesideTileK + lane * 4;
    const float4 gate = sum4<true>(params.gate_up, 2 * n, column, 4);
    const float4 up = sum4<true>(params.gate_up, 2 * n, n + column, 4);
    const float4 y = {swiglu(gate.x, up.x, params.limit),
                      swiglu(gate.y, up.y, params.limit),
                      swiglu(gate.z, up.z, params.limit),
                      swiglu(gate.w, up.w, params.limit)};
    const uint32_t exponent = e4m3_scale_exponent(warp_max(largest_of(y)));
    reinterpret_cast<uint32_t*>(codes)[tile * 32 + lane] = e4m3_codes(y, exponent);
    if (lane == 0) scales[tile] = power_of_two(exponent);
  }
  fence_async_proxy();
  named_barrier_sync(kBesideBarrier, kBesideThreads);
}

// acc += the tiles of this warpgroup times the row.
//   slot_0: address of the ring's first slot, whose 64 rows all warps share
//   row: descriptor of the row's first 32 k; weight_scales: lane i holds that of the i-th tile
__device__ __forceinline__ void multiply_beside(StageRing& ring,
                                                uint32_t slot_0,
                                                uint64_t row,
                                                const float* row_scales,
                                                float weight_scales,
                                                int first_tile,
                                                int num_tiles,
                                                float (&acc)[4]) {
  constexpr uint64_t kWeightStep = 2 * 1024 / 16, kRowStep = 2;  // descriptors, of 32 k
#pragma unroll 1
  for (int i = 0; i < num_tiles; ++i) {
    const int tile = first_tile + kBesideGroups * i;
    ring.wait();
    const uint64_t a = core_matrix_descriptor(slot_0 + ring.slot * ring.stage_bytes, 1024, 128);
    const uint64_t b = row + static_cast<uint64_t>(tile) * (4 * kRowStep);
    float d[4];
    wgmma_fence();
    wgmma_e4m3_128(d, a, b, kWeightStep, kRowStep);
    wgmma_commit();
    wgmma_wait<0>();
    hold(d);
    ring.release(threadIdx.x % 32);
    const float scale = row_scales[tile] * __shfl_sync(~0U, weight_scales, i);
#pragma unroll
    for (int j = 0; j < 4; ++j) acc[j] = fmaf(scale, d[j], acc[j]);
  }
}

}  // namespace nibble::kernels::cuda
