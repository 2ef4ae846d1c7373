// Two FP8 products of sm_90a, of up to 8 tokens, of which the second multiplies what the first one
// gives, in one launch.
//
// A block has items of each product, in phases: the first half of the first product's outputs, the
// other half, then what the second product makes of either half. The ring of weights flows across,
// so that memory works while sums go from block to block: those of the first half during the other
// half, and so on. Who writes the last sums of 128 outputs adds the splits of all of them in order,
// quantises them to an FP8 block and counts it; the activations of the second product come as soon
// as all blocks of their part of k are counted.
//
// Blocks wait for each other, so all of them have to be resident: the grid is one block per
// multiprocessor, and the next launch is not let in before all have begun.
//
// Bytes and FLOPs: of the products, and the sums of the first one through the cache.
#pragma once

#include "kernels/cuda/common/fp8.cuh"
#include "kernels/cuda/sm90/panel_matmul/kernel.cuh"

namespace nibble::kernels::cuda {

inline constexpr int kMaxChainTokens = 8;
inline constexpr int kMaxChainBlocks = 160;
// What a block works on, one after the other.
enum ChainPhase { kFirstHalf, kOtherHalf, kSecondOfFirstHalf, kSecondOfOtherHalf, kNumChainPhases };

struct PanelChainParams {
  PanelMatMulParams first;
  PanelMatMulParams second;
  PanelPart parts[kNumChainPhases];
  int stage_bytes;
  int num_stages;
  uint8_t* blocks;  // what the second product reads
  int* arrivals;    // [FP8 blocks] items whose sums are there
  int* ready;       // [splits of the second product] FP8 blocks that are there
  int* done;        // [1] launch blocks that no longer look at `ready`
  // Block b has items begins[p][b] to begins[p][b + 1] of phase p.
  uint16_t begins[kNumChainPhases][kMaxChainBlocks + 1];
};

__device__ __forceinline__ PanelWork chain_work(const PanelChainParams& params, int phase) {
  return {
      params.parts[phase], params.begins[phase][blockIdx.x], params.begins[phase][blockIdx.x + 1]};
}
__host__ __device__ constexpr bool is_of_first(int phase) { return phase <= kOtherHalf; }

// Quantises 128 outputs of one row of the first product, its splits added in order. One warp: lane
// l has outputs 4 l to 4 l + 3.
__device__ __forceinline__ void quantize_outputs(const PanelChainParams& params,
                                                 int block,
                                                 int row) {
  const PanelMatMulParams& first = params.first;
  const int lane = threadIdx.x % 32;
  const size_t n = static_cast<size_t>(first.panels) * 64;
  const float* y = first.y + row * n + block * 128 + lane * 4;
  float v[4] = {};
#pragma unroll 2
  for (int split = 0; split < first.splits; ++split, y += first.m * n) {
    const float4 part = __ldcg(reinterpret_cast<const float4*>(y));
    v[0] += part.x;
    v[1] += part.y;
    v[2] += part.z;
    v[3] += part.w;
  }
  const float amax =
      warp_max(fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3]))));
  const uint32_t exponent = e4m3_scale_exponent(amax);
  uint8_t* const out = params.blocks + static_cast<size_t>(block) * params.second.block_bytes;
  *reinterpret_cast<uint32_t*>(out + (lane / 4 * first.m + row) * 16 + lane % 4 * 4) =
      to_e4m3x4(v, inverse_power_of_two(exponent));
  if (lane == 0) reinterpret_cast<float*>(out + first.m * 128)[row] = power_of_two(exponent);
}

// One warpgroup after it has written an item of the first product.
//   flag: of this warpgroup, in shared memory
__device__ __forceinline__ void hand_over(const PanelChainParams& params,
                                          const PanelItem& item,
                                          int* flag) {
  const int barrier = 2 + threadIdx.x / 128, thread = threadIdx.x % 128;
  const int block = item.panel / 2, needed = 2 * params.first.splits;
  named_barrier_sync(barrier, 128);
  if (thread == 0) {
    const int before = add_acquire_release(params.arrivals + block);
    if (before == needed - 1) params.arrivals[block] = 0;
    *flag = before;
  }
  named_barrier_sync(barrier, 128);
  if (*flag != needed - 1) return;
  for (int row = thread / 32; row < params.first.m; row += 4) {
    quantize_outputs(params, block, row);
  }
  fence_async_proxy_global();
  named_barrier_sync(barrier, 128);
  const int blocks_of_split = params.second.tiles / params.second.splits;
  if (thread == 0) add_release(params.ready + block / blocks_of_split);
}

// Copies the activations of all phases. One thread.
__device__ __forceinline__ void copy_chain_activations(const PanelChainParams& params,
                                                       const PanelStages& stages) {
  const PanelMatMulParams& second = params.second;
  const int blocks_of_split = second.tiles / second.splits;
  const auto no_wait = [](const PanelItem&) {};
  const auto wait = [&](const PanelItem& item) {
    while (load_acquire(params.ready + item.split) < blocks_of_split) {
    }
    fence_async_proxy_global();
  };
  PanelRingPlace place{0, 0};
  wait_for_predecessors();
#pragma unroll 1
  for (int phase = kFirstHalf; phase <= kOtherHalf; ++phase) {
    copy_panel_activations(params.first, chain_work(params, phase), stages, place, no_wait);
  }
#pragma unroll 1
  for (int phase = kSecondOfFirstHalf; phase <= kSecondOfOtherHalf; ++phase) {
    copy_panel_activations(second, chain_work(params, phase), stages, place, wait);
  }
  // The last block to come here knows that `ready` has been read for the last time.
  if (add_acquire_release(params.done) != static_cast<int>(gridDim.x) - 1) return;
  for (int split = 0; split < second.splits; ++split) params.ready[split] = 0;
  *params.done = 0;
}

__device__ __forceinline__ void copy_chain_weights(const PanelChainParams& params,
                                                   const PanelStages& stages) {
  PanelRingPlace place{0, 0};
#pragma unroll 1
  for (int phase = 0; phase < kNumChainPhases; ++phase) {
    const PanelMatMulParams& product = is_of_first(phase) ? params.first : params.second;
    copy_panel_weights(product, chain_work(params, phase), stages, place);
  }
}

__global__ void __launch_bounds__(kPanelThreads, 2)
    panel_matmul_chain(const __grid_constant__ PanelChainParams params) {
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ __align__(8) uint64_t barriers[2 * kPanelMaxStages];
  __shared__ int flags[kPanelWarpgroups];
  const PanelStages stages =
      make_panel_stages(memory, barriers, params.stage_bytes, params.num_stages);
  start_panel_ring(stages);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp >= kPanelConsumers / 32) {
    if (lane != 0) return;
    if (warp == kPanelConsumers / 32) return copy_chain_weights(params, stages);
    return copy_chain_activations(params, stages);
  }
  PanelConsumer consumer = make_panel_consumer(stages, memory, params.first.m);
#pragma unroll 1
  for (int phase = kFirstHalf; phase <= kOtherHalf; ++phase) {
    multiply_panel_items<kMaxChainTokens, PanelMath::kFp8>(
        params.first, chain_work(params, phase), consumer, [&](const PanelItem& item) {
          hand_over(params, item, flags + warp / 4);
        });
  }
#pragma unroll 1
  for (int phase = kSecondOfFirstHalf; phase <= kSecondOfOtherHalf; ++phase) {
    multiply_panel_items<kMaxChainTokens, PanelMath::kFp8>(
        params.second, chain_work(params, phase), consumer, [](const PanelItem&) {});
  }
}

}  // namespace nibble::kernels::cuda
