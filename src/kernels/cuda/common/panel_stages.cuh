// What products of weights in panels of 64 rows share whose stages come by bulk copies: the
// producer of the ring, and the store of sums with panels as M. Device code only.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/product_tile.cuh"
#include "kernels/cuda/common/ptx.cuh"

namespace nibble::kernels::cuda {

// Feeds the ring: some lanes of a warp, each with its part of every stage. Weights depend on
// nothing and fill the ring before the predecessors end.
//   make_source(): this lane's copies from the first stage on, with stage_bytes() of the whole
//     stage and next()
//   copy(slot, source): starts one
template <class MakeSource, class Copy>
__device__ __forceinline__ void fill_panel_ring(const MakeSource& make_source,
                                                const Copy& copy,
                                                bool is_weight,
                                                int num_stages,
                                                int ring_stages,
                                                uint32_t full,
                                                uint32_t empty) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int ahead = min(num_stages, ring_stages);
  auto source = make_source();
  for (int slot = 0; slot < ahead; ++slot, source.next()) {
    if (lane == 0) barrier_arrive_expect(full + 8 * slot, source.stage_bytes());
    if (is_weight) copy(slot, source);
  }
  wait_for_predecessors();
  if (!is_weight) {
    auto first = make_source();
    for (int slot = 0; slot < ahead; ++slot, first.next()) copy(slot, first);
  }
  int slot = 0;
  uint32_t parity = 0;
  for (int stage = ahead; stage < num_stages; ++stage, source.next()) {
    barrier_wait(empty + 8 * slot, parity);
    if (lane == 0) barrier_arrive_expect(full + 8 * slot, source.stage_bytes());
    copy(slot, source);
    if (++slot == ring_stages) {
      slot = 0;
      parity ^= 1;
    }
  }
}

// Writes the f32 sums of a panel over kColumns tokens. Params: m, panels and y of a product.
//   row: this thread's first, the other is 8 on
template <int kColumns, class Params>
__device__ __forceinline__ void store_panel_sums(const Params& params,
                                                 const float (&sum)[kColumns / 2],
                                                 const ProductTile& item,
                                                 int row) {
  const int t = static_cast<int>(threadIdx.x % 4);
  const int64_t n = static_cast<int64_t>(params.panels) * 64;
  const int token = item.tokens * kColumns + 2 * t;
  float* y = params.y + (static_cast<int64_t>(item.split) * params.m + token) * n + row;
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j, y += 8 * n) {
    if (token + 8 * j < params.m) {
      y[0] = sum[4 * j];
      y[8] = sum[4 * j + 2];
    }
    if (token + 8 * j + 1 < params.m) {
      y[n] = sum[4 * j + 1];
      y[n + 8] = sum[4 * j + 3];
    }
  }
}

}  // namespace nibble::kernels::cuda
